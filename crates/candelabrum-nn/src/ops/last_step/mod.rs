//! The last time step of a sequence: `y_n = x[n, T - 1]`.
//!
//! candle's `narrow` computes the same, but its backward pads the gradient through a concatenation.

mod gpu;

use candle_core::{Result, Tensor, bail};

use super::sizes::sizes;
use crate::autograd::fused::{self, Backward, FusedOp, GpuKernels};
use crate::kernels::float::Float;
use crate::kernels::scratch::Pooled;

const NAME: &str = "last_step";

/// The last time step.
///
/// # Shapes
///
/// `xs` (N, T, H) -> (N, H).
///
/// # Errors
///
/// If there is no step, or the dtype is no float.
pub fn last_step(xs: &Tensor) -> Result<Tensor> {
    let [batch, steps, width] = sizes(NAME, "input", xs.shape(), "(N, T, H)")?;
    if steps == 0 || width == 0 {
        bail!("{NAME}: no step in an input of shape {:?}", xs.shape());
    }
    fused::run(LastStep { steps, width }, (batch, width), &[Some(xs)])
}

pub(super) struct LastStep {
    pub(super) steps: usize,
    pub(super) width: usize,
}

impl FusedOp for LastStep {
    const NAME: &'static str = NAME;

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let sequences = inputs[0].chunks_exact(self.steps * self.width);
        for (y, x) in ys.chunks_exact_mut(self.width).zip(sequences) {
            y.copy_from_slice(&x[x.len() - self.width..]);
        }
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let Some(dxs) = pass.grads.take(0) else { return Ok(()) };
        let sequences = dxs.chunks_exact_mut(self.steps * self.width);
        for (dy, dx) in pass.dys.chunks_exact(self.width).zip(sequences) {
            let (before, last) = dx.split_at_mut(dx.len() - self.width);
            before.fill(T::zero());
            last.copy_from_slice(dy);
        }
        Ok(())
    }

    fn on_gpu(&self) -> Option<&dyn GpuKernels> {
        Some(self)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs)] = inputs else { unreachable!("one input") };
        xs.narrow(1, self.steps - 1, 1)
    }
}
