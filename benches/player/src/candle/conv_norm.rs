//! A convolution and its batch normalisation in candle.

use candle_core::{Module, Result};
use candle_nn::{Conv2dConfig, Func, VarBuilder, batch_norm, conv2d_no_bias, func};

/// A convolution with its inputs, outputs and kernel, and its normalisation. The padding keeps the
/// size at stride 1.
pub(super) fn conv_norm(
    [inputs, outputs, kernel]: [usize; 3],
    stride: usize,
    groups: usize,
    [conv, norm]: [VarBuilder<'_>; 2],
) -> Result<Func<'static>> {
    let config = Conv2dConfig { padding: kernel / 2, stride, groups, ..Default::default() };
    let conv = conv2d_no_bias(inputs, outputs, kernel, config, conv)?;
    let norm = batch_norm(outputs, 1e-5, norm)?;
    Ok(func(move |xs| norm.forward_train(&conv.forward(xs)?)))
}
