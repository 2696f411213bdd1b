//! Activations, alone and fused into layers.

use candelabrum_nn::Activation;
use candelabrum_nn::ops::{
    Conv2dConfig, conv2d, gelu, gelu_tanh, linear, relu, relu6, sigmoid, silu, tanh,
};
use candelabrum_testkit::{assert_close, gradcheck};
use candle_core::{DType, Device, Result, Tensor};

use crate::behaviour::message;
use crate::golden::{cases, check};
use crate::random;

pub(crate) fn apply(activation: Activation, xs: &Tensor) -> Result<Tensor> {
    match activation {
        Activation::Relu => relu(xs),
        Activation::Relu6 => relu6(xs),
        Activation::Gelu => gelu(xs),
        Activation::GeluTanh => gelu_tanh(xs),
        Activation::Silu => silu(xs),
        Activation::Sigmoid => sigmoid(xs),
        Activation::Tanh => tanh(xs),
        _ => panic!("an activation without a test: {activation}"),
    }
}

#[test]
fn activations_are_pytorchs_at_zeros_infinities_and_nan() -> Result<()> {
    for case in cases("activations.safetensors") {
        match case.name.strip_prefix("linear_") {
            None => {
                let activation = case.name.parse().expect("cases have the names of activations");
                check(&case, &["xs"], |t| apply(activation, &t["xs"]))?;
            }
            Some(name) => {
                let activation = Some(name.parse().expect("cases have the names of activations"));
                check(&case, &["xs", "weight", "bias"], |t| {
                    linear(&t["xs"], &t["weight"], t.get("bias"), activation)
                })?;
            }
        }
    }
    Ok(())
}

#[test]
fn every_activation_has_its_derivative_also_on_views() -> Result<()> {
    for &activation in Activation::ALL {
        let xs = random((3, 7), 1)?.affine(9.0, 0.0)?; // also above 6, where relu6 is flat
        gradcheck(|t| apply(activation, &t[0]), std::slice::from_ref(&xs), 1e-5, 1e-7)?;
        let of_view = |t: &[Tensor]| apply(activation, &t[0].t()?.narrow(0, 1, 4)?)?.t();
        gradcheck(of_view, &[xs], 1e-5, 1e-7)?;
    }
    Ok(())
}

#[test]
fn linear_and_conv2d_fuse_every_activation() -> Result<()> {
    let config = Conv2dConfig { padding: (1, 0), ..Default::default() };
    for &activation in Activation::ALL {
        let inputs = [random((3, 5), 1)?, random((4, 5), 2)?, random(4, 3)?];
        let with_bias = |t: &[Tensor]| linear(&t[0], &t[1], Some(&t[2]), Some(activation));
        gradcheck(with_bias, &inputs, 1e-5, 1e-7)?;
        let without_bias = |t: &[Tensor]| linear(&t[0], &t[1], None, Some(activation));
        gradcheck(without_bias, &inputs[..2], 1e-5, 1e-7)?;
        let apart = apply(activation, &linear(&inputs[0], &inputs[1], Some(&inputs[2]), None)?)?;
        assert_close(&with_bias(&inputs)?, &apart, 0.0, 0.0);

        let inputs = [random((2, 2, 4, 5), 1)?, random((3, 2, 3, 2), 2)?, random(3, 3)?];
        let with_bias = |t: &[Tensor]| conv2d(&t[0], &t[1], Some(&t[2]), config, Some(activation));
        gradcheck(with_bias, &inputs, 1e-5, 1e-7)?;
        let without = conv2d(&inputs[0], &inputs[1], Some(&inputs[2]), config, None)?;
        assert_close(&with_bias(&inputs)?, &apply(activation, &without)?, 1e-15, 1e-15);
    }
    Ok(())
}

#[test]
fn other_dtypes_are_refused_by_name() -> Result<()> {
    let ints = Tensor::zeros(3, DType::U32, &Device::Cpu)?;
    for &activation in Activation::ALL {
        let expected = format!("unsupported dtype U32 for op {activation}");
        assert_eq!(message(apply(activation, &ints)), expected);
    }
    Ok(())
}

#[test]
fn empty_tensors_stay_empty() -> Result<()> {
    let xs = Tensor::zeros((0, 3), DType::F32, &Device::Cpu)?;
    for &activation in Activation::ALL {
        assert_eq!(apply(activation, &xs)?.dims(), [0, 3]);
    }
    Ok(())
}
