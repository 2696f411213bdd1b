//! `candle_nn::rotary_emb` with gradients.
//!
//! A rotation by an angle is computed by candle's kernel, and its backward pass is the rotation by the opposite angle.

use candle_core::{Result, Tensor, bail};
use candle_nn::rotary_emb as candles;

use crate::given_backward::with_backward;

pub use candle_nn::rotary_emb::*;

/// Rotates pairs of a number of the first half of the last dimension and one of the second half. `xs` is of shape
/// (batch, heads, steps, width), `cos` and `sin` of shape (steps, width / 2), or with a batch in front.
///
/// # Errors
/// Shapes that do not fit, and tensors that are not contiguous.
pub fn rope(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rotated([xs, cos, sin], candles::rope, rope_slow)
}

/// [`rope`] of pairs of neighbours.
///
/// # Errors
/// Those of [`rope`].
pub fn rope_i(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rotated([xs, cos, sin], candles::rope_i, rope_i_slow)
}

/// [`rope`] of numbers of shape (batch, steps, heads, width).
///
/// # Errors
/// Those of [`rope`].
pub fn rope_thd(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rotated([xs, cos, sin], candles::rope_thd, |xs, cos, sin| {
        rope_slow(&xs.transpose(1, 2)?, cos, sin)?.transpose(1, 2)
    })
}

type Rotation = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;

fn rotated([xs, cos, sin]: [&Tensor; 3], rotate: Rotation, slow: Rotation) -> Result<Tensor> {
    // Angles that are trained need gradients of their own.
    if cos.track_op() || sin.track_op() {
        if cos.rank() != 2 {
            bail!(
                "rope: angles that are trained are of shape (steps, width / 2), not {:?}",
                cos.shape()
            );
        }
        return slow(xs, cos, sin);
    }
    let ys = rotate(&xs.detach(), cos, sin)?;
    let (cos, sin) = (cos.clone(), sin.clone());
    with_backward(xs, ys, "rope", move |dys| rotate(&dys.contiguous()?, &cos, &sin.neg()?))
}
