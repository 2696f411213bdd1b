//! The rectifier as a layer of its own.

use candle_core::{Module, Result, Tensor};

use crate::ops;

/// `max(x, 0)`, any shape; the gradient at exactly 0 is 0, as in PyTorch.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReLU;

impl Module for ReLU {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        ops::relu(xs)
    }
}
