//! A fully connected layer whose frozen weight is stored in few bits for each number.
//!
//! ```text
//! forward    y = x w^T + b      some rows of w at a time, dequantised
//! backward   dx = sum over these rows of dz w      db = column sums of dz
//! ```
//!
//! The weight has no gradient. Dequantising takes one pass over the weight in the forward and one in the backward,
//! where a product reads the weight anyway.

use candle_core::{Result, Tensor, bail};
use rayon::prelude::*;

use super::linear::affine;
use super::sizes::rows_and_last;
use crate::QuantizedMatrix;
use crate::autograd::fused::{self, Backward, FusedOp};
use crate::kernels::column_sums::column_sums;
use crate::kernels::elementwise::add_assign;
use crate::kernels::float::Float;
use crate::kernels::mat_mut::MatMut;
use crate::kernels::matmul::{Destination, StridedMatrix, matmul_into};
use crate::kernels::parallel::{for_each, worth_threads};
use crate::kernels::scratch::Pooled;

const NAME: &str = "linear_quantized";

/// The number of weights that are dequantised at the same time: 1 MiB in f32, which stays in the caches.
const WEIGHTS: usize = 1 << 18;

/// The rows that a thread dequantises at a time.
const ROWS: usize = 16;

/// `xs weight^T + bias` for a frozen `weight`. On a GPU the weight is dequantised as a whole.
///
/// # Shapes
///
/// `xs` (.., in), `weight` (out, in), `bias` (out) -> (.., out).
///
/// # Errors
///
/// If shapes or dtypes do not fit together, or the dtype is no float.
pub fn linear_quantized(
    xs: &Tensor,
    weight: &QuantizedMatrix,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let (outputs, inputs) = weight.dims();
    let (rows, last) = rows_and_last(NAME, "input", xs.shape(), "(.., in)")?;
    if last != inputs {
        bail!("{NAME}: input of shape {:?} for a weight of ({outputs}, {inputs})", xs.shape());
    }
    if let Some(bias) = bias.filter(|bias| bias.dims() != [outputs]) {
        bail!("{NAME}: bias of shape {:?} for {outputs} outputs", bias.shape());
    }
    let mut shape = rows.to_vec();
    shape.push(outputs);
    fused::run(LinearQuantized::new(weight.clone()), shape, &[Some(xs), bias])
}

pub(super) struct LinearQuantized {
    weight: QuantizedMatrix,
}

impl LinearQuantized {
    pub(super) fn new(weight: QuantizedMatrix) -> Self {
        Self { weight }
    }

    pub(super) fn weight(&self) -> &QuantizedMatrix {
        &self.weight
    }

    /// Writes `xs weight^T + bias`. An omitted bias is empty.
    pub(super) fn product<T: Float>(&self, xs: &[T], bias: &[T], ys: &mut [T]) -> Result<()> {
        let (outputs, inputs) = self.weight.dims();
        let rows = ys.len() / outputs.max(1);
        let xs = StridedMatrix::new(xs, rows, inputs);
        self.for_rows(|first, weight| {
            let columns = first..first + weight.rows_len();
            let mut ys = MatMut::new(ys, rows, outputs);
            matmul_into(ys.part(0..rows, columns), Destination::Overwrite, xs, weight.t());
        })?;
        if !bias.is_empty() {
            let threads = worth_threads(ys.len());
            for_each(threads, ys.par_chunks_mut(outputs), |row| add_assign(row, bias));
        }
        Ok(())
    }

    /// Writes the gradient of the input.
    pub(super) fn input_gradient<T: Float>(&self, dys: &[T], dx: &mut [T]) -> Result<()> {
        let (outputs, inputs) = self.weight.dims();
        if outputs == 0 {
            dx.fill(T::zero());
        }
        let rows = dys.len() / outputs.max(1);
        let dys = StridedMatrix::new(dys, rows, outputs);
        self.for_rows(|first, weight| {
            let dst = if first == 0 { Destination::Overwrite } else { Destination::Add };
            let columns = dys.columns(first..first + weight.rows_len());
            matmul_into(MatMut::new(dx, rows, inputs), dst, columns, weight);
        })
    }

    /// Calls `f` with some rows of the weight at a time, and the number of the first one.
    fn for_rows<T: Float>(&self, mut f: impl FnMut(usize, StridedMatrix<'_, T>)) -> Result<()> {
        let (rows, columns) = self.weight.dims();
        let most = (WEIGHTS / columns.max(1)).max(ROWS).min(rows);
        let mut block: Pooled<T> = Pooled::new(most * columns);
        for first in (0..rows).step_by(most.max(1)) {
            let count = most.min(rows - first);
            let block = &mut block[..count * columns];
            self.dequantize(first, block)?;
            f(first, StridedMatrix::new(block, count, columns));
        }
        Ok(())
    }

    /// Writes the rows from `first` on.
    fn dequantize<T: Float>(&self, first: usize, out: &mut [T]) -> Result<()> {
        let columns = self.weight.dims().1.max(1);
        let failed = parking_lot::Mutex::new(Ok(()));
        let parts = out.par_chunks_mut(ROWS * columns).enumerate();
        for_each(worth_threads(parts.len() * ROWS * columns), parts, |(number, part)| {
            let start = first + number * ROWS;
            let range = start..start + part.len() / columns;
            let written = match T::f32s_mut(part) {
                Some(numbers) => self.weight.write_rows(range, numbers),
                None => {
                    let mut numbers = vec![0.0; part.len()];
                    let written = self.weight.write_rows(range, &mut numbers);
                    for (out, number) in part.iter_mut().zip(numbers) {
                        *out = T::narrow(f64::from(number));
                    }
                    written
                }
            };
            if written.is_err() {
                *failed.lock() = written;
            }
        });
        failed.into_inner()
    }
}

impl FusedOp for LinearQuantized {
    const NAME: &'static str = NAME;

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let &[xs, bias] = inputs else { unreachable!("two inputs") };
        self.product(xs, bias, ys)?;
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, pass: Backward<'_, T>) -> Result<()> {
        let Backward { dys, mut grads, .. } = pass;
        if let Some(dx) = grads.take(0) {
            self.input_gradient(dys, dx)?;
        }
        if let Some(db) = grads.take(1) {
            column_sums(dys, db);
        }
        Ok(())
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs), bias] = inputs else { unreachable!("two inputs") };
        let weight = self.weight.dequantize(xs.dtype(), xs.device())?;
        let inputs = self.weight.dims().1;
        let rows: usize = xs.dims().iter().rev().skip(1).product();
        affine(&xs.reshape((rows, inputs))?, &weight, bias.as_ref())
    }
}
