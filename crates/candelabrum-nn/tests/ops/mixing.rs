//! Fused operations among candle's own operations: a gradient is equal on every way.

use std::sync::atomic::{AtomicBool, Ordering};

use candelabrum_memory::FlatTensor;
use candelabrum_nn::ops::{
    Conv2dConfig, Pool2dConfig, RecurrentWeights, conv2d, linear, lstm, max_pool2d, relu,
    softmax_cross_entropy,
};
use candelabrum_nn::{Activation, BucketPlan, FlatGradients, Init, Param, Params};
use candelabrum_testkit::{assert_close, gradcheck, uniform};
use candle_core::{DType, Device, Result, Tensor, Var};

use crate::random;

const EPS: f64 = 1e-5;
const TOL: f64 = 1e-7;

#[test]
fn fused_and_candles_operations_in_turn() -> Result<()> {
    let f = |t: &[Tensor]| {
        let ys = conv2d(&t[0], &t[1], None, Conv2dConfig::default(), None)?;
        let ys = (ys.tanh()? * 0.5)?; // candle's operations between two of ours
        let ys = max_pool2d(&relu(&ys)?, Pool2dConfig::square(2))?;
        linear(&ys.flatten_from(1)?.sqr()?, &t[2], None, Some(Activation::Relu))
    };
    let inputs = [random((2, 1, 7, 6), 1)?, random((3, 1, 2, 3), 2)?, random((4, 18), 3)?];
    gradcheck(f, &inputs, EPS, TOL)
}

#[test]
fn results_that_several_operations_use() -> Result<()> {
    let f = |t: &[Tensor]| {
        let ys = linear(&t[0], &t[1], None, None)?;
        // `ys` is used by fused operations, twice by one of them, and by candle.
        let a = linear(&ys, &t[2], None, None)?;
        let b = linear(&ys, &ys, None, None)?;
        (a.sum(0)? + (relu(&ys)? * ys.sqr()?)?.sum_all()?.broadcast_as(5)?)?
            + b.sum_all()?.broadcast_as(5)?
    };
    gradcheck(f, &[random((3, 4), 1)?, random((2, 4), 2)?, random((5, 2), 3)?], EPS, TOL)
}

#[test]
fn views_of_results() -> Result<()> {
    let f = |t: &[Tensor]| {
        let ys = linear(&t[0], &t[1], None, None)?; // (3, 4)
        let whole = linear(&ys.reshape((2, 6))?, &t[2], None, None)?;
        let unsqueezed = relu(&ys.unsqueeze(0)?.squeeze(0)?)?;
        let part = linear(&ys.narrow(0, 1, 2)?, &t[3], None, None)?;
        let transposed = linear(&ys.t()?, &t[4], None, None)?;
        let sums = [whole.sum_all()?, unsqueezed.sum_all()?, part.sqr()?.sum_all()?];
        (Tensor::stack(&sums, 0)?.sum_all()? + transposed.sqr()?.sum_all()?)?.reshape(1)
    };
    let inputs = [
        random((3, 5), 1)?,
        random((4, 5), 2)?,
        random((2, 6), 3)?,
        random((2, 4), 4)?,
        random((2, 3), 5)?,
    ];
    gradcheck(f, &inputs, EPS, TOL)
}

#[test]
fn a_detached_result_passes_no_gradient() -> Result<()> {
    let weight = Var::from_tensor(&random((2, 3), 1)?)?;
    let head = Var::from_tensor(&random((1, 2), 2)?)?;
    let ys = linear(&random((4, 3), 3)?, &weight, None, None)?;
    let grads = linear(&ys.detach(), &head, None, None)?.sum_all()?.backward()?;
    assert!(grads.get(&weight).is_none());
    assert!(grads.get(&head).is_some());
    // `ys` itself still can.
    let grads = linear(&ys, &head, None, None)?.sum_all()?.backward()?;
    assert!(grads.get(&weight).is_some());
    Ok(())
}

#[test]
fn a_graph_can_be_walked_twice_and_from_another_thread() -> Result<()> {
    let weight = Var::from_tensor(&random((2, 3), 1)?)?;
    let xs = relu(&linear(&random((4, 3), 2)?, &weight, None, None)?)?;
    let loss = linear(&xs, &random((1, 2), 3)?, None, None)?.sum_all()?;
    let gradient = |loss: &Tensor| -> Result<Vec<Vec<f64>>> {
        loss.backward()?.get(&weight).expect("a gradient").to_vec2()
    };
    let first = gradient(&loss)?;
    assert_eq!(first, gradient(&loss)?);
    let elsewhere = std::thread::scope(|scope| scope.spawn(|| gradient(&loss)).join());
    assert_eq!(first, elsewhere.expect("the thread ends well")?);
    Ok(())
}

/// Parameters in one unit, in reverse order.
struct OneUnit {
    params: Params,
    gradients: FlatGradients,
}

