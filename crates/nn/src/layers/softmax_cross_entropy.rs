//! The loss of a classifier.

use candle_core::{Result, Tensor};

use crate::ops::{self, CrossEntropyConfig};

/// Mean over the batch of `-log softmax(logits)[class]`, as SINGA's layer of that name.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoftMaxCrossEntropy {
    config: CrossEntropyConfig,
}

impl SoftMaxCrossEntropy {
    /// Neither smoothing nor a class to ignore.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Spreads this share of each label, from 0 to 1, evenly over all classes.
    #[must_use]
    pub fn label_smoothing(mut self, share: f32) -> Self {
        self.config.label_smoothing = share;
        self
    }

    /// Leaves rows with this class index out of the mean.
    #[must_use]
    pub fn ignore_index(mut self, class: i64) -> Self {
        self.config.ignore_index = Some(class);
        self
    }

    /// The scalar loss of `logits` `(N, classes)` against `targets`: class indices `(N,)` of u8,
    /// u32 or i64, or one-hot rows `(N, classes)`.
    ///
    /// # Errors
    /// Shapes that do not fit, a class index out of range, which is named, or no row that counts.
    pub fn forward(&self, logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
        ops::softmax_cross_entropy_with(logits, targets, self.config)
    }
}
