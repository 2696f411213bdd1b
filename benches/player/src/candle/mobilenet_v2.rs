//! torchvision's `mobilenet_v2` in candle, without dropout.

use candle_core::{D, Module, Result};
use candle_nn::{Func, VarBuilder, func, linear};

use super::conv_norm::conv_norm;

/// By how many times a block widens its input, its outputs, the number of such blocks, and the stride
/// of the first of them.
const STAGES: [[usize; 4]; 7] = [
    [1, 16, 1, 1],
    [6, 24, 2, 2],
    [6, 32, 3, 2],
    [6, 64, 4, 2],
    [6, 96, 3, 1],
    [6, 160, 3, 2],
    [6, 320, 1, 1],
];

pub(crate) fn mobilenet_v2(vb: &VarBuilder<'_>, classes: usize) -> Result<Func<'static>> {
    let features = vb.pp("features");
    let mut layers = vec![rectified([3, 32, 3], 2, 1, &features.pp(0))?];
    let mut inputs = 32;
    for [expansion, outputs, count, stride] in STAGES {
        for index in 0..count {
            let stride = if index == 0 { stride } else { 1 };
            let vb = features.pp(layers.len()).pp("conv");
            layers.push(block([inputs, outputs], expansion, stride, &vb)?);
            inputs = outputs;
        }
    }
    layers.push(rectified([inputs, 1280, 1], 1, 1, &features.pp(layers.len()))?);
    let classifier = linear(1280, classes, vb.pp("classifier").pp(1))?;
    Ok(func(move |xs| {
        let ys = layers.iter().try_fold(xs.clone(), |ys, layer| layer.forward(&ys))?;
        classifier.forward(&ys.mean(D::Minus1)?.mean(D::Minus1)?)
    }))
}

fn block(
    [inputs, outputs]: [usize; 2],
    expansion: usize,
    stride: usize,
    vb: &VarBuilder<'_>,
) -> Result<Func<'static>> {
    let wide = expansion * inputs;
    let mut layers = Vec::new();
    if expansion != 1 {
        layers.push(rectified([inputs, wide, 1], 1, 1, &vb.pp(0))?);
    }
    layers.push(rectified([wide, wide, 3], stride, wide, &vb.pp(layers.len()))?);
    let narrow = layers.len();
    layers.push(conv_norm([wide, outputs, 1], 1, 1, [vb.pp(narrow), vb.pp(narrow + 1)])?);
    let is_residual = stride == 1 && inputs == outputs;
    Ok(func(move |xs| {
        let ys = layers.iter().try_fold(xs.clone(), |ys, layer| layer.forward(&ys))?;
        if is_residual { ys + xs } else { Ok(ys) }
    }))
}

/// A convolution, its normalisation, and ReLU6.
fn rectified(
    sizes: [usize; 3],
    stride: usize,
    groups: usize,
    vb: &VarBuilder<'_>,
) -> Result<Func<'static>> {
    let layer = conv_norm(sizes, stride, groups, [vb.pp(0), vb.pp(1)])?;
    Ok(func(move |xs| layer.forward(xs)?.clamp(0_f32, 6_f32)))
}
