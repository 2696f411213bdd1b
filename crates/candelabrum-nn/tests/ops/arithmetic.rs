//! Sums and products with broadcasting, multiples, and masks.

use candelabrum_nn::ops::{add, masked_fill, mul, scale, softmax};
use candelabrum_nn::{Activation, Init, Params};
use candelabrum_testkit::{assert_close, uniform};
use candle_core::{DType, Device, Result, Tensor, Var};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::behaviour::message;
use crate::golden::{activation, cases, check};
use crate::random;

/// Pairs of shapes that fit.
pub(crate) const PAIRS: [(&[usize], &[usize]); 11] = [
    (&[2, 3, 5], &[5]),
    (&[2, 3, 5], &[3, 5]),
    (&[2, 3, 5], &[2, 1, 5]),
    (&[2, 3, 5], &[3, 1]),
    (&[2, 3, 5], &[1, 1, 1]),
    (&[5], &[2, 3, 5]),
    (&[2, 1, 5], &[3, 1]),
    (&[4, 1], &[1, 3]),
    (&[2, 3, 4, 2], &[3, 1, 2]),
    (&[], &[3, 2]),
    (&[1], &[]),
];

#[test]
fn masks_above_255_are_not_0() -> Result<()> {
    let mask = Tensor::new(&[256_i64, 0, -1], &Device::Cpu)?;
    let ys = masked_fill(&Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?, &mask, 9.0)?;
    assert_eq!(ys.to_vec1::<f32>()?, [9.0, 2.0, 9.0]);
    Ok(())
}

#[test]
fn causal_attention_ignores_the_future() -> Result<()> {
    let mask: Vec<u8> = (0..9).map(|i| u8::from(i % 3 > i / 3)).collect();
    let mask = Tensor::from_vec(mask, (3, 3), &Device::Cpu)?;
    let scores = Var::from_tensor(&random((2, 3, 3), 1)?)?;
    let weights = softmax(&masked_fill(&scores, &mask, f64::NEG_INFINITY)?)?;
    let grads = weights.sqr()?.sum_all()?.backward()?;
    let gradient = grads.get(&scores).expect("a gradient").to_vec3::<f64>()?;
    for (of_batch, weights) in gradient.iter().zip(weights.to_vec3::<f64>()?) {
        for (row, (gradient, weights)) in of_batch.iter().zip(weights).enumerate() {
            assert!(weights[row + 1..].iter().chain(&gradient[row + 1..]).all(|x| *x == 0.0));
            assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        }
    }
    Ok(())
}

#[test]
fn arithmetic_is_pytorchs() -> Result<()> {
    for case in cases("add_broadcast.safetensors") {
        let [relu] = case.config()?[..] else { panic!("one number") };
        check(&case, &["xs", "ys_in"], |t| add(&t["xs"], &t["ys_in"], activation(relu)))?;
    }
    for case in cases("mul.safetensors") {
        check(&case, &["xs", "ys_in"], |t| mul(&t["xs"], &t["ys_in"]))?;
    }
    for case in cases("scale.safetensors") {
        let factor = case.tensors["factor"].to_scalar::<f64>()?;
        check(&case, &["xs"], |t| scale(&t["xs"], factor))?;
    }
    for case in cases("masked_fill.safetensors") {
        let value = case.tensors["value"].to_scalar::<f64>()?;
        check(&case, &["xs"], |t| masked_fill(&t["xs"], &case.tensors["mask"], value))?;
    }
    Ok(())
}

