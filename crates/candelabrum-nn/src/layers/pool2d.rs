//! 2-D pooling.

use candle_core::{Module, Result, Tensor};

use crate::Scope;
use crate::ops::{self, Pool2dConfig};

/// `(N, C, H, W) -> (N, C, H', W')`: the maximum of each window.
///
/// The first maximum of a window, row by row, gets the whole gradient, as in PyTorch.
#[derive(Debug)]
pub struct MaxPool2d {
    scope: Option<Scope>,
    config: Pool2dConfig,
}

impl MaxPool2d {
    /// Windows of `kernel` × `kernel` that do not overlap.
    pub fn new(kernel: usize) -> Self {
        let config =
            Pool2dConfig { kernel: (kernel, kernel), stride: (kernel, kernel), padding: (0, 0) };
        Self { scope: None, config }
    }

    builder! { layer:
        /// Step of the window, in pixels.
        stride(stride: usize) => layer.config.stride = (stride, stride);
        /// Padding on each side, in pixels, which is never the maximum. At most half the kernel.
        padding(padding: usize) => layer.config.padding = (padding, padding);
        /// Shows the layer in the model's summary under the name of `scope`.
        named(scope: &Scope) => layer.scope = Some(scope.clone());
    }
}

impl Module for MaxPool2d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = ops::max_pool2d(xs, self.config)?;
        if let Some(scope) = &self.scope {
            let (height, width) = self.config.kernel;
            scope.trace(&format!("MaxPool2d {height}×{width}"), &ys);
        }
        Ok(ys)
    }
}

/// `(N, C, H, W) -> (N, C, H', W')`: the mean of each window, as in PyTorch.
#[derive(Debug)]
pub struct AvgPool2d {
    scope: Option<Scope>,
    config: Pool2dConfig,
    count_include_pad: bool,
}

impl AvgPool2d {
    /// Windows of `kernel` × `kernel` that do not overlap.
    pub fn new(kernel: usize) -> Self {
        Self { scope: None, config: Pool2dConfig::square(kernel), count_include_pad: true }
    }

    builder! { layer:
        /// Step of the window, in pixels.
        stride(stride: usize) => layer.config.stride = (stride, stride);
        /// Zeros on each side, in pixels. At most half the kernel.
        padding(padding: usize) => layer.config.padding = (padding, padding);
        /// Takes the mean over the pixels of the image only, PyTorch's `count_include_pad=False`.
        without_padding_in_mean() => layer.count_include_pad = false;
        /// Shows the layer in the model's summary under the name of `scope`.
        named(scope: &Scope) => layer.scope = Some(scope.clone());
    }
}

impl Module for AvgPool2d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = ops::avg_pool2d(xs, self.config, self.count_include_pad)?;
        if let Some(scope) = &self.scope {
            let (height, width) = self.config.kernel;
            scope.trace(&format!("AvgPool2d {height}×{width}"), &ys);
        }
        Ok(ys)
    }
}

/// `(N, C, H, W) -> (N, C, OH, OW)`: the means of as many windows as the result has pixels, whatever the size of
/// the images, with PyTorch's windows ([`ops::adaptive_avg_pool2d`]).
#[derive(Clone, Debug)]
pub struct AdaptiveAvgPool2d {
    scope: Option<Scope>,
    out: (usize, usize),
}

impl AdaptiveAvgPool2d {
    /// A result of `out` × `out` pixels.
    pub fn new(out: usize) -> Self {
        Self { scope: None, out: (out, out) }
    }

    builder! { layer:
        /// Shows the layer in the model's summary under the name of `scope`.
        named(scope: &Scope) => layer.scope = Some(scope.clone());
    }
}

impl Module for AdaptiveAvgPool2d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = ops::adaptive_avg_pool2d(xs, self.out)?;
        if let Some(scope) = &self.scope {
            scope.trace("AdaptiveAvgPool2d", &ys);
        }
        Ok(ys)
    }
}

/// `(N, C, H, W) -> (N, C)`: the mean of each channel.
#[derive(Clone, Copy, Debug, Default)]
pub struct GlobalAvgPool;

impl Module for GlobalAvgPool {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        ops::global_avg_pool2d(xs)
    }
}
