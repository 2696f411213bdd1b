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
use super::column_sums::column_sums;
use super::float::Float;
use super::fused::{self, Backward, Fused, Reads};
use super::linear::{affine, linear};
use super::matmul::{Dst, Mat, all_threads, matmul};
use super::parallel::in_blocks;
use super::pool::Pooled;

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
    let (outputs, inputs) = weight.dims2()?;
    if outputs == 0 || xs.dims().last() != Some(&inputs) {
        bail!("{NAME}: input of shape {:?} for a weight of {:?}", xs.shape(), weight.shape());
    }
    if let Some(bias) = bias.filter(|bias| bias.dims() != [outputs]) {
        bail!("{NAME}: bias of shape {:?} for {outputs} outputs", bias.shape());
    }
    let mut shape = xs.dims().to_vec();
    shape.pop();
    shape.push(outputs);
    if residual.dims() != shape {
        bail!("{NAME}: residual of shape {:?} for a result of {shape:?}", residual.shape());
    }
    if !xs.device().is_cpu() {
        return add(&linear(xs, weight, bias, None)?, residual, None);
    }
    let op = LinearAdd { inputs, outputs };
    fused::run(op, shape, &[Some(xs), Some(weight), bias, Some(residual)])
}

struct LinearAdd {
    inputs: usize,
    outputs: usize,
}

impl Fused for LinearAdd {
    const NAME: &'static str = NAME;

    fn reads(&self) -> Reads {
        Reads::inputs(&[0, 1])
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let &[xs, weight, bias, residual] = inputs else { unreachable!("four inputs") };
        if bias.is_empty() {
            in_blocks(ys, |start, ys| ys.copy_from_slice(&residual[start..][..ys.len()]));
        } else {
            let rows = ys.chunks_exact_mut(self.outputs).zip(residual.chunks_exact(self.outputs));
            for (y, r) in rows {
                for ((y, &r), &b) in y.iter_mut().zip(r).zip(bias) {
                    *y = r + b;
                }
            }
        }
        let xs = Mat::new(xs, ys.len() / self.outputs, self.inputs);
        let weight = Mat::new(weight, self.outputs, self.inputs);
        matmul(ys, Dst::Add, xs, weight.t(), all_threads());
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, pass: Backward<'_, T>) -> Result<()> {
        let Backward { inputs, dys, mut grads, .. } = pass;
        let &[xs, weight, _, _] = inputs else { unreachable!("four inputs") };
        let dys = &*dys;
        let rows = dys.len() / self.outputs;
        let dy = Mat::new(dys, rows, self.outputs);
        if let Some(dx) = grads.take(0) {
            let weight = Mat::new(weight, self.outputs, self.inputs);
            matmul(dx, Dst::Overwrite, dy, weight, all_threads());
        }
        if let Some(dw) = grads.take(1) {
            let xs = Mat::new(xs, rows, self.inputs);
            matmul(dw, Dst::Overwrite, dy.t(), xs, all_threads());
        }
        if let Some(db) = grads.take(2) {
            column_sums(dys, db);
        }
        if let Some(dr) = grads.take(3) {
            in_blocks(dr, |start, dr| dr.copy_from_slice(&dys[start..][..dr.len()]));
        }
        Ok(())
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs), Some(weight), bias, Some(residual)] = inputs else {
            unreachable!("four inputs")
        };
        let rows: usize = xs.dims().iter().rev().skip(1).product();
        let ys = affine(&xs.reshape((rows, self.inputs))?, weight, bias.as_ref())?;
        residual.reshape((rows, self.outputs))? + ys
    }
}
