//! The sizes of an attention, and where its rows lie in the operands.

use crate::kernels::gemm::MatrixRows;

/// The sizes of an attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionGeometry {
    /// The number of sequences.
    pub(crate) batch: usize,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    /// The size of a head.
    pub(crate) dim: usize,
    pub(crate) causal: bool,
    /// The factor of the scores.
    pub(crate) scale: f64,
}

impl AttentionGeometry {
    /// The heads of queries that share a head of keys and values.
    pub(crate) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The number of keys that query `query` sees: the last query sees all.
    #[inline(always)]
    pub(super) fn visible(&self, query: usize) -> usize {
        if self.causal { query + 1 + self.keys - self.queries } else { self.keys }
    }

    /// The columns of the queries, or of the result, of one row.
    pub(crate) fn query_columns(&self) -> usize {
        self.heads * self.dim
    }

    /// The columns of the keys, or of the values, of one row.
    pub(crate) fn key_columns(&self) -> usize {
        self.kv_heads * self.dim
    }
}

/// Queries, keys, values or results: one matrix for each sequence and head, in the tensor of all.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadLayout<'a, T> {
    data: &'a [T],
    /// The rows of a sequence.
    rows: usize,
    dim: usize,
    row_stride: usize,
    /// The column of the first head.
    first: usize,
}

impl<'a, T> HeadLayout<'a, T> {
    /// A tensor (N, rows, columns) whose columns are the heads alone.
    pub(super) fn whole(data: &'a [T], rows: usize, columns: usize, dim: usize) -> Self {
        Self { data, rows, dim, row_stride: columns, first: 0 }
    }

    /// Queries, keys and values in one tensor (N, T, (H + 2 G) D).
    pub(super) fn packed(data: &'a [T], geometry: &AttentionGeometry) -> [Self; 3] {
        let (queries, keys) = (geometry.query_columns(), geometry.key_columns());
        [0, queries, queries + keys].map(|first| Self {
            data,
            rows: geometry.keys,
            dim: geometry.dim,
            row_stride: queries + 2 * keys,
            first,
        })
    }

    pub(super) fn dim(&self) -> usize {
        self.dim
    }

    /// The rows of a head of a sequence, from this one on.
    pub(super) fn rows(&self, sequence: usize, head: usize, row: usize) -> MatrixRows<&'a [T]> {
        let start = (sequence * self.rows + row) * self.row_stride + self.first + head * self.dim;
        MatrixRows { data: &self.data[start..], step: self.row_stride }
    }

    /// One row of a head of a sequence.
    #[inline(always)]
    pub(super) fn row(&self, sequence: usize, head: usize, row: usize) -> &'a [T] {
        let row = sequence * self.rows + row;
        &self.data[row * self.row_stride + self.first + head * self.dim..][..self.dim]
    }
}
