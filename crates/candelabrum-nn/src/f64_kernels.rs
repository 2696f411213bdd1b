//! The kernels of fused operations in f64, with the feature `f64`.

use candle_core::Result;

use crate::autograd::fused::{Backward, Fused};
use crate::kernels::scratch::Pooled;

/// Whether there are kernels in f64.
pub(crate) const AVAILABLE: bool = true;

pub(crate) fn forward<F: Fused>(op: &F, inputs: &[&[f64]], ys: &mut [f64]) -> Result<Pooled<f64>> {
    op.forward(inputs, ys)
}

pub(crate) fn backward<F: Fused>(op: &F, pass: Backward<'_, f64>) -> Result<()> {
    op.backward(pass)
}
