//! Every backward against central differences, in f64, on small odd shapes.

use candelabrum_nn::Activation;
use candelabrum_nn::ops::{
    Conv2dConfig, Pool2dConfig, conv2d, dropout, linear, max_pool2d, relu, softmax_cross_entropy,
};
use candelabrum_testkit::{gradcheck, integers};
use candle_core::{Result, Tensor};

use crate::random;

const EPS: f64 = 1e-5;
const TOL: f64 = 1e-7;
const ACTIVATIONS: [Option<Activation>; 2] = [None, Some(Activation::Relu)];

fn check_conv2d(xs: [usize; 4], weight: [usize; 4], config: Conv2dConfig) -> Result<()> {
    let (xs, weight, bias) = (random(&xs[..], 1)?, random(&weight[..], 2)?, random(weight[0], 3)?);
    for activation in ACTIVATIONS {
        let with_bias = |t: &[Tensor]| conv2d(&t[0], &t[1], Some(&t[2]), config, activation);
        gradcheck(with_bias, &[xs.clone(), weight.clone(), bias.clone()], EPS, TOL)?;
        let without_bias = |t: &[Tensor]| conv2d(&t[0], &t[1], None, config, activation);
        gradcheck(without_bias, &[xs.clone(), weight.clone()], EPS, TOL)?;
    }
    Ok(())
}

#[test]
fn conv2d_on_odd_shapes() -> Result<()> {
    check_conv2d([2, 3, 5, 7], [4, 3, 3, 2], Conv2dConfig::default())?;
    check_conv2d([1, 1, 3, 3], [1, 1, 3, 3], Conv2dConfig::default())?;
    check_conv2d([3, 2, 4, 3], [5, 2, 1, 1], Conv2dConfig::default())
}

#[test]
fn conv2d_with_stride_padding_and_dilation() -> Result<()> {
    let config = Conv2dConfig::default();
    check_conv2d([2, 2, 7, 6], [3, 2, 3, 3], Conv2dConfig { stride: (2, 3), ..config })?;
    check_conv2d([2, 2, 4, 5], [3, 2, 3, 5], Conv2dConfig { padding: (2, 3), ..config })?;
    check_conv2d([2, 2, 7, 8], [3, 2, 3, 2], Conv2dConfig { dilation: (2, 3), ..config })?;
    let config =
        Conv2dConfig { stride: (3, 2), padding: (1, 2), dilation: (2, 1), ..Default::default() };
    check_conv2d([2, 1, 8, 5], [2, 1, 2, 3], config)
}

#[test]
fn conv2d_with_windows_that_lie_in_the_padding() -> Result<()> {
    let config = Conv2dConfig { padding: (4, 3), stride: (1, 2), ..Default::default() };
    check_conv2d([1, 2, 2, 3], [2, 2, 2, 2], config)
}

#[test]
fn conv2d_with_groups() -> Result<()> {
    let grouped = Conv2dConfig { groups: 3, padding: (1, 0), ..Default::default() };
    check_conv2d([2, 6, 4, 5], [3, 2, 3, 2], grouped)?;
    let depthwise = Conv2dConfig { groups: 4, stride: (2, 1), ..Default::default() };
    check_conv2d([2, 4, 5, 4], [8, 1, 2, 2], depthwise)?;
    let pointwise = Conv2dConfig { groups: 2, ..Default::default() };
    check_conv2d([2, 4, 3, 3], [6, 2, 1, 1], pointwise)
}

#[test]
fn conv2d_of_views() -> Result<()> {
    let xs = random((3, 5, 2, 6), 1)?;
    let weight = random((3, 2, 2, 4), 2)?;
    let bias = random((8, 2), 3)?;
    let f = |t: &[Tensor]| {
        let xs = t[0].transpose(1, 2)?; // (3, 2, 5, 6)
        let weight = t[1].permute((3, 1, 0, 2))?.narrow(2, 0, 2)?; // (4, 2, 2, 2)
        let bias = t[2].narrow(1, 1, 1)?.flatten_all()?.narrow(0, 4, 4)?;
        let ys = conv2d(&xs, &weight, Some(&bias), Conv2dConfig::default(), ACTIVATIONS[1])?;
        ys.transpose(0, 3)?.narrow(1, 1, 2)
    };
    gradcheck(f, &[xs, weight, bias], EPS, TOL)
}

