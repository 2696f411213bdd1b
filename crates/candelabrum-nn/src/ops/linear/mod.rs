//! Fully connected layer with bias and activation in one pass.
//!
//! ```text
//! forward    y  = act(x w^T + b)
//! backward   dz = dy * act'(z)      dx = dz w      dw = dz^T x      db = column sums of dz
//! ```
//!
//! The backward computes `act'` from the result. If the activation needs its input, the forward
//! saves `z = x w^T + b`, and the backward uses that.

mod gpu;

use candle_core::{Result, Tensor, bail};
use rayon::prelude::*;

use super::activations;
use super::sizes::sizes;
use crate::activation::Activation;
use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp, GpuKernels, InputGradients};
use crate::kernels::column_sums::column_sums;
use crate::kernels::elementwise::{activate, activation_backward_in_blocks, bias_row_activation};
use crate::kernels::float::Float;
use crate::kernels::matmul::{Destination, RightFactor, StridedMatrix, matmul};
use crate::kernels::parallel::{for_each, in_blocks, worth_threads};
use crate::kernels::scratch::Pooled;
use candelabrum_memory::simd::simd;

const NAME: &str = "linear";

/// The rows of a block where the weight is packed once for all blocks: results stay in the second-level cache until they
/// are finished.
pub(super) const PACKED_ROWS: usize = 128;

/// The rows of a block of a backward pass, where the weight is packed once for all blocks: a multiple of the products that
/// are summed at a time, so the sums are those of a single block.
pub(super) const PACKED_GRADIENT_ROWS: usize = 512;

/// `act(xs weight^T + bias)`.
///
/// # Shapes
///
/// `xs` (.., in), `weight` (out, in), `bias` (out) -> (.., out).
///
/// # Errors
///
/// If there are no outputs, shapes or dtypes do not fit together, or the dtype is no float.
pub fn linear(
    xs: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    activation: Option<Activation>,
) -> Result<Tensor> {
    let (op, shape) = LinearOp::new(NAME, xs.dims(), weight, bias, activation)?;
    fused::run(op.between(xs, weight), shape, &[Some(xs), Some(weight), bias])
}

pub(super) struct LinearOp {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) activation: Option<Activation>,
    /// What the backward reads of `xs` and `weight`.
    factors: BackwardReads,
}

impl LinearOp {
    /// The operation for an input of the shape `dims`, and the shape of its result. `name` is that of the
    /// caller.
    pub(super) fn new(
        name: &str,
        dims: &[usize],
        weight: &Tensor,
        bias: Option<&Tensor>,
        activation: Option<Activation>,
    ) -> Result<(Self, Vec<usize>)> {
        let [outputs, inputs] = sizes(name, "weight", weight.shape(), "(out, in)")?;
        if outputs == 0 {
            bail!("{name}: no outputs, weight of shape {:?}", weight.shape());
        }
        if dims.last() != Some(&inputs) {
            bail!("{name}: input of shape {dims:?} for a weight of {:?}", weight.shape());
        }
        if let Some(bias) = bias.filter(|bias| bias.dims() != [outputs]) {
            bail!("{name}: bias of shape {:?} for {outputs} outputs", bias.shape());
        }
        let mut shape = dims.to_vec();
        shape.pop();
        shape.push(outputs);
        let factors = BackwardReads::inputs(&[0, 1]);
        Ok((Self { inputs, outputs, activation, factors }, shape))
    }

    /// The operation of these factors. The gradient of one reads the other: where the weight is frozen, the input is
    /// not kept for the backward.
    pub(super) fn between(self, xs: &Tensor, weight: &Tensor) -> Self {
        Self { factors: BackwardReads::of_factors(xs, weight), ..self }
    }

    /// What the backward of the product reads.
    pub(super) fn factors(&self) -> BackwardReads {
        self.factors
    }

