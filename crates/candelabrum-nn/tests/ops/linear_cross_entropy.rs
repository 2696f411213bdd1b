//! The last layer of a language model with its loss, and gated units.

use candelabrum_nn::layers::Linear;
use candelabrum_nn::ops::{
    CrossEntropyConfig, linear_cross_entropy, silu_mul, softmax_cross_entropy_with, swiglu,
};
use candelabrum_nn::{Activation, Param, Params};
use candelabrum_testkit::{assert_close, integers};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Module, Result, Tensor, Var};

use crate::behaviour::message;
use crate::random;

#[test]
fn the_loss_of_half_precision_is_in_f32() -> Result<()> {
    let labels = integers((2, 3), 9, 5)?;
    let config = CrossEntropyConfig::default();
    let [xs, weight, bias] = [random((2, 3, 4), 1)?, random((5, 4), 2)?, random(5, 3)?];
    for dtype in [DType::F16, DType::BF16] {
        let half = |tensor: &Tensor| Var::from_tensor(&tensor.to_dtype(dtype)?);
        let (xs, weight, bias) = (half(&xs)?, half(&weight)?, half(&bias)?);
        let loss = linear_cross_entropy(&xs, &weight, Some(&bias), &labels, config)?;
        assert_eq!(loss.dtype(), DType::F32);
        let [wide_xs, wide_weight, wide_bias] =
            [&xs, &weight, &bias].map(|half| half.to_dtype(DType::F32));
        let wide =
            linear_cross_entropy(&wide_xs?, &wide_weight?, Some(&wide_bias?), &labels, config)?;
        assert_close(&loss, &wide, 0.0, 0.0);
        let grads = loss.backward()?;
        for var in [&xs, &weight, &bias] {
            assert_eq!(grads.get(var).expect("a gradient").dtype(), dtype);
        }
    }
    Ok(())
}

#[test]
fn a_layer_gives_its_weights_and_computes_its_loss() -> Result<()> {
    let params = Params::on(0, DType::F64, &Device::Cpu);
    let layer = Linear::new(&params.root().pp("head"), 5);
    assert!(layer.weight().is_none() && layer.bias().is_none(), "no input was seen");
    let (xs, labels) = (random((2, 3, 4), 1)?, integers((2, 3), 2, 5)?);
    let config = CrossEntropyConfig { label_smoothing: 0.1, ignore_index: None };
    let loss = layer.cross_entropy(&xs, &labels, config)?;
    let plain = softmax_cross_entropy_with(&layer.forward(&xs)?, &labels, config)?;
    assert_close(&loss, &plain, 1e-12, 0.0);
    let weights = [layer.weight(), layer.bias()].map(|param| param.expect("an input was seen"));
    assert_eq!(weights.map(Param::name), ["head.weight", "head.bias"]);
    let (grads, plain) = (loss.backward()?, plain.backward()?);
    for param in weights {
        let gradient = |grads: &GradStore| grads.get(param.var()).expect("a gradient").clone();
        assert_close(&gradient(&grads), &gradient(&plain), 1e-12, 1e-14);
    }

    let evaluated = params.in_mode(false, || layer.cross_entropy(&xs, &labels, config))?;
    assert_close(&evaluated, &loss, 1e-12, 0.0);
    assert!(!evaluated.track_op(), "an evaluation computes gradients");

    let bare = Linear::new(&params.root().pp("bare"), 5).no_bias();
    let loss = bare.cross_entropy(&xs, &labels, config)?;
    let plain = softmax_cross_entropy_with(&bare.forward(&xs)?, &labels, config)?;
    assert_close(&loss, &plain, 1e-12, 0.0);
    assert!(bare.weight().is_some() && bare.bias().is_none());
    let active = Linear::new(&params.root().pp("active"), 5).activation(Activation::Relu);
    let error = message(active.cross_entropy(&xs, &labels, config));
    assert_eq!(error, "layer `active`: the outputs of relu are no logits");
    Ok(())
}

#[test]
fn losses_that_do_not_fit_are_refused() -> Result<()> {
    let (xs, weight) = (random((3, 4), 1)?, random((5, 4), 2)?);
    let config = CrossEntropyConfig::default();
    let labels = |labels: &[i64]| Tensor::new(labels, &Device::Cpu);
    let run = |labels: &Tensor| message(linear_cross_entropy(&xs, &weight, None, labels, config));
    assert!(run(&labels(&[0, 5, 1])?).contains("class 5 in row 1, but there are 5 classes"));
    assert!(run(&labels(&[0, 1])?).contains("labels of shape [2] and dtype I64, expected [3]"));
    let probabilities = random((3, 5), 3)?;
    assert!(run(&probabilities).contains("labels of shape [3, 5] and dtype F64"));
    let bias = random(4, 3)?;
    let result = linear_cross_entropy(&xs, &weight, Some(&bias), &labels(&[0; 3])?, config);
    assert_eq!(message(result), "linear_cross_entropy: bias of shape [4] for 5 classes");
    let result = linear_cross_entropy(&xs.t()?, &weight, None, &labels(&[0; 4])?, config);
    assert!(message(result).contains("input of shape [4, 3] for a weight of [5, 4]"));
    Ok(())
}

#[test]
fn gates_that_do_not_fit_are_refused() -> Result<()> {
    let different = message(silu_mul(&random((2, 3), 1)?, &random((3, 2), 1)?));
    assert_eq!(different, "silu_mul: gates of shape [2, 3] for [3, 2]");
    let odd = message(swiglu(&random((2, 3), 1)?));
    assert_eq!(odd, "swiglu: rows of 3 elements have no halves, input of shape [2, 3]");
    Ok(())
}
