//! Softmax as a layer.

use candle_core::{Module, Result, Tensor};

use crate::ops;

/// Probabilities from logits, over the last dimension: `(.., C) -> (.., C)`.
///
/// Do not use it to train a classifier: [`SoftMaxCrossEntropy`](super::SoftMaxCrossEntropy) takes
/// the logits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Softmax;

impl Module for Softmax {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        ops::softmax(xs)
    }
}