    /// Writes `xs weight^T`, or adds it.
    pub(super) fn product<T: Float>(
        &self,
        [xs, weight]: [&[T]; 2],
        ys: &mut [T],
        dst: Destination,
    ) {
        let xs = StridedMatrix::new(xs, ys.len() / self.outputs, self.inputs);
        let weight = StridedMatrix::new(weight, self.outputs, self.inputs);
        matmul(ys, dst, xs, weight.t());
    }

    /// The transposed weight, for the products of so many rows.
    pub(super) fn right_factor<'a, T: Float>(
        &self,
        weight: &'a [T],
        rows: usize,
    ) -> RightFactor<'a, T> {
        RightFactor::new(StridedMatrix::new(weight, self.outputs, self.inputs).t(), rows)
    }

    /// Writes `xs weight^T` and calls `finish` with rows of it, which are still in the cache where products are in bf16.
    fn product_then<T: Float>(
        &self,
        [xs, weight]: [&[T]; 2],
        ys: &mut [T],
        finish: impl Fn(&mut [T]) + Sync,
    ) {
        let rows = ys.len() / self.outputs;
        let right = self.right_factor(weight, rows);
        let block = if right.is_packed() { PACKED_ROWS } else { rows.max(1) };
        let threads = worth_threads(ys.len());
        for_each(threads, ys.par_chunks_mut(block * self.outputs).enumerate(), |(number, ys)| {
            let (first, rows) = (number * block, ys.len() / self.outputs);
            let xs = &xs[first * self.inputs..][..rows * self.inputs];
            right.product(StridedMatrix::new(xs, rows, self.inputs), ys, Destination::Overwrite);
            finish(ys);
        });
    }

    /// Writes the wanted gradients of `xs`, `weight` and bias, inputs 0 to 2, from those before the
    /// activation.
    pub(super) fn gradients<T: Float>(
        &self,
        [xs, weight]: [&[T]; 2],
        dz: &[T],
        grads: &mut InputGradients<'_, T>,
    ) {
        let [dx, mut dw, db] = [0, 1, 2].map(|number| grads.take(number));
        if let Some(db) = db {
            column_sums(dz, db);
        }
        let rows = dz.len() / self.outputs;
        // A weight that no gradient needs is not kept.
        let mut dx = dx.map(|dx| {
            let weight = StridedMatrix::new(weight, self.outputs, self.inputs);
            (RightFactor::new(weight, rows), dx)
        });
        // Both gradients of a block read the same rows from the cache.
        let is_packed = dx.as_ref().is_some_and(|(weight, _)| weight.is_packed());
        let block = if is_packed { PACKED_GRADIENT_ROWS } else { rows.max(1) };
        // Without rows, a block of none writes zeros to the gradient of the weight.
        for first in (0..rows.max(1)).step_by(block) {
            let count = block.min(rows - first);
            let dz = &dz[first * self.outputs..][..count * self.outputs];
            let inputs = first * self.inputs..(first + count) * self.inputs;
            if let Some((weight, dx)) = &mut dx {
                let dz = StridedMatrix::new(dz, count, self.outputs);
                weight.product(dz, &mut dx[inputs.clone()], Destination::Overwrite);
            }
            if let Some(dw) = &mut dw {
                let dst = if first == 0 { Destination::Overwrite } else { Destination::Add };
                self.weight_gradient(&xs[inputs], dz, dw, dst);
            }
        }
    }

    /// Writes the gradient of the input from that before the activation.
    pub(super) fn input_gradient<T: Float>(&self, weight: &[T], dz: &[T], dx: &mut [T]) {
        let dz = StridedMatrix::new(dz, dz.len() / self.outputs, self.outputs);
        matmul(
            dx,
            Destination::Overwrite,
            dz,
            StridedMatrix::new(weight, self.outputs, self.inputs),
        );
    }

    /// Writes or adds the gradient of the weight from that before the activation.
    pub(super) fn weight_gradient<T: Float>(
        &self,
        xs: &[T],
        dz: &[T],
        dw: &mut [T],
        dst: Destination,
    ) {
        let rows = dz.len() / self.outputs;
        let dz = StridedMatrix::new(dz, rows, self.outputs);
        matmul(dw, dst, dz.t(), StridedMatrix::new(xs, rows, self.inputs));
    }

    /// Adds the bias and applies the activation, which must not need its input.
    pub(super) fn finish<T: Float>(&self, ys: &mut [T], bias: &[T]) {
        if bias.is_empty() {
            return in_blocks(ys, |_, ys| activate(ys, self.activation));
        }
        let threads = worth_threads(ys.len());
        let rows = ys.par_chunks_mut(self.outputs);
        for_each(threads, rows, |row| bias_row_activation(row, bias, self.activation));
    }

    /// Writes `residual + bias + xs right`. An omitted residual or bias is empty.
    pub(super) fn product_added<T: Float>(
        &self,
        (xs, right): (&[T], &RightFactor<'_, T>),
        bias: &[T],
        residual: &[T],
        ys: &mut [T],
    ) {
        let xs = StridedMatrix::new(xs, ys.len() / self.outputs, self.inputs);
        if residual.is_empty() {
            right.product(xs, ys, Destination::Overwrite);
            if !bias.is_empty() {
                self.finish(ys, bias);
            }
            return;
        }
        if bias.is_empty() {
            in_blocks(ys, |start, ys| ys.copy_from_slice(&residual[start..][..ys.len()]));
        } else {
            let rows = ys.par_chunks_mut(self.outputs).zip(residual.par_chunks(self.outputs));
            for_each(worth_threads(residual.len()), rows, |(y, r)| {
                simd(
                    #[inline(always)]
                    || {
                        for ((y, &r), &b) in y.iter_mut().zip(r).zip(bias) {
                            *y = r + b;
                        }
                    },
                );
            });
        }
        right.product(xs, ys, Destination::Add);
    }
}

