//! Gradient-ready hooks: the buckets that are complete in mid-backward, and their order.

use candelabrum_memory::{ElementType, FlatTensor, Location};
use candelabrum_nn::layers::{
    BatchNorm2d, Conv2d, Embedding, Gru, LayerNorm, Linear, Lstm, RmsNorm,
};
use candelabrum_nn::ops::Pool2dConfig;
use candelabrum_nn::{Activation, BucketPlan, FlatGradients, Init, Param, Params, ops};
use candelabrum_testkit::integers;
use candle_core::{Device, Module, Result, Tensor};

/// Gradients in which each parameter is a unit.
pub(crate) fn each_its_own_unit(params: &Params) -> Result<FlatGradients> {
    let unit = |(number, param): (usize, &Param)| {
        let mut plan = BucketPlan::default();
        plan.push(number, param.var().elem_count());
        plan
    };
    let plans: Vec<BucketPlan> = params.list().iter().enumerate().map(unit).collect();
    let location = Location::from_device(params.device());
    let bucket = |plan: &BucketPlan| FlatTensor::zeros_on(&location, ElementType::F32, plan.len);
    let buckets = plans.iter().map(bucket).collect::<std::result::Result<_, _>>()?;
    FlatGradients::new(params.list(), plans, buckets)
}

struct Network {
    params: Params,
    weights: Vec<Param>,
    gradients: FlatGradients,
}

impl Network {
    /// Square weights, each a unit of its own.
    fn new(layers: usize) -> Result<Self> {
        let params = Params::new(7);
        let init = Init::Normal { std: 0.5 };
        let make = |i: usize| Ok(params.root().pp(i).param("weight", (3, 3), init)?);
        (0..layers).map(make).collect::<Result<Vec<Param>>>()?;
        Self::of(params)
    }

    /// Each parameter is a unit of its own.
    fn of(params: Params) -> Result<Self> {
        let (weights, gradients) = (params.list(), each_its_own_unit(&params)?);
        Ok(Self { params, weights, gradients })
    }

    fn input() -> Result<Tensor> {
        Tensor::arange(0_f32, 12., &Device::Cpu)?.affine(0.1, -0.5)?.reshape((4, 3))
    }

    /// The gradients of `loss`, computed without an observer.
    fn plain(&mut self, loss: &Tensor) -> Result<Vec<Vec<f32>>> {
        self.gradients.clear();
        self.gradients.backward(loss)?;
        self.gradients.zero_rest()?;
        self.all()
    }

    fn all(&mut self) -> Result<Vec<Vec<f32>>> {
        self.gradients.buckets().map(|(_, bucket)| Ok(bucket.to_vec()?)).collect()
    }

    /// The units that were complete before the end of the pass, in their order, and all gradients.
    fn observed(&mut self, loss: &Tensor) -> Result<(Vec<usize>, Vec<Vec<f32>>)> {
        self.gradients.clear();
        let mut taken = Vec::new();
        let mut take = |unit: usize, bucket: FlatTensor| {
            taken.push((unit, bucket));
            Ok(())
        };
        let result = self.gradients.observed_backward(loss, Some(&mut take));
        let order = taken.iter().map(|(unit, _)| *unit).collect();
        for (unit, bucket) in taken {
            self.gradients.put(unit, bucket);
        }
        result?;
        self.gradients.zero_rest()?;
        Ok((order, self.all()?))
    }
}

fn layer(xs: &Tensor, weight: &Param) -> Result<Tensor> {
    ops::linear(xs, weight.tensor(), None, Some(Activation::Tanh))
}

#[test]
fn buckets_are_complete_one_by_one_from_the_last_layer_on() -> Result<()> {
    let mut network = Network::new(4)?;
    let loss = |network: &Network| {
        let mut weights = network.weights.iter();
        weights.try_fold(Network::input()?, |xs, weight| layer(&xs, weight))?.sum_all()
    };
    let expected = network.plain(&loss(&network)?)?;
    assert_eq!(network.gradients.ready_order(), [3, 2, 1, 0]);
    for _ in 0..3 {
        let (order, gradients) = network.observed(&loss(&network)?)?;
        assert_eq!(order, [3, 2, 1, 0]);
        assert_eq!(gradients, expected);
    }
    Ok(())
}

#[test]
fn a_first_pass_tells_nobody() -> Result<()> {
    let mut network = Network::new(1)?;
    let loss = |network: &Network| layer(&Network::input()?, &network.weights[0])?.sum_all();
    assert_eq!(network.observed(&loss(&network)?)?.0, [0_usize; 0]);
    assert_eq!(network.observed(&loss(&network)?)?.0, [0]);
    Ok(())
}

