//! The rectifiers as separate layers.

use candle_core::{Module, Result, Tensor};

use crate::ops;

/// `max(x, 0)`, for any shape. The gradient at exactly 0 is 0, as in PyTorch.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReLU;

impl Module for ReLU {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        ops::relu(xs)
    }
}

/// `min(max(x, 0), 6)`, for any shape: [`ops::relu6`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ReLU6;

impl Module for ReLU6 {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        ops::relu6(xs)
    }
}
