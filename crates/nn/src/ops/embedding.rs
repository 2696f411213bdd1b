//! Rows of a table by index.
//!
//! ```text
//! forward    y_i = w[index_i]
//! backward   dw[v] = sum over all i with index_i = v of dy_i, in the order of i
//! ```

use candle_core::{DType, Result, Tensor, bail};
use rayon::prelude::*;

use super::elementwise::add_assign;
use super::float::Float;
use super::fused::{self, Backward, Fused, Reads};
use super::parallel;
use super::pool::Pooled;

const NAME: &str = "embedding";

/// The number of parts into which the rows of a large table are split in the backward.
const PARTS: usize = 16;

/// The rows of `weight` at `indices`. The row `padding_index` gets no gradient, as with PyTorch's
/// `padding_idx`: a padding token is not trained.
///
/// # Shapes
///
/// `weight` (V, D), `indices` (..) in u8, u32 or i64 -> (.., D).
///
/// # Errors
///
/// If an index is not below V (the error names it), `indices` are not integers, or the dtype of
/// `weight` is neither f32 nor f64.
pub fn embedding(
    weight: &Tensor,
    indices: &Tensor,
    padding_index: Option<usize>,
) -> Result<Tensor> {
    let (vocabulary, dim) = weight.dims2()?;
    if dim == 0 {
        bail!("{NAME}: rows without elements, weight of shape {:?}", weight.shape());
    }
    if let Some(index) = padding_index.filter(|index| *index >= vocabulary) {
        bail!("{NAME}: padding index {index}, but there are {vocabulary} rows");
    }
    let mut shape = indices.dims().to_vec();
    shape.push(dim);
    let indices = rows(indices, vocabulary)?;
    fused::run(Embedding { dim, indices, padding_index }, shape, &[Some(weight)])
}

fn rows(indices: &Tensor, vocabulary: usize) -> Result<Vec<usize>> {
    if !matches!(indices.dtype(), DType::U8 | DType::U32 | DType::I64) {
        bail!("{NAME}: indices of dtype {:?}, expected u8, u32 or i64", indices.dtype());
    }
    let indices = indices.to_dtype(DType::I64)?.flatten_all()?.to_vec1::<i64>()?;
    let row = |(position, index): (usize, i64)| match usize::try_from(index) {
        Ok(row) if row < vocabulary => Ok(row),
        _ => bail!("{NAME}: index {index} at {position}, but there are {vocabulary} rows"),
    };
    indices.into_iter().enumerate().map(row).collect()
}

struct Embedding {
    dim: usize,
    indices: Vec<usize>,
    padding_index: Option<usize>,
}

impl Fused for Embedding {
    const NAME: &'static str = NAME;

    fn reads(&self) -> Reads {
        Reads::NOTHING
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        for (y, &index) in ys.chunks_exact_mut(self.dim).zip(&self.indices) {
            y.copy_from_slice(&inputs[0][index * self.dim..][..self.dim]);
        }
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let Some(dw) = pass.grads.take(0) else { return Ok(()) };
        let dys = &*pass.dys;
        let vocabulary = dw.len() / self.dim;
        // Each part finds its own rows among all indices, so only one thread writes a row.
        let part = vocabulary.div_ceil(PARTS).max(1);
        let add = |(number, dw): (usize, &mut [T])| {
            dw.fill(T::zero());
            let first = number * part;
            let own = first..first + dw.len() / self.dim;
            for (dy, index) in dys.chunks_exact(self.dim).zip(&self.indices) {
                if own.contains(index) && Some(*index) != self.padding_index {
                    add_assign(&mut dw[(index - first) * self.dim..][..self.dim], dy);
                }
            }
        };
        if parallel::worth_threads(dw.len() + dys.len()) {
            dw.par_chunks_mut(part * self.dim).enumerate().for_each(add);
        } else {
            dw.chunks_mut(part * self.dim).enumerate().for_each(add);
        }
        Ok(())
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(weight)] = inputs else { unreachable!("one input") };
        let device = weight.device();
        let indices = Tensor::from_iter(self.indices.iter().map(|&index| index as u32), device)?;
        let rows = weight.index_select(&indices, 0)?;
        let Some(padding) = self.padding_index else { return Ok(rows) };
        let is_padding = indices.eq(padding as u32)?.unsqueeze(1)?.broadcast_as(rows.shape())?;
        is_padding.where_cond(&rows.detach(), &rows)
    }
}
