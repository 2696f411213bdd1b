//! SwiGLU (Shazeer, arXiv:2002.05202): one half of the columns gates the other.
//!
//! ```text
//! forward    y = silu(a) b                 x = [a, b]
//! backward   da = dy b silu'(a)            db = dy silu(a)
//! ```

use candelabrum_memory::simd::simd;
use candle_core::{D, Result, Tensor, bail};
use rayon::prelude::*;

use super::sizes::rows_and_last;
use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp};
use crate::kernels::float::Float;
use crate::kernels::parallel::{for_each, in_parts, worth_threads};
use crate::kernels::scratch::Pooled;

const NAME: &str = "swiglu";

/// `silu(a) * b` for the first half `a` and the second half `b` of the last dimension. One linear layer
/// writes both halves.
///
/// # Shapes
///
/// (.., 2 C) -> (.., C)
///
/// # Errors
///
/// If `xs` is a scalar, its last dimension is odd, or its dtype is no float.
pub fn swiglu(xs: &Tensor) -> Result<Tensor> {
    let (rows, width) = rows_and_last(NAME, "input", xs.shape(), "(.., 2 C)")?;
    if !width.is_multiple_of(2) {
        bail!("{NAME}: rows of {width} elements have no halves, input of shape {:?}", xs.shape());
    }
    let mut shape = rows.to_vec();
    shape.push(width / 2);
    fused::run(SwiGlu { half: width / 2 }, shape, &[Some(xs)])
}

struct SwiGlu {
    half: usize,
}

impl FusedOp for SwiGlu {
    const NAME: &'static str = NAME;
    const READS: BackwardReads = BackwardReads::inputs(&[0]);

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let half = self.half.max(1);
        let threads = worth_threads(ys.len());
        in_parts(threads, (inputs[0], 2 * half), (ys, half), |_, x, y| gate(x, y));
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let Some(dxs) = pass.grads.take(0) else { return Ok(()) };
        let (xs, dys, half) = (pass.inputs[0], &*pass.dys, self.half.max(1));
        let rows = dxs.par_chunks_mut(2 * half).zip(xs.par_chunks(2 * half));
        let rows = rows.zip(dys.par_chunks(half));
        for_each(worth_threads(dys.len()), rows, |((dx, x), dy)| gate_backward(x, dy, dx));
        Ok(())
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs)] = inputs else { unreachable!("one input") };
        composite(xs, self.half)
    }
}

/// One row.
pub(super) fn gate<T: Float>(x: &[T], y: &mut [T]) {
    let halves = x.split_at(y.len());
    gate_by(halves, y);
}

/// Some elements `b` gated by the elements `a`.
pub(super) fn gate_by<T: Float>((a, b): (&[T], &[T]), y: &mut [T]) {
    simd(
        #[inline(always)]
        || {
            for (y, (&a, &b)) in y.iter_mut().zip(a.iter().zip(b)) {
                *y = a * a.sigmoid() * b;
            }
        },
    );
}

/// The gradient of one row.
pub(super) fn gate_backward<T: Float>(x: &[T], dy: &[T], dx: &mut [T]) {
    let (gradients, halves) = (dx.split_at_mut(dy.len()), x.split_at(dy.len()));
    gate_by_backward(halves, dy, gradients);
}

/// The gradients of the gates `a` and of the elements `b`.
pub(super) fn gate_by_backward<T: Float>(
    (a, b): (&[T], &[T]),
    dy: &[T],
    (da, db): (&mut [T], &mut [T]),
) {
    simd(
        #[inline(always)]
        || {
            let (gradients, inputs) = (da.iter_mut().zip(&mut *db), a.iter().zip(b));
            for (((da, db), (&a, &b)), &dy) in gradients.zip(inputs).zip(dy) {
                let s = a.sigmoid();
                *da = dy * b * s * (T::one() + a * (T::one() - s));
                *db = dy * a * s;
            }
        },
    );
}

/// In candle's operations, for rows of twice `half` elements.
pub(super) fn composite(xs: &Tensor, half: usize) -> Result<Tensor> {
    let x = fused::widen(xs)?;
    let a = x.narrow(D::Minus1, 0, half)?;
    let b = x.narrow(D::Minus1, half, half)?;
    composite_of(&a, &b)?.to_dtype(xs.dtype())
}

/// Elements `b` gated by the elements `a`, in candle's operations.
pub(super) fn composite_of(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    (a * candle_nn::ops::sigmoid(a)?)? * b
}
