//! The forward pass of the heads that share one head of keys and values.

use super::block::{AttentionBlock, KEYS, QUERIES};
use super::geometry::AttentionGeometry;
use super::matrix::PaddedMatrix;
use super::operands::Operands;
use super::scores::{RunningSoftmax, add_products, products};
use crate::kernels::float::Float;
use crate::kernels::mat_mut::MatMut;

/// Computes the results `ys` (queries, group · D) of all heads that use head `kv_head`, and the
/// logarithms of their sums, `lse` (group, queries).
pub(super) fn forward<T: Float>(
    operands: &Operands<'_, T>,
    (sequence, kv_head): (usize, usize),
    mut ys: MatMut<'_, T>,
    lse: &mut [T],
) {
    let geometry = operands.geometry;
    let &AttentionGeometry { queries, dim, .. } = geometry;
    let (keys, values) = (operands.keys(sequence, kv_head), operands.values(sequence, kv_head));
    let (most_queries, most_keys) = (queries.min(QUERIES), geometry.keys.min(KEYS));
    let scale = T::from_f64(geometry.scale);
    let mut turned = PaddedMatrix::new(dim, most_queries);
    let mut scores = PaddedMatrix::new(most_keys, most_queries);
    let mut sums = PaddedMatrix::new(most_queries, dim);
    for (member, lse) in lse.chunks_exact_mut(queries).enumerate() {
        let head = kv_head * geometry.group() + member;
        for block in AttentionBlock::of_head::<T>(geometry, sequence, head) {
            let rows = operands.queries(&block);
            turned.turn(rows.right(0), (block.queries, dim), scale);
            let mut running = RunningSoftmax::new();
            for block in block.with_keys() {
                products(&block, (&keys, &turned), &mut scores);
                operands.masking.exponentials(&block, &mut scores, &mut running);
                if block.key > 0 {
                    sums.scale_rows(&running.correction.as_flattened()[..block.queries]);
                }
                add_products(&block, (&scores, &values), &mut sums);
            }
            let ys = ys.part(block.query_range(), member * dim..(member + 1) * dim);
            sums.store(ys, |row| running.factor(row));
            for (row, lse) in lse[block.query_range()].iter_mut().enumerate() {
                *lse = running.logarithm(row);
            }
        }
    }
}
