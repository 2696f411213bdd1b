//! The residual sum.

use candelabrum_nn::Activation;
use candelabrum_nn::ops::{add, relu};
use candelabrum_testkit::{gradcheck, uniform};
use candle_core::{DType, Device, Result, Tensor, Var};

use crate::behaviour::message;
use crate::golden::{activation, cases, check};
use crate::random;

const RELU: Option<Activation> = Some(Activation::Relu);

#[test]
fn add_of_any_shape_and_of_views() -> Result<()> {
    for activation in [None, RELU] {
        for dims in [&[3, 5][..], &[2, 3, 4, 1], &[]] {
            let inputs = [random(dims, 1)?, random(dims, 2)?];
            gradcheck(|t| add(&t[0], &t[1], activation), &inputs, 1e-5, 1e-7)?;
        }
        let f = |t: &[Tensor]| add(&t[0].t()?, &t[1].narrow(1, 1, 2)?, activation)?.t();
        gradcheck(f, &[random((2, 3), 1)?, random((3, 4), 2)?], 1e-5, 1e-7)?;
        // The two gradients of one tensor that is added to itself are summed.
        gradcheck(|t| add(&t[0], &t[0], activation), &[random(4, 1)?], 1e-5, 1e-7)?;
        let through = |t: &[Tensor]| {
            let hidden = relu(&t[0])?;
            add(&hidden, &hidden, activation)
        };
        gradcheck(through, &[random(4, 1)?], 1e-5, 1e-7)?;
    }
    Ok(())
}

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

#[test]
fn large_sums_are_those_of_one_thread() -> Result<()> {
    let run = |threads: usize| -> Result<Vec<f32>> {
        let step = || -> Result<Vec<f32>> {
            let xs = Var::from_tensor(&uniform((7, 9001), 1, -1.0, 1.0, DType::F32)?)?;
            let ys = Var::from_tensor(&uniform((7, 9001), 2, -1.0, 1.0, DType::F32)?)?;
            let sum = add(&xs, &ys, RELU)?;
            let grads = sum.sqr()?.sum_all()?.backward()?;
            let mut values = sum.flatten_all()?.to_vec1::<f32>()?;
            for var in [&xs, &ys] {
                let grad = grads.get(var).expect("every variable has a gradient");
                values.extend(grad.flatten_all()?.to_vec1::<f32>()?);
            }
            Ok(values)
        };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.expect("a thread pool").install(step)
    };
    let expected = run(1)?;
    let (sum, gradients) = expected.split_at(7 * 9001);
    assert!(sum.iter().zip(gradients).all(|(sum, gradient)| *gradient == 2.0 * sum));
    for threads in [2, 5] {
        assert_eq!(run(threads)?, expected, "{threads} threads");
    }
    Ok(())
}
