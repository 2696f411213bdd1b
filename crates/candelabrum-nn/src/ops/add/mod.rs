//! The sum of a residual connection, `act(x + y)`, in one pass (He et al., CVPR 2016,
//! arXiv:1512.03385), and the sum with a bias or an embedding of positions, which is broadcast.

mod gpu;

use candle_core::{Result, Tensor};

use super::activations;
use super::broadcast::Broadcast;
use crate::Activation;
use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp, GpuKernels};
use crate::kernels::elementwise::{activate, activation_backward_in_blocks};
use crate::kernels::float::Float;
use crate::kernels::scratch::Pooled;

const NAME: &str = "add";

/// `activation(xs + ys)`, element by element. Shapes that differ are broadcast by NumPy's rules: a
/// dimension of length 1, or a missing one on the left, is repeated. The gradient of a repeated operand
/// is the sum over the repetitions.
///
/// # Shapes
///
/// (N, T, C) and (C), (T, C) or (N, 1, C), for instance -> (N, T, C)
///
/// # Errors
///
/// If the shapes do not fit, or the dtypes differ or are no floats.
pub fn add(xs: &Tensor, ys: &Tensor, activation: Option<Activation>) -> Result<Tensor> {
    let broadcast = Broadcast::new(xs.shape(), ys.shape(), NAME)?;
    let shape = broadcast.shape().clone();
    let late = activation.filter(|activation| activation.needs_input());
    let activation = activation.filter(|activation| !activation.needs_input());
    let sums = fused::run(AddOperation { activation, broadcast }, shape, &[Some(xs), Some(ys)])?;
    activations::apply(sums, late)
}

struct AddOperation {
    activation: Option<Activation>,
    broadcast: Broadcast,
}

impl FusedOp for AddOperation {
    const NAME: &'static str = NAME;

    fn reads(&self) -> BackwardReads {
        BackwardReads::NOTHING.and_output(self.activation.is_some())
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], sums: &mut [T]) -> Result<Pooled<T>> {
        let &[xs, ys] = inputs else { unreachable!("two inputs") };
        let finish = |sums: &mut [T]| activate(sums, self.activation);
        self.broadcast.combine((xs, ys), sums, |x, y| x + y, finish);
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, pass: Backward<'_, T>) -> Result<()> {
        let Backward { ys, dys, mut grads, .. } = pass;
        if let Some(activation) = self.activation {
            activation_backward_in_blocks(dys, ys, activation);
        }
        for operand in 0..2 {
            if let Some(gradient) = grads.take(operand) {
                self.broadcast.sum_to(operand, dys, gradient);
            }
        }
        Ok(())
    }

    fn passes_gradient_to(&self) -> Option<usize> {
        (0..2).find(|&operand| !self.broadcast.repeats(operand))
    }

    fn on_gpu(&self) -> Option<&dyn GpuKernels> {
        let repeats = self.broadcast.repeats(0) || self.broadcast.repeats(1);
        (!repeats).then_some(self as &dyn GpuKernels)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs), Some(ys)] = inputs else { unreachable!("two inputs") };
        // The gradient of a repeated operand is a sum, for which 16 bits are too few.
        let sum = fused::widen(xs)?.broadcast_add(&fused::widen(ys)?)?;
        activations::composite(&sum, self.activation)?.to_dtype(xs.dtype())
    }
}
