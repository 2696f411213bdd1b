//! Softmax over the last dimension, and its logarithm.
//!
//! ```text
//! softmax       y_c = exp(x_c - max) / sum_k exp(x_k - max)      dx = y (dy - sum_k dy_k y_k)
//! log_softmax   y_c = x_c - max - ln(sum_k exp(x_k - max))       dx = dy - exp(y) sum_k dy_k
//! ```
//!
//! Subtracting the maximum keeps `exp` from overflowing. The backward reads the result, not the
//! input.

mod gpu;

use candle_core::{D, Result, Tensor};
use rayon::prelude::*;

use super::sizes::rows_and_last;
use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp, GpuKernels};
use crate::kernels::elementwise::largest;
use crate::kernels::float::Float;
use crate::kernels::moments::sum_of;
use crate::kernels::parallel::{for_each, worth_threads};
use crate::kernels::scratch::Pooled;
use candelabrum_memory::simd::simd;

/// `exp(xs)` divided by its sum along the last dimension, so each row adds up to 1.
///
/// A row that contains only minus infinity gives NaN, as in PyTorch.
///
/// # Shapes
///
/// (.., C) -> (.., C)
///
/// # Errors
///
/// If `xs` is a scalar, or its dtype is no float.
pub fn softmax(xs: &Tensor) -> Result<Tensor> {
    SoftmaxOp::<false>::run(xs)
}

/// The logarithm of [`softmax`]. It does not underflow where the softmax is 0.
///
/// # Shapes
///
/// (.., C) -> (.., C)
///
/// # Errors
///
/// If `xs` is a scalar, or its dtype is no float.
pub fn log_softmax(xs: &Tensor) -> Result<Tensor> {
    SoftmaxOp::<true>::run(xs)
}

pub(super) struct SoftmaxOp<const LOG: bool> {
    pub(super) classes: usize,
}

impl<const LOG: bool> SoftmaxOp<LOG> {
    fn run(xs: &Tensor) -> Result<Tensor> {
        let (_, classes) = rows_and_last(Self::NAME, "input", xs.shape(), "(.., C)")?;
        fused::run(Self { classes }, xs.shape(), &[Some(xs)])
    }
}

impl<const LOG: bool> FusedOp for SoftmaxOp<LOG> {
    const NAME: &'static str = if LOG { "log_softmax" } else { "softmax" };
    const READS: BackwardReads = BackwardReads::NOTHING.and_output(true);

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let (xs, classes) = (inputs[0], self.classes.max(1));
        let run = |(x, y): (&[T], &mut [T])| {
            let (max, sum) = exp_into(x, y);
            let ln = sum.ln();
            simd(
                #[inline(always)]
                || {
                    for (y, &x) in y.iter_mut().zip(x) {
                        *y = if LOG { (x - max) - ln } else { *y / sum };
                    }
                },
            );
        };
        let threads = worth_threads(ys.len());
        for_each(threads, xs.par_chunks(classes).zip(ys.par_chunks_mut(classes)), run);
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let Some(dxs) = pass.grads.take(0) else { return Ok(()) };
        let (ys, dys, classes) = (pass.ys, &*pass.dys, self.classes.max(1));
        let run = |((y, dy), dx): ((&[T], &[T]), &mut [T])| {
            simd(
                #[inline(always)]
                || {
                    let sum = sum_of(y, dy, |y, dy| if LOG { dy } else { dy * y });
                    for ((dx, &dy), &y) in dx.iter_mut().zip(dy).zip(y) {
                        *dx = if LOG { dy - y.exp() * sum } else { y * (dy - sum) };
                    }
                },
            );
        };
        let results = ys.par_chunks(classes).zip(dys.par_chunks(classes));
        for_each(worth_threads(dys.len()), results.zip(dxs.par_chunks_mut(classes)), run);
        Ok(())
    }

    fn on_gpu(&self) -> Option<&dyn GpuKernels> {
        Some(self)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs)] = inputs else { unreachable!("one input") };
        let shifted = shifted(&fused::widen(xs)?)?;
        let exp = shifted.exp()?;
        let sum = exp.sum_keepdim(D::Minus1)?;
        let ys = if LOG { shifted.broadcast_sub(&sum.log()?) } else { exp.broadcast_div(&sum) };
        ys?.to_dtype(xs.dtype())
    }
}

/// `xs - max` row by row, in candle's operations. The maximum is a constant of the graph, because
/// neither the softmax nor its logarithm depends on it.
pub(super) fn shifted(xs: &Tensor) -> Result<Tensor> {
    xs.broadcast_sub(&xs.detach().max_keepdim(D::Minus1)?)
}

/// `out = exp(row - max)`. Returns the maximum, which may miss a NaN, and the sum, which is NaN then.
pub(super) fn exp_into<T: Float>(row: &[T], out: &mut [T]) -> (T, T) {
    simd(
        #[inline(always)]
        || {
            let max = largest(row[0], row);
            for (out, &x) in out.iter_mut().zip(row) {
                *out = (x - max).exp();
            }
            (max, sum_of(out, out, |x, _| x))
        },
    )
}
