//! Images to vectors.

use candle_core::{Module, Result, Tensor};

/// `(N, ..) -> (N, M)`, where `M` is the product of all dimensions but the first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flatten;

impl Module for Flatten {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        xs.flatten_from(1)
    }
}
