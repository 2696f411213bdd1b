//! The backward pass of the heads that share one head of keys and values. The scores are computed
//! again, block by block.

use candelabrum_memory::simd::simd;

use super::block::{AttentionBlock, KEYS, QUERIES};
use super::geometry::{AttentionGeometry, HeadLayout};
use super::head_rows::HeadRows;
use super::matrix::{LANES, PaddedMatrix, multiply};
use super::operands::Operands;
use super::scores::{PerQuery, add_products, products};
use crate::kernels::float::Float;
use crate::kernels::gemm::ProductSize;
use crate::kernels::mat_mut::MatMut;

/// The gradients of the operands that the task writes: those of the queries (queries, group · D), of
/// the keys and of the values (keys, D).
pub(super) struct AttentionGradients<'a, T> {
    pub(super) queries: Option<MatMut<'a, T>>,
    pub(super) keys: Option<MatMut<'a, T>>,
    pub(super) values: Option<MatMut<'a, T>>,
}

/// What the backward pass reads beside the operands.
#[derive(Clone, Copy)]
pub(super) struct Results<'a, T> {
    pub(super) ys: HeadLayout<'a, T>,
    pub(super) dys: HeadLayout<'a, T>,
}

/// Writes all `gradients` of the heads that use head `kv_head`. `lse` is what the forward saved for
/// them.
pub(super) fn backward<T: Float>(
    operands: &Operands<'_, T>,
    results: Results<'_, T>,
    (sequence, kv_head): (usize, usize),
    lse: &[T],
    mut gradients: AttentionGradients<'_, T>,
) {
    let geometry = operands.geometry;
    let &AttentionGeometry { queries, dim, .. } = geometry;
    let scale = T::from_f64(geometry.scale);
    let (k, v) = (operands.keys(sequence, kv_head), operands.values(sequence, kv_head));
    let (most_queries, most_keys) = (queries.min(QUERIES), geometry.keys.min(KEYS));
    let mut dq = PaddedMatrix::new(most_queries, dim);
    let [mut turned_q, mut turned_dy] = [(); 2].map(|()| PaddedMatrix::new(dim, most_queries));
    let [mut scores, mut dp] = [(); 2].map(|()| PaddedMatrix::new(most_keys, most_queries));
    let [mut dk, mut dv] = [(); 2].map(|()| PaddedMatrix::zeros(geometry.keys, dim));
    for (member, lse) in lse.chunks_exact(queries).enumerate() {
        let head = kv_head * geometry.group() + member;
        for block in AttentionBlock::of_head::<T>(geometry, sequence, head) {
            let range = block.query_range();
            let q = operands.queries(&block);
            turned_q.turn(q.right(0), (block.queries, dim), scale);
            let dy = HeadRows::new(&results.dys, (sequence, head), range.clone(), None);
            turned_dy.turn(dy.right(0), (block.queries, dim), T::one());
            let mut logarithms = [[T::narrow(f64::INFINITY); LANES]; QUERIES / LANES];
            logarithms.as_flattened_mut()[..block.queries].copy_from_slice(&lse[range.clone()]);
            let delta = deltas(results, &block);
            for block in block.with_keys() {
                products(&block, (&k, &turned_q), &mut scores);
                products(&block, (&v, &turned_dy), &mut dp);
                let sums = (&logarithms, &delta);
                operands.masking.gradients(&block, (&mut scores, &mut dp), sums);
                if gradients.values.is_some() {
                    add_to_keys(&block, (&scores, &dy), &mut dv);
                }
                if gradients.keys.is_some() {
                    add_to_keys(&block, (&dp, &q), &mut dk);
                }
                if gradients.queries.is_some() {
                    add_products(&block, (&dp, &k), &mut dq);
                }
            }
            if let Some(gradient) = &mut gradients.queries {
                let gradient = gradient.part(range, member * dim..(member + 1) * dim);
                dq.store(gradient, |_| scale);
            }
        }
    }
    if let Some(gradient) = &mut gradients.keys {
        dk.store(gradient.part(0..geometry.keys, 0..dim), |_| scale);
    }
    if let Some(gradient) = &mut gradients.values {
        dv.store(gradient.part(0..geometry.keys, 0..dim), |_| T::one());
    }
    turn_back(operands, &mut gradients);
}

/// Where queries and keys were turned by their positions, turns their gradients back.
fn turn_back<T: Float>(operands: &Operands<'_, T>, gradients: &mut AttentionGradients<'_, T>) {
    let Some(table) = operands.rotary else { return };
    let geometry = operands.geometry;
    let &AttentionGeometry { queries, dim, .. } = geometry;
    simd(
        #[inline(always)]
        || {
            if let Some(dq) = &mut gradients.queries {
                for member in 0..geometry.group() {
                    let dq = dq.part(0..queries, member * dim..(member + 1) * dim);
                    table.turn_back(table.shift(), dq);
                }
            }
            if let Some(dk) = &mut gradients.keys {
                table.turn_back(0, dk.part(0..geometry.keys, 0..dim));
            }
        },
    );
}

/// Adds to the block's rows of `sums` (all keys, D) the products of the rows of `left` (keys, queries) with
/// `right` (queries, D), for the queries that see a key.
fn add_to_keys<T: Float>(
    block: &AttentionBlock<'_>,
    (left, right): (&PaddedMatrix<T>, &HeadRows<'_, T>),
    sums: &mut PaddedMatrix<T>,
) {
    for stair in block.stairs().filter(|stair| !stair.keys.is_empty()) {
        let (key, query) = (stair.keys.start, stair.queries.start);
        let size = ProductSize {
            rows: stair.keys.len(),
            depth: block.queries - query,
            columns: block.dim(),
        };
        let (left, right) = (left.left(key, query), right.right(query));
        multiply(size, left, right, sums.out(block.key + key, 0), true);
    }
}

/// For each query of the block: the sum of `dy y`, which is also the sum over all keys of the probabilities
/// times their gradients (FlashAttention-2, section 3.1.2).
fn deltas<T: Float>(
    Results { ys, dys }: Results<'_, T>,
    block: &AttentionBlock<'_>,
) -> PerQuery<T> {
    let mut deltas = [[T::zero(); LANES]; QUERIES / LANES];
    simd(
        #[inline(always)]
        || {
            for (row, delta) in deltas.as_flattened_mut()[..block.queries].iter_mut().enumerate() {
                let place = (block.sequence, block.head, block.query + row);
                *delta = dot(ys.row(place.0, place.1, place.2), dys.row(place.0, place.1, place.2));
            }
        },
    );
    deltas
}

/// The sum of the products of two rows of the same length, in sixteen lanes.
#[inline(always)]
fn dot<T: Float>(xs: &[T], ys: &[T]) -> T {
    let mut lanes = [T::zero(); 16];
    let (x_chunks, y_chunks) = (xs.chunks_exact(16), ys.chunks_exact(16));
    let rest = x_chunks.remainder().iter().zip(y_chunks.remainder());
    let rest = rest.fold(T::zero(), |sum, (&x, &y)| sum + x * y);
    for (x, y) in x_chunks.zip(y_chunks) {
        for (lane, (&x, &y)) in lanes.iter_mut().zip(x.iter().zip(y)) {
            *lane += x * y;
        }
    }
    lanes.into_iter().fold(rest, |sum, x| sum + x)
}
