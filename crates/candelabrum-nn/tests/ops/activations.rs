//! Activations, alone and fused into layers.

use candelabrum_nn::Activation;
use candelabrum_nn::ops::{
    Conv2dConfig, conv2d, gelu, gelu_tanh, linear, relu, relu6, sigmoid, silu, tanh,
};
use candelabrum_testkit::assert_close;
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
fn linear_and_conv2d_fuse_every_activation() -> Result<()> {
    let config = Conv2dConfig { padding: (1, 0), ..Default::default() };
    for &activation in Activation::ALL {
        let inputs = [random((3, 5), 1)?, random((4, 5), 2)?, random(4, 3)?];
        let layer = |activation| linear(&inputs[0], &inputs[1], Some(&inputs[2]), activation);
        assert_close(&layer(Some(activation))?, &apply(activation, &layer(None)?)?, 0.0, 0.0);

        let inputs = [random((2, 2, 4, 5), 1)?, random((3, 2, 3, 2), 2)?, random(3, 3)?];
        let layer =
            |activation| conv2d(&inputs[0], &inputs[1], Some(&inputs[2]), config, activation);
        assert_close(&layer(Some(activation))?, &apply(activation, &layer(None)?)?, 1e-15, 1e-15);
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
