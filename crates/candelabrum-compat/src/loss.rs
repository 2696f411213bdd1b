//! `candle_nn::loss` with the losses of classifiers in one operation.

use candelabrum_nn::ops::{self, Reduction};
use candle_core::{Result, Tensor, bail};

pub use candle_nn::loss::*;

/// The mean over the batch of the cross entropy between `softmax(inp)`, of shape (N, C), and the classes `target` (N).
///
/// # Errors
/// Other shapes, and a class that is not below C.
pub fn cross_entropy(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
    if inp.rank() != 2 {
        bail!("cross_entropy expects an input tensor of rank 2, not {:?}", inp.shape());
    }
    ops::softmax_cross_entropy(inp, target)
}

/// The mean of the binary cross entropy between `sigmoid(inp)` and `target`. It is finite for all logits: candle's own
/// function takes the logarithm of a sigmoid that has become 0. Targets that need a gradient are left to it.
///
/// # Errors
/// Shapes or dtypes that differ.
pub fn binary_cross_entropy_with_logit(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
    if target.track_op() {
        return candle_nn::loss::binary_cross_entropy_with_logit(inp, target);
    }
    ops::bce_with_logits_loss(inp, target, None, Reduction::Mean)?.to_dtype(inp.dtype())
}