#[test]
fn linear_on_odd_shapes() -> Result<()> {
    for dims in [&[3, 5][..], &[1, 5], &[2, 3, 5], &[5], &[2, 1, 2, 5]] {
        let (xs, weight, bias) = (random(dims, 1)?, random((7, 5), 2)?, random(7, 3)?);
        for activation in ACTIVATIONS {
            let with_bias = |t: &[Tensor]| linear(&t[0], &t[1], Some(&t[2]), activation);
            gradcheck(with_bias, &[xs.clone(), weight.clone(), bias.clone()], EPS, TOL)?;
            let without_bias = |t: &[Tensor]| linear(&t[0], &t[1], None, activation);
            gradcheck(without_bias, &[xs.clone(), weight.clone()], EPS, TOL)?;
        }
    }
    Ok(())
}

#[test]
fn linear_of_views() -> Result<()> {
    let f = |t: &[Tensor]| {
        let bias = t[2].narrow(0, 1, 3)?;
        linear(&t[0].t()?, &t[1].t()?, Some(&bias), ACTIVATIONS[1])?.t()
    };
    gradcheck(f, &[random((5, 4), 1)?, random((5, 3), 2)?, random(5, 3)?], EPS, TOL)
}

#[test]
fn max_pool2d_of_any_window() -> Result<()> {
    let configs = [
        Pool2dConfig::square(2),
        Pool2dConfig::square(3),
        Pool2dConfig { kernel: (3, 3), stride: (2, 2), padding: (1, 1) },
        Pool2dConfig { kernel: (3, 2), stride: (1, 3), padding: (0, 1) },
        Pool2dConfig { kernel: (2, 2), stride: (3, 4), padding: (0, 0) },
        Pool2dConfig { kernel: (1, 4), stride: (1, 1), padding: (0, 2) },
    ];
    for config in configs {
        gradcheck(|t| max_pool2d(&t[0], config), &[random((2, 3, 7, 5), 1)?], EPS, TOL)?;
    }
    Ok(())
}

#[test]
fn max_pool2d_of_views() -> Result<()> {
    let f = |t: &[Tensor]| {
        max_pool2d(&t[0].permute((3, 1, 2, 0))?, Pool2dConfig::square(2))?.transpose(2, 3)
    };
    gradcheck(f, &[random((4, 2, 5, 3), 1)?], EPS, TOL)
}

#[test]
fn relu_and_dropout_of_views() -> Result<()> {
    gradcheck(|t| relu(&t[0].t()?)?.t(), &[random((3, 5), 1)?], EPS, TOL)?;
    gradcheck(|t| dropout(&t[0].t()?, 0.4, 7)?.t(), &[random((9, 5), 1)?], EPS, TOL)
}

#[test]
fn softmax_cross_entropy_with_every_kind_of_target() -> Result<()> {
    let logits = random((5, 7), 1)?.affine(4.0, 0.0)?;
    let indices = integers(5, 2, 7)?;
    let probabilities = random((5, 7), 3)?.abs()?;
    for targets in [indices, probabilities] {
        gradcheck(
            |t| softmax_cross_entropy(&t[0], &targets),
            std::slice::from_ref(&logits),
            EPS,
            TOL,
        )?;
    }
    let logits_of_sequences = random((2, 3, 5), 5)?;
    for targets in [integers((2, 3), 6, 5)?, random((2, 3, 5), 7)?.abs()?] {
        let f = |t: &[Tensor]| softmax_cross_entropy(&t[0], &targets);
        gradcheck(f, std::slice::from_ref(&logits_of_sequences), EPS, TOL)?;
        let f = |t: &[Tensor]| softmax_cross_entropy(&t[0].transpose(0, 1)?, &targets);
        gradcheck(f, &[logits_of_sequences.transpose(0, 1)?.contiguous()?], EPS, TOL)?;
    }
    // The upstream gradient is a factor, the logits a view.
    let targets = integers(7, 4, 5)?;
    let f = |t: &[Tensor]| softmax_cross_entropy(&t[0].t()?, &targets)?.affine(-3.0, 1.0);
    gradcheck(f, &[logits], EPS, TOL)
}
