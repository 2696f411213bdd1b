//! The product of two tensors, element by element, with broadcasting.
//!
//! ```text
//! forward    z = x y
//! backward   dx = sum of y dz over the repetitions of x,   dy likewise
//! ```

mod gpu;

use candle_core::{Result, Tensor};

use super::broadcast::Broadcast;
use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp, GpuKernels};
use crate::kernels::float::Float;
use crate::kernels::scratch::Pooled;

const NAME: &str = "mul";

/// `xs * ys`, element by element. Shapes that differ are broadcast by NumPy's rules: a dimension of
/// length 1, or a missing one on the left, is repeated.
///
/// # Shapes
///
/// (N, T, C) and (C), (T, 1) or (N, 1, C), for instance -> (N, T, C)
///
/// # Errors
///
/// If the shapes do not fit, or the dtypes differ or are no floats.
pub fn mul(xs: &Tensor, ys: &Tensor) -> Result<Tensor> {
    let broadcast = Broadcast::new(xs.shape(), ys.shape(), NAME)?;
    let shape = broadcast.shape().clone();
    let reads = BackwardReads::of_factors(xs, ys);
    fused::run(MulOperation { broadcast, reads }, shape, &[Some(xs), Some(ys)])
}

pub(super) struct MulOperation {
    broadcast: Broadcast,
    reads: BackwardReads,
}

impl FusedOp for MulOperation {
    const NAME: &'static str = NAME;

    fn reads(&self) -> BackwardReads {
        self.reads
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], zs: &mut [T]) -> Result<Pooled<T>> {
        let &[xs, ys] = inputs else { unreachable!("two inputs") };
        self.broadcast.combine((xs, ys), zs, |x, y| x * y, |_| {});
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, pass: Backward<'_, T>) -> Result<()> {
        let Backward { inputs, dys: dzs, mut grads, .. } = pass;
        for operand in 0..2 {
            let Some(gradient) = grads.take(operand) else { continue };
            let other = inputs[1 - operand];
            if !self.broadcast.repeats(operand) {
                self.broadcast.times(dzs, 1 - operand, other, gradient);
                continue;
            }
            let mut products = Pooled::new(dzs.len());
            self.broadcast.times(dzs, 1 - operand, other, &mut products);
            self.broadcast.sum_to(operand, &products, gradient);
        }
        Ok(())
    }

    fn on_gpu(&self) -> Option<&dyn GpuKernels> {
        let repeats = self.broadcast.repeats(0) || self.broadcast.repeats(1);
        (!repeats).then_some(self as &dyn GpuKernels)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs), Some(ys)] = inputs else { unreachable!("two inputs") };
        // The gradient of a repeated operand is a sum, for which 16 bits are too few.
        fused::widen(xs)?.broadcast_mul(&fused::widen(ys)?)?.to_dtype(xs.dtype())
    }
}
