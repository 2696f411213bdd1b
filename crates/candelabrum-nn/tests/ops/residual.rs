//! The residual sum.

use candelabrum_nn::Activation;
use candelabrum_nn::ops::add;
use candelabrum_testkit::uniform;
use candle_core::{DType, Device, Result, Tensor, Var};

use crate::behaviour::message;
use crate::golden::{activation, cases, check};
use crate::random;

const RELU: Option<Activation> = Some(Activation::Relu);

#[test]
fn add_is_pytorchs_at_exact_zeros_too() -> Result<()> {
    for case in cases("add.safetensors") {
        let [relu] = case.config()?[..] else { panic!("one number") };
        check(&case, &["xs", "ys_in"], |t| add(&t["xs"], &t["ys_in"], activation(relu)))?;
    }
    Ok(())
}

#[test]
fn a_frozen_summand_gets_no_gradient() -> Result<()> {
    let [xs, ys] = [1, 2].map(|seed| uniform((2, 3), seed, -1.0, 1.0, DType::F32));
    let (var, ys) = (Var::from_tensor(&xs?)?, ys?);
    for sum in [add(&var, &ys, RELU)?, add(&ys, &var, RELU)?] {
        let grads = sum.sum_all()?.backward()?;
        assert!(grads.get(&ys).is_none());
        let expected = sum.gt(0.0)?.to_dtype(DType::F32)?;
        let grad = grads.get(&var).expect("the variable has a gradient");
        assert_eq!(grad.to_vec2::<f32>()?, expected.to_vec2::<f32>()?);
    }
    Ok(())
}

#[test]
fn summands_must_be_alike() -> Result<()> {
    let xs = random((2, 3), 1)?;
    let error = message(add(&xs, &random(2, 2)?, None));
    assert_eq!(error, "shape mismatch in add, lhs: [2, 3], rhs: [2]");
    let other = xs.to_dtype(DType::F32)?;
    assert_eq!(message(add(&xs, &other, None)), "add: inputs of dtype F64 and F32");
    let ints = Tensor::zeros(2, DType::U8, &Device::Cpu)?;
    assert_eq!(message(add(&ints, &ints, None)), "unsupported dtype U8 for op add");
    Ok(())
}
