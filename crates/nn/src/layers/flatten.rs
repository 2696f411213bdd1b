//! From images to vectors.

use candle_core::{Module, Result, Tensor};

/// `(N, ..) -> (N, product of the rest)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flatten;

impl Module for Flatten {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        xs.flatten_from(1)
    }
}