#[test]
fn a_tied_weight_is_complete_after_its_last_use() -> Result<()> {
    let mut network = Network::new(2)?;
    // Weight 0 is used before weight 1, so its gradient is complete only after that of weight 1.
    let loss = |network: &Network, uses: usize| {
        let [tied, other] = &network.weights[..] else { unreachable!("two") };
        let mut xs = layer(&layer(&Network::input()?, tied)?, other)?;
        for _ in 0..uses {
            xs = layer(&xs, tied)?;
        }
        xs.sum_all()
    };
    network.plain(&loss(&network, 1)?)?;
    for uses in [1, 3, 2, 0] {
        let expected = network.plain(&loss(&network, uses)?)?;
        let (order, gradients) = network.observed(&loss(&network, uses)?)?;
        assert_eq!(order, [1, 0], "{uses} more uses");
        assert_eq!(gradients, expected, "{uses} more uses");
    }
    Ok(())
}

#[test]
fn an_unused_parameter_is_never_complete() -> Result<()> {
    let mut network = Network::new(3)?;
    let loss = |network: &Network| {
        let xs = layer(&Network::input()?, &network.weights[0])?;
        layer(&xs, &network.weights[2])?.sum_all()
    };
    let expected = network.plain(&loss(&network)?)?;
    let (order, gradients) = network.observed(&loss(&network)?)?;
    assert_eq!(order, [2, 0]);
    assert_eq!(gradients, expected);
    let without: Vec<&str> = network.gradients.without_gradient().map(Param::name).collect();
    assert_eq!(without, ["1.weight"]);
    Ok(())
}

#[test]
fn a_parameter_of_candles_operations_too_waits_for_the_end() -> Result<()> {
    let mut network = Network::new(2)?;
    let loss = |network: &Network| {
        let xs = layer(&Network::input()?, &network.weights[0])?;
        let xs = layer(&xs, &network.weights[1])?;
        // candle's part of the gradient of weight 1 is known only when the pass has ended.
        xs.matmul(network.weights[1].tensor())?.sum_all()
    };
    let expected = network.plain(&loss(&network)?)?;
    let (order, gradients) = network.observed(&loss(&network)?)?;
    assert_eq!(order, [0]);
    assert_eq!(gradients, expected);
    Ok(())
}

#[test]
fn a_late_gradient_that_nobody_could_know_of_is_an_error_that_names_it() -> Result<()> {
    let mut network = Network::new(1)?;
    let usual = layer(&Network::input()?, &network.weights[0])?.sum_all()?;
    network.plain(&usual)?;
    let mixed = (layer(&Network::input()?, &network.weights[0])?.sum_all()?
        + network.weights[0].tensor().sum_all()?)?;
    let error = network.observed(&mixed).unwrap_err().to_string();
    assert!(error.contains("`0.weight`") && error.contains("overlap"), "{error}");
    Ok(())
}

#[test]
fn candles_operations_tell_through_an_identity() -> Result<()> {
    let mut network = Network::new(3)?;
    let loss = |network: &Network, through: bool| {
        let mut xs = Network::input()?;
        for weight in &network.weights {
            let weight = if through { weight.identity()? } else { weight.tensor().clone() };
            xs = xs.matmul(&weight.t()?)?.tanh()?;
        }
        xs.sum_all()
    };
    let expected = network.plain(&loss(&network, false)?)?;
    // In a new network, because a parameter that was once used directly always waits.
    let mut network = Network::new(3)?;
    network.plain(&loss(&network, true)?)?;
    let (order, gradients) = network.observed(&loss(&network, true)?)?;
    assert_eq!(order, [2, 1, 0]);
    assert_eq!(gradients, expected);
    // A plain backward returns the gradient in candle's store.
    let store = loss(&network, true)?.backward()?;
    let gradient = store.get(network.weights[0].tensor()).expect("candle has it");
    assert_eq!(gradient.flatten_all()?.to_vec1::<f32>()?, expected[0]);
    assert_eq!(network.params.len(), 3);
    Ok(())
}

#[test]
fn composites_tell_as_kernels_do() -> Result<()> {
    let mut network = Network::new(3)?;
    // Weight 0 is tied: its gradient is complete only after that of weight 1, and reported once.
    let loss = |network: &Network| {
        let [tied, one, two] = &network.weights[..] else { unreachable!("three") };
        let xs = layer(&layer(&Network::input()?, tied)?, one)?;
        layer(&layer(&layer(&xs, tied)?, tied)?, two)?.sum_all()
    };
    let expected = network.plain(&loss(&network)?)?;
    let mut network = Network::new(3)?;
    for pass in 0..3 {
        let loss = ops::with_composites(|| loss(&network))?;
        let (order, gradients) = network.observed(&loss)?;
        assert_eq!(order, if pass == 0 { &[][..] } else { &[2, 1, 0] });
        assert_eq!(network.gradients.ready_order(), [2, 1, 0]);
        for (gradient, expected) in gradients.iter().flatten().zip(expected.iter().flatten()) {
            assert!((gradient - expected).abs() < 1e-5, "{gradient}, {expected}");
        }
    }
    // Kernels and composites in one graph.
    let mixed = |network: &Network| {
        let [tied, one, two] = &network.weights[..] else { unreachable!("three") };
        let xs = layer(&layer(&Network::input()?, tied)?, one)?;
        let xs = ops::with_composites(|| layer(&layer(&xs, tied)?, tied))?;
        layer(&xs, two)?.sum_all()
    };
    let (order, gradients) = network.observed(&mixed(&network)?)?;
    assert_eq!(order, [2, 1, 0]);
    for (gradient, expected) in gradients.iter().flatten().zip(expected.iter().flatten()) {
        assert!((gradient - expected).abs() < 1e-5, "{gradient}, {expected}");
    }
    Ok(())
}

