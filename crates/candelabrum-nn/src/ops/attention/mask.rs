//! The mask of an attention: a number that is added to each score.
//!
//! A mask is additive because this covers everything: minus infinity hides a key, and other numbers are
//! the biases of ALiBi or of relative positions. It is broadcast without being copied.

use candle_core::{DType, Result, Tensor, bail};

use super::geometry::AttentionGeometry;
use crate::kernels::gemm::MatrixRows;

/// Where the rows of a mask lie, in elements: 0 for a dimension that is broadcast.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaskLayout {
    sequence: usize,
    head: usize,
    query: usize,
}

impl MaskLayout {
    pub(super) fn new(
        mask: &Tensor,
        dtype: DType,
        geometry: &AttentionGeometry,
        name: &str,
    ) -> Result<Self> {
        if mask.track_op() {
            bail!("{name}: no gradient for the mask, detach it");
        }
        if mask.dtype() != dtype {
            bail!(
                "{name}: mask of {:?} for scores of {dtype:?}; it is added to the scores, so make it of \
                 their dtype, with 0 for a key that counts and minus infinity for one that does not",
                mask.dtype()
            );
        }
        let &AttentionGeometry { batch, heads, queries, keys, .. } = geometry;
        let [n, h, q, k] = match *mask.dims() {
            [q, k] => [1, 1, q, k],
            [n, h, q, k] => [n, h, q, k],
            _ => [0; 4],
        };
        let fits = |size: usize, full: usize| size == full || size == 1;
        if !fits(n, batch) || !fits(h, heads) || !fits(q, queries) || k != keys {
            bail!(
                "{name}: mask of shape {:?}, expected ({queries}, {keys}) or ({batch}, {heads}, \
                 {queries}, {keys}), where all but the last may be 1",
                mask.shape()
            );
        }
        let stride = |size: usize, stride: usize| if size == 1 { 0 } else { stride };
        Ok(Self { sequence: stride(n, h * q * k), head: stride(h, q * k), query: stride(q, k) })
    }

    /// The distances between the masks of two sequences, of two heads and of two queries.
    pub(crate) fn steps(&self) -> [usize; 3] {
        [self.sequence, self.head, self.query]
    }

    /// A row for each query from this one on, with the numbers for the keys from this one on.
    #[inline(always)]
    pub(super) fn rows<'a, T>(
        &self,
        mask: &'a [T],
        (sequence, head): (usize, usize),
        query: usize,
        key: usize,
    ) -> MatrixRows<&'a [T]> {
        let first = sequence * self.sequence + head * self.head + query * self.query + key;
        MatrixRows { data: &mask[first..], step: self.query }
    }
}
