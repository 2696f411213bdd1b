//! Gradient-ready hooks: which buffers are complete in mid-backward, and when.

use candelabrum_nn::layers::{
    BatchNorm2d, Conv2d, Embedding, Gru, LayerNorm, Linear, Lstm, RmsNorm,
};
use candelabrum_nn::ops::Pool2dConfig;
use candelabrum_nn::{Activation, FlatGradients, Init, Observer, Param, Params, ops};
use candelabrum_testkit::integers;
use candle_core::{Device, Module, Result, Tensor};

/// Takes complete buffers away, with their numbers.
#[derive(Default)]
struct Taker(Vec<(usize, Vec<f32>)>);

impl Observer<Vec<f32>> for Taker {
    fn complete(&mut self, number: usize, buffer: &mut Option<Vec<f32>>) -> Result<()> {
        self.0.push((number, buffer.take().expect("it is complete once")));
        Ok(())
    }
}

struct Network {
    params: Params,
    weights: Vec<Param>,
    gradients: FlatGradients<Vec<f32>>,
}

impl Network {
    /// Square weights, each with a buffer of its own.
    fn new(layers: usize) -> Result<Self> {
        let params = Params::new(7);
        let init = Init::Normal { std: 0.5 };
        let make = |i: usize| Ok(params.root().pp(i).param("weight", (3, 3), init)?);
        let weights = (0..layers).map(make).collect::<Result<Vec<Param>>>()?;
        let mut gradients = FlatGradients::default();
        for weight in &weights {
            gradients.push(vec![0.0; 9], [(weight, 0..9)])?;
        }
        Ok(Self { params, weights, gradients })
    }

    fn input() -> Result<Tensor> {
        Tensor::arange(0_f32, 12., &Device::Cpu)?.affine(0.1, -0.5)?.reshape((4, 3))
    }

    /// The gradients of `loss` without anybody watching.
    fn plain(&mut self, loss: &Tensor) -> Result<Vec<Vec<f32>>> {
        self.gradients.clear();
        self.gradients.backward(loss)?;
        self.gradients.zero_rest()?;
        Ok(self.all())
    }

    fn all(&mut self) -> Vec<Vec<f32>> {
        self.gradients.buffers_mut().iter().flatten().cloned().collect()
    }

    /// The buffers in the order in which they were complete before the end, and all of them.
    fn observed(&mut self, loss: &Tensor) -> Result<(Vec<usize>, Vec<Vec<f32>>)> {
        self.gradients.clear();
        let (taker, result) = self.gradients.backward_with(loss, Taker::default());
        let order = taker.0.iter().map(|(number, _)| *number).collect();
        for (number, buffer) in taker.0 {
            self.gradients.buffers_mut()[number] = Some(buffer);
        }
        result?;
        self.gradients.zero_rest()?;
        Ok((order, self.all()))
    }
}

fn layer(xs: &Tensor, weight: &Param) -> Result<Tensor> {
    ops::linear(xs, weight.tensor(), None, Some(Activation::Tanh))
}

#[test]
fn buffers_are_complete_one_by_one_from_the_last_layer_on() -> Result<()> {
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
    // 0, 1, 0 again: the gradient of 0 is whole only after that of 1, however many uses there are.
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
    assert!(network.gradients.holds().eq([true, false, true]));
    Ok(())
}

#[test]
fn a_parameter_of_candles_operations_too_waits_for_the_end() -> Result<()> {
    let mut network = Network::new(2)?;
    let loss = |network: &Network| {
        let xs = layer(&Network::input()?, &network.weights[0])?;
        let xs = layer(&xs, &network.weights[1])?;
        // candle's part of the gradient of 1 is known only when the pass has ended.
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
    // Another network: a parameter that was once used directly always waits.
    let mut network = Network::new(3)?;
    network.plain(&loss(&network, true)?)?;
    let (order, gradients) = network.observed(&loss(&network, true)?)?;
    assert_eq!(order, [2, 1, 0]);
    assert_eq!(gradients, expected);
    // Without a place it is candle's.
    let store = loss(&network, true)?.backward()?;
    let gradient = store.get(network.weights[0].tensor()).expect("candle has it");
    assert_eq!(gradient.flatten_all()?.to_vec1::<f32>()?, expected[0]);
    assert_eq!(network.params.len(), 3);
    Ok(())
}

#[test]
fn composites_tell_as_kernels_do() -> Result<()> {
    let mut network = Network::new(3)?;
    // Weight 0 is tied: its gradient is whole only after that of 1, and told once.
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
    let list = params.list();
    let mut gradients = FlatGradients::default();
    for param in &list {
        let elements = param.var().elem_count();
        gradients.push(vec![0.0; elements], [(param, 0..elements)])?;
    }
    for composites in [false, true] {
        for pass in 0..2 {
            let loss = if composites { ops::with_composites(forward) } else { forward() }?;
            gradients.clear();
            let (taker, result) = gradients.backward_with(&loss, Taker::default());
            result?;
            let layer = |&(number, _): &(usize, Vec<f32>)| list[number].name()[..1].to_owned();
            let layers: Vec<String> = taker.0.iter().map(layer).collect();
            for (number, buffer) in taker.0 {
                gradients.buffers_mut()[number] = Some(buffer);
            }
            // The first pass of all tells nobody.
            if composites || pass > 0 {
                assert_eq!(layers.len(), list.len(), "composites: {composites}");
                assert!(layers.is_sorted_by(|a, b| a >= b), "{composites}: {layers:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn an_observers_error_ends_the_pass_and_gives_everything_back() -> Result<()> {
    struct Refuses;
    impl Observer<Vec<f32>> for Refuses {
        fn complete(&mut self, number: usize, _: &mut Option<Vec<f32>>) -> Result<()> {
            candle_core::bail!("no buffer {number} today")
        }
    }
    let mut network = Network::new(2)?;
    let loss = |network: &Network| {
        let xs = layer(&Network::input()?, &network.weights[0])?;
        layer(&xs, &network.weights[1])?.sum_all()
    };
    let expected = network.plain(&loss(&network)?)?;
    network.gradients.clear();
    let (_, result) = network.gradients.backward_with(&loss(&network)?, Refuses);
    assert!(result.unwrap_err().to_string().contains("no buffer 1 today"));
    assert_eq!(network.plain(&loss(&network)?)?, expected);
    Ok(())
}
