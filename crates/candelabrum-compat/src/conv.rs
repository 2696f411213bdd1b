//! `candle_nn::conv` with faster convolutions in one and two dimensions. The transposed ones are candle's.

use candelabrum_nn::ops;
use candle_core::{Module, Result, Tensor};
use candle_nn::{BatchNorm, VarBuilder};

pub use candle_nn::conv::*;

/// A convolution over sequences.
#[derive(Clone, Debug)]
pub struct Conv1d(candle_nn::Conv1d);

impl Conv1d {
    /// The layer of a `weight` (out, in / groups, width) and a `bias` (out). The algorithm for cuDNN that `config` may
    /// name is not used.
    pub fn new(weight: Tensor, bias: Option<Tensor>, config: Conv1dConfig) -> Self {
        Self(candle_nn::Conv1d::new(weight, bias, config))
    }

    /// Stride, padding, dilation and groups.
    pub fn config(&self) -> &Conv1dConfig {
        self.0.config()
    }

    /// The weight, of shape (out, in / groups, width).
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// The bias, of shape (out).
    pub fn bias(&self) -> Option<&Tensor> {
        self.0.bias()
    }
}

impl Module for Conv1d {
    /// (N, in, length) -> (N, out, length)
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let &Conv1dConfig { padding, stride, dilation, groups, .. } = self.config();
        let config = ops::Conv1dConfig { padding, stride, dilation, groups };
        ops::conv1d(xs, self.weight(), self.bias(), config, None)
    }
}

/// A convolution over images.
#[derive(Clone, Debug)]
pub struct Conv2d(candle_nn::Conv2d);

impl Conv2d {
    /// The layer of a `weight` (out, in / groups, height, width) and a `bias` (out). The algorithm for cuDNN that
    /// `config` may name is not used.
    pub fn new(weight: Tensor, bias: Option<Tensor>, config: Conv2dConfig) -> Self {
        Self(candle_nn::Conv2d::new(weight, bias, config))
    }

    /// Stride, padding, dilation and groups.
    pub fn config(&self) -> &Conv2dConfig {
        self.0.config()
    }

    /// The weight, of shape (out, in / groups, height, width).
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// The bias, of shape (out).
    pub fn bias(&self) -> Option<&Tensor> {
        self.0.bias()
    }

    /// This layer and the batch normalisation behind it as one layer, for inference.
    ///
    /// # Errors
    /// A normalisation without a weight and a bias.
    pub fn absorb_bn(&self, bn: &BatchNorm) -> Result<Self> {
        self.0.absorb_bn(bn).map(Self)
    }
}

impl Module for Conv2d {
    /// (N, in, H, W) -> (N, out, H, W)
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let &Conv2dConfig { padding, stride, dilation, groups, .. } = self.config();
        let config = ops::Conv2dConfig {
            padding: (padding, padding),
            stride: (stride, stride),
            dilation: (dilation, dilation),
            groups,
        };
        ops::conv2d(xs, self.weight(), self.bias(), config, None)
    }
}

/// A layer with the parameters `weight` and `bias`.
///
/// # Errors
/// Those of the builder.
pub fn conv1d(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    config: Conv1dConfig,
    vb: VarBuilder<'_>,
) -> Result<Conv1d> {
    candle_nn::conv1d(in_channels, out_channels, kernel_size, config, vb).map(Conv1d)
}

/// A layer with the parameter `weight`.
///
/// # Errors
/// Those of the builder.
pub fn conv1d_no_bias(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    config: Conv1dConfig,
    vb: VarBuilder<'_>,
) -> Result<Conv1d> {
    candle_nn::conv1d_no_bias(in_channels, out_channels, kernel_size, config, vb).map(Conv1d)
}

/// A layer with the parameters `weight` and `bias`.
///
/// # Errors
/// Those of the builder.
pub fn conv2d(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    config: Conv2dConfig,
    vb: VarBuilder<'_>,
) -> Result<Conv2d> {
    candle_nn::conv2d(in_channels, out_channels, kernel_size, config, vb).map(Conv2d)
}

/// A layer with the parameter `weight`.
///
/// # Errors
/// Those of the builder.
pub fn conv2d_no_bias(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    config: Conv2dConfig,
    vb: VarBuilder<'_>,
) -> Result<Conv2d> {
    candle_nn::conv2d_no_bias(in_channels, out_channels, kernel_size, config, vb).map(Conv2d)
}
