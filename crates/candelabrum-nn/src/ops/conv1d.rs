//! 1-d convolution: a 2-d convolution of images with a single row, which have the same numbers in the same order.

use candle_core::{Result, Shape, Tensor};

use super::conv2d::{Conv2dConfig, Conv2dOp};
use super::sizes::sizes;
use crate::activation::Activation;
use crate::autograd::fused;

const NAME: &str = "conv1d";

/// The options of a 1-d convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Conv1dConfig {
    /// The step between two windows.
    pub stride: usize,
    /// Zeros added at both ends.
    pub padding: usize,
    /// The step between two elements of a window.
    pub dilation: usize,
    /// The number of independent convolutions into which the channels are split.
    pub groups: usize,
}

impl Default for Conv1dConfig {
    fn default() -> Self {
        Self { stride: 1, padding: 0, dilation: 1, groups: 1 }
    }
}

/// `act(conv(xs, weight) + bias)`, with the kernels of [`conv2d`](super::conv2d()).
///
/// # Shapes
///
/// `xs` (N, C, L), `weight` (O, C / groups, K), `bias` (O) -> (N, O, OL) with
/// `OL = (L + 2 padding - dilation (K - 1) - 1) / stride + 1`.
///
/// # Errors
///
/// If the shapes, dtypes or the configuration do not fit together, or the dtype is no float.
pub fn conv1d(
    xs: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    config: Conv1dConfig,
    activation: Option<Activation>,
) -> Result<Tensor> {
    let [batch, channels, length] = sizes(NAME, "input", xs.shape(), "(N, C, L)")?;
    let [outputs, per_group, kernel] =
        sizes(NAME, "weight", weight.shape(), "(out, C / groups, K)")?;
    let Conv1dConfig { stride, padding, dilation, groups } = config;
    let config = Conv2dConfig {
        stride: (1, stride),
        padding: (0, padding),
        dilation: (1, dilation),
        groups,
    };
    let images = Shape::from((batch, channels, 1, length));
    let kernels = Shape::from((outputs, per_group, 1, kernel));
    let (op, shape) = Conv2dOp::new(&images, &kernels, bias, config, activation)?;
    let (batch, outputs, _, length) = shape.dims4()?;
    fused::run(op, (batch, outputs, length), &[Some(xs), Some(weight), bias])
}
