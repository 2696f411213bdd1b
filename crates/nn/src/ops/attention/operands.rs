//! What an attention reads, and the copies in which the products read it.

use std::hint::black_box;
use std::ops::Range;

use candelabrum_memory::simd::simd;

use super::super::float::Float;
use super::block::Block;
use super::geometry::{Geometry, Heads};
use super::matrix::{Matrix, scaled};
use super::rotary::Table;
use super::scores::Masking;

/// What all tasks of an attention read.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a, T> {
    pub(super) geometry: &'a Geometry,
    pub(super) rotary: Option<&'a Table>,
    pub(super) masking: Masking<'a, T>,
    /// Queries, keys and values.
    pub(super) heads: [Heads<'a, T>; 3],
}

impl<T: Float> Operands<'_, T> {
    /// The keys of a head of a sequence, rotated, and multiplied by the factor of the scores.
    pub(super) fn keys(&self, sequence: usize, kv_head: usize) -> Matrix<T> {
        let &Geometry { keys, dim, scale, .. } = self.geometry;
        let (mut copy, scale) = (Matrix::new(keys, dim), T::from_f64(scale));
        simd(
            #[inline(always)]
            || {
                for key in 0..keys {
                    let (x, copy) = (self.heads[1].row(sequence, kv_head, key), copy.row_mut(key));
                    match self.rotary {
                        None => scaled(x, scale, copy),
                        Some(table) => {
                            table.rotate(key, x, copy);
                            copy.iter_mut().for_each(|x| *x *= scale);
                        }
                    }
                }
            },
        );
        copy
    }

    /// The values of a head of a sequence.
    pub(super) fn values(&self, sequence: usize, kv_head: usize) -> Matrix<T> {
        let &Geometry { keys, dim, .. } = self.geometry;
        let mut copy = Matrix::new(keys, dim);
        copy_rows(&self.heads[2], (sequence, kv_head), 0..keys, &mut copy);
        copy
    }

    /// Writes the queries of a block, rotated, to `rows`.
    pub(super) fn queries(&self, block: &Block<'_>, rows: &mut Matrix<T>) {
        let (heads, range) = (&self.heads[0], block.query..block.query + block.queries);
        let Some(table) = self.rotary else {
            return copy_rows(heads, (block.sequence, block.head), range, rows);
        };
        simd(
            #[inline(always)]
            || {
                for (row, query) in range.clone().enumerate() {
                    let x = heads.row(block.sequence, block.head, query);
                    table.rotate(query + table.shift(), x, rows.row_mut(row));
                }
            },
        );
    }
}

/// Copies some rows of a head.
pub(super) fn copy_rows<T: Float>(
    heads: &Heads<'_, T>,
    (sequence, head): (usize, usize),
    range: Range<usize>,
    to: &mut Matrix<T>,
) {
    // The compiler must not know this factor: a call of `memcpy` for each short row takes longer.
    let one = black_box(T::one());
    simd(
        #[inline(always)]
        || {
            for (row, from) in range.clone().enumerate() {
                scaled(heads.row(sequence, head, from), one, to.row_mut(row));
            }
        },
    );
}
