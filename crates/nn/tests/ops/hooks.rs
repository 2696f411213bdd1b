//! Gradient-ready hooks: which buckets are complete in mid-backward, and when.

use std::cell::RefCell;
use std::rc::Rc;

use candelabrum_memory::{ElementType, Flat};
use candelabrum_nn::{Activation, FlatGradients, Init, Param, Params, UnitPlan, ops};
use candle_core::{Device, Result, Tensor};

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
        let weights = (0..layers).map(make).collect::<Result<Vec<Param>>>()?;
        let unit = |param: usize| {
            let mut plan = UnitPlan::default();
            plan.push(param, 9);
            plan
        };
        let plans: Vec<UnitPlan> = (0..layers).map(unit).collect();
        let buckets = plans.iter().map(|plan| Flat::zeros(ElementType::F32, plan.len)).collect();
        let gradients = FlatGradients::new(weights.clone(), plans, buckets)?;
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
        self.all()
    }

    fn all(&mut self) -> Result<Vec<Vec<f32>>> {
        self.gradients.buckets().map(|(_, bucket)| Ok(bucket.to_vec()?)).collect()
    }

    /// The units in the order in which they were complete before the end, and all gradients.
    fn observed(&mut self, loss: &Tensor) -> Result<(Vec<usize>, Vec<Vec<f32>>)> {
        self.gradients.clear();
        let taken = Rc::new(RefCell::new(Vec::new()));
        let taker = Rc::clone(&taken);
        let take = move |unit: usize, bucket: Flat| {
            taker.borrow_mut().push((unit, bucket));
            Ok(())
        };
        let result = self.gradients.observed_backward(loss, Box::new(take));
        let taken = taken.take();
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
fn an_observers_error_ends_the_pass_and_gives_everything_back() -> Result<()> {
    let mut network = Network::new(2)?;
    let loss = |network: &Network| {
        let xs = layer(&Network::input()?, &network.weights[0])?;
        layer(&xs, &network.weights[1])?.sum_all()
    };
    let expected = network.plain(&loss(&network)?)?;
    network.gradients.clear();
    let kept = Rc::new(RefCell::new(None));
    let keeper = Rc::clone(&kept);
    let refuse = move |unit: usize, bucket: Flat| {
        keeper.replace(Some((unit, bucket)));
        candle_core::bail!("no bucket {unit} today")
    };
    let result = network.gradients.observed_backward(&loss(&network)?, Box::new(refuse));
    assert!(result.unwrap_err().to_string().contains("no bucket 1 today"));
    let (unit, bucket) = kept.take().expect("it was complete");
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
    // As between the two losses of a GAN: a step changes the weights that the second pass needs.
    second.update_in_place(|mut values| values.scale(0.5))??;
    let error = two.backward().unwrap_err().to_string();
    assert!(error.contains("`1.weight` was changed"), "{error}");
    // A forward pass with the new weights is another graph.
    first.set(&first.tensor().ones_like()?)?;
    forward()?.sqr()?.sum_all()?.backward()?;
    Ok(())
}

#[test]
fn a_change_through_another_store_is_noticed_too() -> Result<()> {
    let network = Network::new(1)?;
    let loss = layer(&Network::input()?, &network.weights[0])?.sum_all()?;
    let other = Params::from_vars([("w", network.weights[0].var().clone())])?;
    other.get("w")?.update_in_place(|mut values| values.fill(0.0))??;
    assert!(loss.backward().unwrap_err().to_string().contains("`0.weight` was changed"));
    Ok(())
}
