//! The end of a residual branch: a linear layer whose product is added to the residual.
//!
//! ```text
//! forward    y = r + x w^T + b
//! backward   dr = dy      dx = dy w      dw = dy^T x      db = column sums of dy
//! ```
//!
//! As two operations, the sum would read and write the result once more in the forward and copy its
//! gradient once more in the backward.

use candle_core::{Result, Tensor, bail};

use super::add::add;
use super::linear::{LinearOp, affine, linear};
use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp};
use crate::kernels::float::Float;
use crate::kernels::parallel::in_blocks;
use crate::kernels::scratch::Pooled;

const NAME: &str = "linear_add";

/// `residual + xs weight^T + bias`. On a GPU these are two operations, [`linear`](super::linear()) and
/// [`add`](super::add()).
///
/// # Shapes
///
/// `xs` (.., in), `weight` (out, in), `bias` (out), `residual` (.., out) -> (.., out).
///
/// # Errors
///
/// Those of [`linear`](super::linear()), and a residual of another shape than the result.
pub fn linear_add(
    xs: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    residual: &Tensor,
) -> Result<Tensor> {
    let (op, shape) = LinearOp::new(NAME, xs.dims(), weight, bias, None)?;
    if residual.dims() != shape {
        bail!("{NAME}: residual of shape {:?} for a result of {shape:?}", residual.shape());
    }
    if !xs.device().is_cpu() {
        return add(&linear(xs, weight, bias, None)?, residual, None);
    }
    fused::run(
        LinearAdd(op.between(xs, weight)),
        shape,
        &[Some(xs), Some(weight), bias, Some(residual)],
    )
}

struct LinearAdd(LinearOp);

impl FusedOp for LinearAdd {
    const NAME: &'static str = NAME;

    fn reads(&self) -> BackwardReads {
        self.0.factors()
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let &[xs, weight, bias, residual] = inputs else { unreachable!("four inputs") };
        let right = self.0.right_factor(weight, ys.len() / self.0.outputs);
        self.0.product_added((xs, &right), bias, residual, ys);
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, pass: Backward<'_, T>) -> Result<()> {
        let Backward { inputs, dys, mut grads, .. } = pass;
        let &[xs, weight, _, _] = inputs else { unreachable!("four inputs") };
        let dys = &*dys;
        self.0.gradients([xs, weight], dys, &mut grads);
        if let Some(dr) = grads.take(3) {
            in_blocks(dr, |start, dr| dr.copy_from_slice(&dys[start..][..dr.len()]));
        }
        Ok(())
    }

    fn passes_gradient_to(&self) -> Option<usize> {
        Some(3)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs), Some(weight), bias, Some(residual)] = inputs else {
            unreachable!("four inputs")
        };
        let rows: usize = xs.dims().iter().rev().skip(1).product();
        let ys = affine(&xs.reshape((rows, self.0.inputs))?, weight, bias.as_ref())?;
        residual.reshape((rows, self.0.outputs))? + ys
    }
}