impl FusedOp for LinearOp {
    const NAME: &'static str = NAME;

    fn reads(&self) -> BackwardReads {
        self.factors.and_output(self.activation.is_some_and(|a| !a.needs_input()))
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let &[xs, weight, bias] = inputs else { unreachable!("three inputs") };
        let Some(activation) = self.activation.filter(|activation| activation.needs_input()) else {
            self.product_then([xs, weight], ys, |ys| self.finish(ys, bias));
            return Ok(Pooled::none());
        };
        self.product([xs, weight], ys, Destination::Overwrite);
        let ys_len = ys.len();
        let mut saved = Pooled::new(ys_len);
        let rows = ys.par_chunks_mut(self.outputs).zip(saved.par_chunks_mut(self.outputs));
        for_each(worth_threads(ys_len), rows, |(row, saved)| {
            if !bias.is_empty() {
                bias_row_activation(row, bias, None);
            }
            saved.copy_from_slice(row);
            activate(row, Some(activation));
        });
        Ok(saved)
    }

    fn backward<T: Float>(&self, pass: Backward<'_, T>) -> Result<()> {
        let Backward { inputs, ys, saved, dys, mut grads, .. } = pass;
        let &[xs, weight, _] = inputs else { unreachable!("three inputs") };
        if let Some(activation) = self.activation {
            let reference = if activation.needs_input() { saved } else { ys };
            activation_backward_in_blocks(dys, reference, activation);
        }
        self.gradients([xs, weight], dys, &mut grads);
        Ok(())
    }

    fn on_gpu(&self) -> Option<&dyn GpuKernels> {
        Some(self)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs), Some(weight), bias] = inputs else { unreachable!("three inputs") };
        let rows: usize = xs.dims().iter().rev().skip(1).product();
        let ys = affine(&xs.reshape((rows, self.inputs))?, weight, bias.as_ref())?;
        activations::composite(&ys, self.activation)
    }
}

/// `xs · weightᵀ + bias` by candle's own operations, for rows `xs`.
pub(super) fn affine(xs: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let ys = xs.matmul(&weight.t()?)?;
    if let Some(bias) = bias { ys.broadcast_add(bias) } else { Ok(ys) }
}