impl OneUnit {
    fn new(shapes: &[&[usize]]) -> Result<Self> {
        let params = Params::new(0);
        for (i, shape) in shapes.iter().enumerate() {
            params.root().param(&format!("p{i}"), *shape, Init::Normal { std: 1.0 })?;
        }
        let list = params.list();
        let mut plan = BucketPlan::default();
        for (number, param) in list.iter().enumerate().rev() {
            plan.push(number, param.var().elem_count());
        }
        // The pass must overwrite the NaN.
        let bucket = FlatTensor::from_slice(&vec![f32::NAN; plan.len]);
        let gradients = FlatGradients::new(list, vec![plan], vec![bucket])?;
        Ok(Self { params, gradients })
    }

    fn tensors(&self) -> Vec<Tensor> {
        self.params.list().iter().map(|param| param.tensor().clone()).collect()
    }

    /// The gradient of each parameter.
    fn gradients(&mut self) -> Result<Vec<Tensor>> {
        let values = self.gradients.bucket(0)?.to_vec::<f32>()?;
        let mut end = values.len();
        let of = |param: &Param| {
            let start = end - param.var().elem_count();
            let values = values[start..end].to_vec();
            end = start;
            Tensor::from_vec(values, param.var().shape(), &Device::Cpu)
        };
        self.params.list().iter().map(of).collect()
    }
}

/// A network whose parameters are used by fused operations, by candle's, by both, or twice.
fn tangled(t: &[Tensor], xs: &Tensor) -> Result<Tensor> {
    let ys = linear(xs, &t[0], Some(&t[1]), Some(Activation::Relu))?;
    let ys = linear(&ys, &t[0].t()?.contiguous()?, None, None)?; // tied through candle
    let ys = linear(&linear(&ys, &t[2], None, None)?, &t[2], Some(&t[3]), None)?; // tied
    let ys = (ys.broadcast_mul(&t[3])? + relu(&t[3])?.sum_all()?.broadcast_as((5, 4))?)?;
    let ys = ys.matmul(&t[4])?;
    softmax_cross_entropy(&ys, &Tensor::new(&[0u32, 1, 2, 1, 0], &Device::Cpu)?)
}

const TANGLED: [&[usize]; 5] = [&[3, 4], &[3], &[4, 4], &[4], &[4, 3]];

#[test]
fn flat_gradients_are_those_of_candles_store() -> Result<()> {
    let mut flat = OneUnit::new(&TANGLED)?;
    let xs = uniform((5, 4), 9, -1.0, 1.0, DType::F32)?;
    let loss = tangled(&flat.tensors(), &xs)?;
    let store = loss.backward()?;
    for _ in 0..2 {
        flat.gradients.clear();
        flat.gradients.backward(&loss)?;
        for (param, gradient) in flat.params.list().iter().zip(flat.gradients()?) {
            let expected = store.get(param.tensor()).expect("every parameter is used");
            assert_close(&gradient, expected, 1e-6, 1e-6);
        }
    }
    Ok(())
}

#[test]
fn flat_gradients_add_up_until_they_are_cleared() -> Result<()> {
    let mut flat = OneUnit::new(&TANGLED)?;
    let batch = |seed| uniform((5, 4), seed, -1.0, 1.0, DType::F32);
    let (one, two) = (batch(1)?, batch(2)?);
    let sum = (tangled(&flat.tensors(), &one)? + tangled(&flat.tensors(), &two)?)?.backward()?;
    flat.gradients.backward(&tangled(&flat.tensors(), &one)?)?;
    flat.gradients.backward(&tangled(&flat.tensors(), &two)?)?;
    for (param, gradient) in flat.params.list().iter().zip(flat.gradients()?) {
        assert_close(&gradient, sum.get(param.tensor()).expect("used"), 1e-5, 1e-6);
    }
    Ok(())
}

#[test]
fn parameters_without_a_gradient_are_known() -> Result<()> {
    let mut flat = OneUnit::new(&[&[2, 3], &[2], &[2, 3]])?;
    let t = flat.tensors();
    let xs = uniform((4, 3), 1, -1.0, 1.0, DType::F32)?;
    flat.gradients.backward(&linear(&xs, &t[2], Some(&t[1]), None)?.sum_all()?)?;
    let without: Vec<&str> = flat.gradients.without_gradient().map(Param::name).collect();
    assert_eq!(without, ["p0"]);
    flat.gradients.zero_rest()?;
    assert_eq!(flat.gradients()?[0].to_vec2::<f32>()?, [[0.0; 3]; 2]);
    Ok(())
}

/// The identity with a backward that the test defines.
struct Identity<F>(F);