#[test]
fn parameters_as_operands_report_their_gradients() -> Result<()> {
    let params = Params::new(1);
    let gain = params.root().param("gain", 5, Init::Normal { std: 1.0 })?;
    let shift = params.root().param("shift", (3, 1), Init::Normal { std: 1.0 })?;
    let mut gradients = crate::hooks::each_its_own_unit(&params)?;
    let xs = uniform((2, 3, 5), 3, -1.0, 1.0, DType::F32)?;
    let forward = || {
        let ys = add(&mul(&xs, gain.tensor())?, shift.tensor(), Some(Activation::Tanh))?;
        mul(&ys, gain.tensor())?.sum_all()
    };
    let expected = forward()?.backward()?;
    for _ in 0..2 {
        gradients.clear();
        gradients.backward(&forward()?)?;
        for (number, param) in params.list().iter().enumerate() {
            let gradient = gradients.bucket(number)?.to_vec::<f32>()?;
            let gradient = Tensor::from_vec(gradient, param.var().shape(), &Device::Cpu)?;
            let expected = expected.get(param.tensor()).expect("a gradient");
            assert_close(&gradient, expected, 1e-6, 1e-6);
        }
        // The shift is used last, but the gain's first use comes before it.
        assert_eq!(gradients.ready_order(), [1, 0]);
    }
    Ok(())
}

#[test]
fn a_constant_factor_gets_no_gradient() -> Result<()> {
    let (var, constant) = (Var::from_tensor(&random((2, 3), 1)?)?, random(3, 2)?);
    for product in [mul(&var, &constant)?, mul(&constant, &var)?] {
        let grads = product.sum_all()?.backward()?;
        assert!(grads.get(&constant).is_none());
        let gradient = grads.get(&var).expect("a gradient");
        assert_close(gradient, &constant.broadcast_as((2, 3))?, 1e-12, 1e-12);
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_an_error() -> Result<()> {
    let xs = random((2, 3), 1)?;
    let error = message(mul(&xs, &random(2, 2)?));
    assert_eq!(error, "shape mismatch in mul, lhs: [2, 3], rhs: [2]");
    assert_eq!(
        message(masked_fill(&xs, &xs, 0.0)),
        "masked_fill: a mask of dtype F64, expected u8, u32 or i64"
    );
    let mask = Tensor::zeros((4, 2, 3), DType::U8, &Device::Cpu)?;
    assert_eq!(
        message(masked_fill(&xs, &mask, 0.0)),
        "masked_fill: a mask of shape [4, 2, 3] for [2, 3]"
    );
    assert_eq!(message(mul(&xs, &xs.to_dtype(DType::F32)?)), "mul: inputs of dtype F64 and F32");
    assert_eq!(message(scale(&mask, 2.0)), "unsupported dtype U8 for op scale");
    Ok(())
}

/// A shape, and which of its dimensions each operand has.
fn operands() -> impl Strategy<Value = (Vec<(usize, bool, bool)>, [usize; 2])> {
    let dims = prop::collection::vec((1..5_usize, any::<bool>(), any::<bool>()), 0..5);
    (dims, [0..3_usize, 0..3])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn broadcasting_is_candles((dims, missing) in operands(), product in any::<bool>()) {
        // A dimension is missing only where it would have the length 1.
        let shape = |operand: usize| -> Vec<usize> {
            let len = |&(len, left, right): &(usize, bool, bool)| {
                if [left, right][operand] { len } else { 1 }
            };
            let shape: Vec<usize> = dims.iter().map(len).collect();
            let ones = shape.iter().take_while(|len| **len == 1).count();
            shape[ones.min(missing[operand])..].to_vec()
        };
        let run = |ours: bool| -> Result<[Tensor; 3]> {
            let left = Var::from_tensor(&random(shape(0), 1)?)?;
            let right = Var::from_tensor(&random(shape(1), 2)?)?;
            let zs = match (ours, product) {
                (true, true) => mul(&left, &right)?,
                (true, false) => add(&left, &right, None)?,
                (false, true) => left.broadcast_mul(&right)?,
                (false, false) => left.broadcast_add(&right)?,
            };
            let grads = (&zs * random(zs.shape(), 3)?)?.sum_all()?.backward()?;
            let gradient = |var: &Var| grads.get(var).expect("a gradient").clone();
            Ok([zs.detach(), gradient(&left), gradient(&right)])
        };
        let fail = |error: candle_core::Error| TestCaseError::fail(error.to_string());
        let (ours, candles) = (run(true).map_err(fail)?, run(false).map_err(fail)?);
        for (ours, candles) in ours.iter().zip(&candles) {
            assert_close(ours, candles, 1e-12, 1e-12);
        }
    }
}
