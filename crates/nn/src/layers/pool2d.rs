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

    /// Step of the window, in pixels.
    #[must_use]
    pub fn stride(mut self, stride: usize) -> Self {
        self.config.stride = (stride, stride);
        self
    }

    /// Padding on each side, in pixels, which never wins; at most half the kernel.
    #[must_use]
    pub fn padding(mut self, padding: usize) -> Self {
        self.config.padding = (padding, padding);
        self
    }

    /// Shows the layer in the model's summary under the name of `scope`.
    #[must_use]
    pub fn named(mut self, scope: &Scope) -> Self {
        self.scope = Some(scope.clone());
        self
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
