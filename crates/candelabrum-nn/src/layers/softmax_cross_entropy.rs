//! The loss of a classifier.

use candle_core::{Result, Tensor};

use crate::autograd::fused::widen;
use crate::ops::{self, CrossEntropyConfig};

/// The mean over the batch of `-log softmax(logits)[class]`: SINGA's layer of this name.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoftMaxCrossEntropy {
    config: CrossEntropyConfig,
}

impl SoftMaxCrossEntropy {
    /// A loss without label smoothing and without an ignored class.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    builder! { layer:
        /// Spreads the share `share` of each label, from 0 to 1, evenly over all classes.
        label_smoothing(share: f32) => layer.config.label_smoothing = share;
        /// Leaves rows with this class index out of the mean. Micro-batches and ranks are then weighted by the rows
        /// that they count: see [`LossWeight`](crate::LossWeight).
        ignore_index(class: i64) => layer.config.ignore_index = Some(class);
    }

    /// The scalar loss of `logits` `(.., classes)` against `targets`: class indices `(..)` of u8,
    /// u32 or i64, or one-hot rows `(.., classes)`. In f32 also for logits in f16 and bf16, as
    /// [`Model::loss`](crate::Model::loss). If no row counts, the loss and its gradient are 0.
    ///
    /// # Errors
    /// Shapes that do not fit together, or a class index out of range (which the error names). Class
    /// indices on a GPU are not checked: an index out of range gives a loss of NaN there, as
    /// [`ops::softmax_cross_entropy`] explains.
    pub fn forward(&self, logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let (logits, targets) = (widen(logits)?, widen(targets)?);
        ops::softmax_cross_entropy_with(&logits, &targets, self.config)
    }
}
