//! Rows of a table by index.
//!
//! ```text
//! forward    y_i = w[index_i]
//! backward   dw[v] = sum over all i with index_i = v of dy_i, in the order of i
//! ```

mod gpu;
pub(super) mod positions;

use candle_core::{DType, Result, Tensor, bail};
use rayon::prelude::*;

use super::sizes::{is_index, sizes};
use crate::autograd::fused::{self, Backward, FusedOp, GpuKernels};
use crate::kernels::elementwise::add_assign;
use crate::kernels::float::Float;
use crate::kernels::parallel;
use crate::kernels::scratch::Pooled;
use candelabrum_memory::simd::simd;

const NAME: &str = "embedding";

/// The number of parts into which the rows of a large table are split for several threads in the backward.
const PARTS: usize = 16;

/// The rows of `weight` at `indices`. The row `padding_index` gets no gradient, as with PyTorch's
/// `padding_idx`: a padding token is not trained.
///
/// Indices on the CPU are checked. Indices on a GPU stay there and are not checked, because the
/// program would have to wait for the GPU: an index that is not below V gives a row of NaN.
///
/// # Shapes
///
/// `weight` (V, D), `indices` (..) in u8, u32 or i64 -> (.., D).
///
/// # Errors
///
/// If an index on the CPU is not below V (the error names it), `indices` are not integers, or the dtype of
/// `weight` is no float.
pub fn embedding(
    weight: &Tensor,
    indices: &Tensor,
    padding_index: Option<usize>,
) -> Result<Tensor> {
    let op = EmbeddingOp::new(weight, indices, padding_index)?;
    let mut shape = indices.dims().to_vec();
    shape.push(op.dim);
    fused::run(op, shape, &[Some(weight)])
}

/// The indices, without the structure of their shape.
pub(super) enum Indices {
    /// Below the number of rows.
    Checked(Vec<usize>),
    /// On the device of the table.
    OnDevice(Tensor),
}

impl Indices {
    fn new(indices: &Tensor, vocabulary: usize, weight: &Tensor) -> Result<Self> {
        let device = weight.device();
        if device.is_cpu() {
            return Ok(Self::Checked(rows(indices, vocabulary)?));
        }
        if indices.device().is_cpu() {
            rows(indices, vocabulary)?;
        } else if vocabulary == 0 && indices.elem_count() > 0 {
            bail!("{NAME}: indices of shape {:?}, but there are no rows", indices.shape());
        }
        Ok(Self::OnDevice(indices.to_device(device)?.flatten_all()?.contiguous()?))
    }
}

fn rows(indices: &Tensor, vocabulary: usize) -> Result<Vec<usize>> {
    let indices = indices.to_dtype(DType::I64)?.flatten_all()?.to_vec1::<i64>()?;
    let row = |(position, index): (usize, i64)| match usize::try_from(index) {
        Ok(row) if row < vocabulary => Ok(row),
        _ => bail!("{NAME}: index {index} at {position}, but there are {vocabulary} rows"),
    };
    indices.into_iter().enumerate().map(row).collect()
}

pub(super) struct EmbeddingOp {
    pub(super) vocabulary: usize,
    pub(super) dim: usize,
    pub(super) indices: Indices,
    pub(super) padding_index: Option<usize>,
}

impl EmbeddingOp {
    pub(super) fn new(
        weight: &Tensor,
        indices: &Tensor,
        padding_index: Option<usize>,
    ) -> Result<Self> {
        let [vocabulary, dim] = sizes(NAME, "weight", weight.shape(), "(V, D)")?;
        if dim == 0 {
            bail!("{NAME}: rows without elements, weight of shape {:?}", weight.shape());
        }
        if let Some(index) = padding_index.filter(|index| *index >= vocabulary) {
            bail!("{NAME}: padding index {index}, but there are {vocabulary} rows");
        }
        if !is_index(indices.dtype()) {
            bail!("{NAME}: indices of dtype {:?}, expected u8, u32 or i64", indices.dtype());
        }
        let indices = Indices::new(indices, vocabulary, weight)?;
        Ok(Self { vocabulary, dim, indices, padding_index })
    }

    fn checked(&self) -> Result<&[usize]> {
        match &self.indices {
            Indices::Checked(indices) => Ok(indices),
            Indices::OnDevice(_) => bail!("{NAME}: indices on a device, this is a bug"),
        }
    }

    /// Writes the rows of `weight` to `ys`.
    pub(super) fn look_up<T: Float>(&self, weight: &[T], ys: &mut [T]) -> Result<()> {
        for (y, &index) in ys.chunks_exact_mut(self.dim).zip(self.checked()?) {
            y.copy_from_slice(&weight[index * self.dim..][..self.dim]);
        }
        Ok(())
    }

    /// Writes the gradient of the weight.
    pub(super) fn add_rows<T: Float>(&self, dys: &[T], dw: &mut [T]) -> Result<()> {
        let indices = self.checked()?;
        let threads = parallel::worth_threads(dw.len() + dys.len());
        // Each part finds its own rows among all indices, so only one thread writes a row.
        let part = self.vocabulary.div_ceil(if threads { PARTS } else { 1 }).max(1);
        let add = |(number, dw): (usize, &mut [T])| {
            dw.fill(T::zero());
            let first = number * part;
            let own = first..first + dw.len() / self.dim;
            simd(
                #[inline(always)]
                || {
                    for (dy, index) in dys.chunks_exact(self.dim).zip(indices) {
                        if own.contains(index) && Some(*index) != self.padding_index {
                            add_assign(&mut dw[(index - first) * self.dim..][..self.dim], dy);
                        }
                    }
                },
            );
        };
        parallel::for_each(threads, dw.par_chunks_mut(part * self.dim).enumerate(), add);
        Ok(())
    }
}

impl FusedOp for EmbeddingOp {
    const NAME: &'static str = NAME;

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        self.look_up(inputs[0], ys)?;
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let Some(dw) = pass.grads.take(0) else { return Ok(()) };
        self.add_rows(pass.dys, dw)
    }

    fn on_gpu(&self) -> Option<&dyn GpuKernels> {
        Some(self)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(weight)] = inputs else { unreachable!("one input") };
        let (indices, rows) = match &self.indices {
            Indices::Checked(indices) => {
                let indices = indices.iter().map(|&index| index as i64);
                let indices = Tensor::from_iter(indices, weight.device())?;
                let rows = weight.index_select(&indices, 0)?;
                (indices, rows)
            }
            Indices::OnDevice(indices) => {
                let indices = indices.to_dtype(DType::I64)?;
                let is_row = (indices.ge(0i64)? * indices.lt(self.vocabulary as i64)?)?;
                // candle's kernel would end the work of the device at an index out of range.
                let rows = is_row.where_cond(&indices, &indices.zeros_like()?)?;
                let rows = weight.index_select(&rows, 0)?;
                let nan = rows.zeros_like()?.affine(0.0, f64::NAN)?;
                (indices, broadcast_as(&is_row, &rows)?.where_cond(&rows, &nan)?)
            }
        };
        let Some(padding) = self.padding_index else { return Ok(rows) };
        let is_padding = broadcast_as(&indices.eq(padding as i64)?, &rows)?;
        is_padding.where_cond(&rows.detach(), &rows)
    }
}

/// The number of each row for every element of the row.
fn broadcast_as(numbers: &Tensor, rows: &Tensor) -> Result<Tensor> {
    numbers.unsqueeze(1)?.broadcast_as(rows.shape())
}
