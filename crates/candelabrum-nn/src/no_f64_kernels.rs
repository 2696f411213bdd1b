//! No kernels in f64: fused operations compute their composites there.
//!
//! Each kernel in f64 takes compile time, and almost nobody trains in f64.

use candle_core::{Result, bail};

use crate::autograd::fused::{Backward, FusedOp};
use crate::kernels::scratch::Pooled;

/// Whether there are kernels in f64.
pub(crate) const AVAILABLE: bool = false;

/// Never called: [`AVAILABLE`] says so.
pub(crate) fn forward<F: FusedOp>(_: &F, _: &[&[f64]], _: &mut [f64]) -> Result<Pooled<f64>> {
    bail!("{}: its kernel in f64 needs the feature `f64`, this is a bug", F::NAME)
}

/// Never called: [`AVAILABLE`] says so.
pub(crate) fn backward<F: FusedOp>(_: &F, _: Backward<'_, f64>) -> Result<()> {
    bail!("{}: its kernel in f64 needs the feature `f64`, this is a bug", F::NAME)
}
