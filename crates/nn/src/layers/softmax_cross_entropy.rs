//! The loss of a classifier.

use candle_core::{Result, Tensor};

use crate::ops;

/// Mean over the batch of `-log softmax(logits)[class]`, as SINGA's layer of that name.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoftMaxCrossEntropy;

impl SoftMaxCrossEntropy {
    /// The scalar loss of `logits` `(N, classes)` against `targets`: class indices `(N,)` of u8,
    /// u32 or i64, or one-hot rows `(N, classes)`.
    ///
    /// # Errors
    /// Shapes that do not fit, or a class index out of range, which is named.
    pub fn forward(&self, logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
        ops::softmax_cross_entropy(logits, targets)
    }
}