impl<F: Fn(&Tensor) -> Result<Option<Tensor>>> candle_core::CustomOp1 for Identity<F> {
    fn name(&self) -> &'static str {
        "identity"
    }

    fn cpu_fwd(
        &self,
        storage: &candle_core::CpuStorage,
        layout: &candle_core::Layout,
    ) -> Result<(candle_core::CpuStorage, candle_core::Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, dys: &Tensor) -> Result<Option<Tensor>> {
        (self.0)(dys)
    }
}

#[test]
fn nothing_is_left_of_a_backward_pass_that_failed() -> Result<()> {
    let mut flat = OneUnit::new(&[&[2]])?;
    let weight = &flat.tensors()[0];
    let ys = linear(
        &weight.abs()?.unsqueeze(0)?,
        &uniform((2, 2), 1, 0.5, 1.0, DType::F32)?,
        None,
        None,
    )?;
    let fails = AtomicBool::new(true);
    let late = ys.apply_op1(Identity(move |dys: &Tensor| {
        if fails.swap(false, Ordering::Relaxed) {
            candle_core::bail!("not yet")
        }
        Ok(Some(dys.clone()))
    }))?;
    let loss = (late + relu(&ys)?)?.sum_all()?;
    assert!(flat.gradients.backward(&loss).is_err());
    flat.gradients.clear();
    flat.gradients.backward(&loss)?;
    let again = flat.gradients()?;
    flat.gradients.clear();
    flat.gradients.backward(&loss)?;
    assert_close(&again[0], &flat.gradients()?[0], 0.0, 0.0);
    Ok(())
}

#[test]
fn a_cell_states_gradient_does_not_outlive_a_pass_that_failed() -> Result<()> {
    let mut flat = OneUnit::new(&[&[4, 2], &[4, 1]])?;
    let t = flat.tensors();
    let weights =
        RecurrentWeights { weight_ih: &t[0], weight_hh: &t[1], bias_ih: None, bias_hh: None };
    let (ys, c) = lstm(&uniform((3, 2, 2), 1, -1.0, 1.0, DType::F32)?, weights, None)?;
    // The pass reaches the cell state, then fails before it reaches the layer.
    let fails = ys.apply_op1(Identity(|_: &Tensor| candle_core::bail!("not today")))?;
    assert!(flat.gradients.backward(&(fails.sum_all()? + c.sum_all()?)?).is_err());
    let loss = ys.sum_all()?;
    flat.gradients.clear();
    flat.gradients.backward(&loss)?;
    let store = loss.backward()?;
    for (gradient, weight) in flat.gradients()?.iter().zip(&t) {
        assert_close(gradient, store.get(weight).expect("a gradient"), 0.0, 0.0);
    }
    Ok(())
}

#[test]
fn lent_gradients_come_back_from_a_panic() -> Result<()> {
    let mut flat = OneUnit::new(&[&[2]])?;
    let weight = flat.tensors()[0].clone();
    let loss =
        relu(&weight.apply_op1(Identity(|_: &Tensor| panic!("as a user's might")))?)?.sum_all()?;
    let run = std::panic::AssertUnwindSafe(|| flat.gradients.backward(&loss));
    assert!(std::panic::catch_unwind(run).is_err());
    assert_eq!(flat.gradients.buckets().count(), 1);
    // A plain backward on this thread fills candle's store again.
    assert!(relu(&weight)?.sum_all()?.backward()?.get(&weight).is_some());
    Ok(())
}

#[test]
fn a_long_chain_of_operations_is_dropped_without_a_deep_stack() -> Result<()> {
    let var = Var::from_tensor(&random(4, 1)?)?;
    let mut ys = relu(&var)?;
    for _ in 0..30_000 {
        ys = relu(&ys)?;
    }
    drop(ys);
    Ok(())
}

#[test]
fn a_range_that_does_not_fit_its_parameter_is_refused() -> Result<()> {
    let params = Params::new(0);
    let weight = params.root().param("weight", (1, 2), Init::ZEROS)?;
    let mut plan = BucketPlan::default();
    plan.push(0, 3);
    let bucket = FlatTensor::from_slice(&[0_f32; 3]);
    let error = FlatGradients::new(vec![weight], vec![plan], vec![bucket]).unwrap_err();
    assert!(error.to_string().contains("`weight`"), "{error}");
    Ok(())
}

#[test]
fn one_variable_as_two_parameters_is_refused() -> Result<()> {
    let var = Var::zeros(2, DType::F32, &Device::Cpu)?;
    // A store refuses it. Two stores may share a variable.
    let of =
        |name| Ok::<_, candelabrum_nn::Error>(Params::from_vars([(name, var.clone())])?.list());
    let params = [of("weight")?, of("tied")?].concat();
    let mut plan = BucketPlan::default();
    plan.push(0, 2);
    plan.push(1, 2);
    let bucket = FlatTensor::from_slice(&[0_f32; 4]);
    let error = FlatGradients::new(params, vec![plan], vec![bucket]).unwrap_err();
    assert!(error.to_string().contains("`weight` and `tied`"), "{error}");
    Ok(())
}
