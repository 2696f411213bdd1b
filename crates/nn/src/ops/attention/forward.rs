//! The forward pass of the heads that share one head of keys and values.

use std::ops::Range;

use candelabrum_memory::simd::simd;

use super::super::float::Float;
use super::super::mat_mut::MatMut;
use super::super::matmul::{Dst, Mat, matmul_into};
use super::super::pool::Pooled;
use super::geometry::{Geometry, Heads, KEYS, QUERIES};
use super::rotary::Table;
use super::scores::{Block, Masking, Running};

/// What all tasks of an attention read.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a, T> {
    pub(super) geometry: &'a Geometry,
    pub(super) rotary: Option<&'a Table>,
    pub(super) masking: Masking<'a, T>,
    /// Queries, keys and values.
    pub(super) heads: [Heads<'a, T>; 3],
}

/// The keys of one head, rotated if the attention rotates them.
pub(super) enum Keys<'a, T: Float> {
    InPlace(Heads<'a, T>),
    Rotated(Pooled<T>),
}

impl<'a, T: Float> Operands<'a, T> {
    /// The keys of a head of a sequence.
    pub(super) fn keys(&self, sequence: usize, kv_head: usize) -> Keys<'a, T> {
        let &Geometry { keys, dim, .. } = self.geometry;
        let Some(table) = self.rotary else { return Keys::InPlace(self.heads[1]) };
        let mut rotated = Pooled::new(keys * dim);
        simd(
            #[inline(always)]
            || {
                for (row, out) in rotated.chunks_exact_mut(dim).enumerate() {
                    table.rotate(row, self.heads[1].row(sequence, kv_head, row), out);
                }
            },
        );
        Keys::Rotated(rotated)
    }

    /// Some queries of a head: in place, or rotated into `scratch`.
    pub(super) fn queries<'b>(&'b self, block: &Block, scratch: &'b mut [T]) -> Mat<'b, T> {
        let (queries, dim) = (self.heads[0], self.geometry.dim);
        let rows = block.query..block.query + block.queries;
        let Some(table) = self.rotary else {
            return queries.rows(block.sequence, block.head, rows);
        };
        let scratch = &mut scratch[..block.queries * dim];
        simd(
            #[inline(always)]
            || {
                for (row, out) in rows.clone().zip(scratch.chunks_exact_mut(dim)) {
                    let x = queries.row(block.sequence, block.head, row);
                    table.rotate(row + table.shift(), x, out);
                }
            },
        );
        Mat::new(scratch, block.queries, dim)
    }

    /// Scratch for [`Self::queries`].
    pub(super) fn query_scratch(&self) -> Pooled<T> {
        match self.rotary {
            Some(_) => Pooled::new(self.geometry.block() * self.geometry.dim),
            None => Pooled::none(),
        }
    }
}

impl<T: Float> Keys<'_, T> {
    pub(super) fn rows(
        &self,
        (sequence, kv_head): (usize, usize),
        rows: Range<usize>,
        dim: usize,
    ) -> Mat<'_, T> {
        match self {
            Self::InPlace(heads) => heads.rows(sequence, kv_head, rows),
            Self::Rotated(keys) => {
                Mat::new(&keys[rows.start * dim..rows.end * dim], rows.len(), dim)
            }
        }
    }
}

/// The scratch memory for the scores of a block.
pub(super) fn score_scratch<T: Float>(geometry: &Geometry) -> Pooled<T> {
    Pooled::new(geometry.queries.min(geometry.block()) * geometry.keys.min(KEYS))
}

/// Computes the results `ys` (queries, group · D) of all heads that use head `kv_head`, and the
/// logarithms of their sums, `lse` (group, queries).
pub(super) fn forward<T: Float>(
    operands: &Operands<'_, T>,
    (sequence, kv_head): (usize, usize),
    mut ys: MatMut<'_, T>,
    lse: &mut [T],
) {
    let geometry = operands.geometry;
    let &Geometry { queries, dim, .. } = geometry;
    let keys = operands.keys(sequence, kv_head);
    let mut scores = score_scratch(geometry);
    let mut scratch = operands.query_scratch();
    for (member, lse) in lse.chunks_exact_mut(queries).enumerate() {
        let head = kv_head * geometry.group() + member;
        for query in (0..queries).step_by(geometry.block()) {
            let count = geometry.block().min(queries - query);
            let mut ys = ys.part(query..query + count, member * dim..(member + 1) * dim);
            let mut running = [Running::new(); QUERIES];
            let running = &mut running[..count];
            let whole =
                Block { sequence, head, query, queries: count, key: 0, keys: geometry.keys };
            let q = operands.queries(&whole, &mut scratch);
            let visible = geometry.visible(query + count - 1);
            for key in (0..visible).step_by(KEYS) {
                let block = Block { key, keys: KEYS.min(visible - key), ..whole };
                let range = key..key + block.keys;
                let scores = &mut scores[..count * block.keys];
                let out = MatMut::new(scores, count, block.keys);
                let k = keys.rows((sequence, kv_head), range.clone(), dim);
                matmul_into(out, Dst::Overwrite, T::from_f64(geometry.scale), q, k.t());
                operands.masking.exponentials(&block, scores, running);
                if key > 0 {
                    scale_rows(&mut ys, running.iter().map(|running| running.correction));
                }
                let dst = if key == 0 { Dst::Overwrite } else { Dst::Add };
                let values = operands.heads[2].rows(sequence, kv_head, range);
                let p = Mat::new(scores, count, block.keys);
                matmul_into(ys.part(0..count, 0..dim), dst, T::one(), p, values);
            }
            let rows = running.iter().zip(&mut lse[query..]);
            let factors = rows.map(|(running, lse)| {
                let (factor, logarithm) = running.finish();
                *lse = logarithm;
                factor
            });
            scale_rows(&mut ys, factors);
        }
    }
}

/// Multiplies each row by its factor.
fn scale_rows<T: Float>(ys: &mut MatMut<'_, T>, factors: impl Iterator<Item = T>) {
    for (row, factor) in factors.enumerate() {
        ys.row(row).iter_mut().for_each(|y| *y *= factor);
    }
}
