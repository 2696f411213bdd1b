//! The kernels of fused operations in f64, with the feature `f64`.

use candle_core::Result;

use crate::autograd::fused::{Backward, FusedOp};
use crate::kernels::scratch::Pooled;

/// Whether there are kernels in f64.
pub(crate) const AVAILABLE: bool = true;

pub(crate) fn forward<F: FusedOp>(
    op: &F,
    inputs: &[&[f64]],
    ys: &mut [f64],
) -> Result<Pooled<f64>> {
    op.forward(inputs, ys)
}

pub(crate) fn backward<F: FusedOp>(op: &F, pass: Backward<'_, f64>) -> Result<()> {
    op.backward(pass)
}