#[test]
fn parameters_of_every_layer_are_complete_from_the_last_layer_on() -> Result<()> {
    let params = Params::new(3);
    let scope = |number: usize| params.root().pp(number);
    let embedding = Embedding::new(&scope(0), 11, 8).padding_index(2);
    let lstm = Lstm::new(&scope(1), 8);
    let layer_norm = LayerNorm::new(&scope(2));
    let gru = Gru::new(&scope(3), 8);
    let rms_norm = RmsNorm::new(&scope(4));
    let conv2d = Conv2d::new(&scope(5), 3, 3).padding(1);
    let batch_norm = BatchNorm2d::new(&scope(6)).activation(Activation::Relu);
    let linear = Linear::new(&scope(7), 5);
    let forward = || -> Result<Tensor> {
        let tokens = integers((4, 6), 1, 11)?;
        let xs = embedding.forward(&tokens)?; // (4, 6, 8)
        let xs = layer_norm.forward(&lstm.forward(&xs)?)?;
        let xs = rms_norm.forward(&gru.forward(&xs)?)?;
        let xs = conv2d.forward(&xs.unsqueeze(1)?)?; // (4, 3, 6, 8)
        let xs = ops::max_pool2d(&batch_norm.forward(&xs)?, Pool2dConfig::square(2))?;
        let xs = ops::dropout(&linear.forward(&xs.flatten_from(1)?)?, 0.2, 5)?;
        ops::softmax_cross_entropy(&xs, &Tensor::new(&[0_u32, 1, 4, 2], &Device::Cpu)?)
    };
    forward()?; // creates the parameters
    let mut network = Network::of(params.clone())?;
    for composites in [false, true] {
        for pass in 0..2 {
            let loss = if composites { ops::with_composites(forward) } else { forward() }?;
            let (order, _) = network.observed(&loss)?;
            // The very first pass reports no unit.
            if composites || pass > 0 {
                assert_eq!(order.len(), network.weights.len(), "composites: {composites}");
                let layer = |unit: &usize| network.weights[*unit].name()[..1].to_owned();
                let layers: Vec<String> = order.iter().map(layer).collect();
                assert!(layers.is_sorted_by(|a, b| a >= b), "{composites}: {layers:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn an_observers_error_ends_the_pass_and_gives_everything_back() -> Result<()> {
    let mut network = Network::new(2)?;
    let loss = |network: &Network| {
        let xs = layer(&Network::input()?, &network.weights[0])?;
        layer(&xs, &network.weights[1])?.sum_all()
    };
    let expected = network.plain(&loss(&network)?)?;
    network.gradients.clear();
    let mut kept = None;
    let mut refuse = |unit: usize, bucket: FlatTensor| {
        kept = Some((unit, bucket));
        candle_core::bail!("no bucket {unit} today")
    };
    let result = network.gradients.observed_backward(&loss(&network)?, Some(&mut refuse));
    assert!(result.unwrap_err().to_string().contains("no bucket 1 today"));
    let (unit, bucket) = kept.expect("it was complete");
    network.gradients.put(unit, bucket);
    assert_eq!(network.plain(&loss(&network)?)?, expected);
    Ok(())
}

#[test]
fn a_backward_over_changed_weights_is_an_error_that_names_them() -> Result<()> {
    let network = Network::new(2)?;
    let [first, second] = &network.weights[..] else { unreachable!("two") };
    let forward = || layer(&layer(&Network::input()?, first)?, second);
    let (one, two) = {
        let ys = forward()?;
        (ys.sum_all()?, ys.sqr()?.sum_all()?)
    };
    one.backward()?;
    // As between the two losses of a GAN, a step changes the weights that the second pass needs.
    second.update_in_place(|mut values| values.scale(0.5))??;
    let error = two.backward().unwrap_err().to_string();
    assert!(error.contains("`1.weight` was changed"), "{error}");
    // A forward pass with the new weights builds another graph.
    first.set(&first.tensor().ones_like()?)?;
    forward()?.sqr()?.sum_all()?.backward()?;
    Ok(())
}

#[test]
fn a_change_through_another_store_is_noticed_too() -> Result<()> {
    let network = Network::new(2)?;
    let [first, second] = &network.weights[..] else { unreachable!("two") };
    // The gradient of the first layer's weight needs the second one's.
    let loss = layer(&layer(&Network::input()?, first)?, second)?.sum_all()?;
    let other = Params::from_vars([("w", second.var().clone())])?;
    other.get("w")?.update_in_place(|mut values| values.fill(0.0))??;
    assert!(loss.backward().unwrap_err().to_string().contains("`1.weight` was changed"));
    Ok(())
}
