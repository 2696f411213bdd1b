//! The scores of a block of queries and some keys, and their exponentials.
//!
//! A row belongs to a key, and its elements to the queries. So what is computed for each query is computed
//! for as many queries as fit in a vector, row by row.

use candelabrum_memory::simd::simd;

use super::block::{AttentionBlock, QUERIES};
use super::head_rows::HeadRows;
use super::mask::MaskLayout;
use super::matrix::{LANES, PaddedMatrix, multiply};
use crate::kernels::float::Float;
use crate::kernels::gemm::ProductSize;

/// A number for each query of a block.
pub(super) type PerQuery<T> = [[T; LANES]; QUERIES / LANES];

/// The running maximum and the sum of the exponentials of each query.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunningSoftmax<T> {
    max: PerQuery<T>,
    sum: PerQuery<T>,
    /// By what the sums so far were multiplied when the last keys came.
    pub(super) correction: PerQuery<T>,
}

impl<T: Float> RunningSoftmax<T> {
    pub(super) fn new() -> Self {
        let all = |value| [[value; LANES]; QUERIES / LANES];
        let (max, sum) = (all(T::narrow(f64::NEG_INFINITY)), all(T::zero()));
        Self { max, sum, correction: all(T::one()) }
    }

    /// The factor of a query's result: 0 if it sees no key.
    #[inline(always)]
    pub(super) fn factor(&self, query: usize) -> T {
        let sum = self.sum.as_flattened()[query];
        if sum == T::zero() { T::zero() } else { T::one() / sum }
    }

    /// The logarithm of the sum of a query's exponentials: infinity if it sees no key. Then its exponentials
    /// are 0 in the backward.
    pub(super) fn logarithm(&self, query: usize) -> T {
        let (max, sum) = (self.max.as_flattened()[query], self.sum.as_flattened()[query]);
        if sum == T::zero() { T::narrow(f64::INFINITY) } else { max + sum.ln() }
    }
}

/// Writes the products (keys, queries) of the block's rows of `left` (all keys, D) with the columns of `right`
/// (D, queries), where a key is seen.
pub(super) fn products<T: Float>(
    block: &AttentionBlock<'_>,
    (left, right): (&HeadRows<'_, T>, &PaddedMatrix<T>),
    out: &mut PaddedMatrix<T>,
) {
    for stair in block.stairs().filter(|stair| !stair.keys.is_empty()) {
        let (key, query) = (stair.keys.start, stair.queries.start);
        let size = ProductSize {
            rows: stair.keys.len(),
            depth: block.dim(),
            columns: block.queries - query,
        };
        let (left, right) = (left.left(block.key + key), right.right(0, query));
        multiply(size, left, right, out.out(key, query), false);
    }
}

/// Adds to `sums` (queries, D) the products of the columns of `left` (keys, queries) with the block's rows of
/// `right` (all keys, D), for the keys that are seen. With the first keys, `sums` is overwritten.
pub(super) fn add_products<T: Float>(
    block: &AttentionBlock<'_>,
    (left, right): (&PaddedMatrix<T>, &HeadRows<'_, T>),
    sums: &mut PaddedMatrix<T>,
) {
    for stair in block.stairs().filter(|stair| stair.keys.end > 0) {
        let query = stair.queries.start;
        let size =
            ProductSize { rows: stair.queries.len(), depth: stair.keys.end, columns: block.dim() };
        let (left, right) = (left.turned_left(0, query), right.right(block.key));
        multiply(size, left, right, sums.out(query, 0), block.key > 0);
    }
}

/// The scores of an attention: how they are masked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Masking<'a, T> {
    pub(super) mask: Option<(MaskLayout, &'a [T])>,
}

impl<T: Float> Masking<'_, T> {
    /// Replaces the scores of each query by `exp(score - max)`, and updates its maximum and sum.
    pub(super) fn exponentials(
        &self,
        block: &AttentionBlock<'_>,
        scores: &mut PaddedMatrix<T>,
        running: &mut RunningSoftmax<T>,
    ) {
        simd(
            #[inline(always)]
            || {
                self.add_mask(block, scores);
                for group in 0..block.queries.div_ceil(LANES) {
                    let seen = hide(block, group, scores);
                    let before = running.max[group];
                    // A missed NaN makes the sum NaN.
                    let mut max = before;
                    for row in scores.lanes(group).take(seen) {
                        for (max, &score) in max.iter_mut().zip(row) {
                            *max = if score > *max { score } else { *max };
                        }
                    }
                    running.max[group] = max;
                    // With nothing but minus infinity so far, all exponentials are 0.
                    for max in &mut max {
                        *max = if *max == T::narrow(f64::NEG_INFINITY) { T::zero() } else { *max };
                    }
                    let mut sum = [T::zero(); LANES];
                    for row in scores.lanes_mut(0, group).take(seen) {
                        for ((score, &max), sum) in row.iter_mut().zip(&max).zip(&mut sum) {
                            *score = (*score - max).exp_of_score();
                            *sum += *score;
                        }
                    }
                    let sums = running.sum[group].iter_mut().zip(&mut running.correction[group]);
                    for ((total, correction), ((&before, &max), &sum)) in
                        sums.zip(before.iter().zip(&max).zip(&sum))
                    {
                        *correction = (before - max).exp_of_score();
                        *total = *total * *correction + sum;
                    }
                }
            },
        );
    }

    /// Replaces the scores by the probabilities, and their gradients, `dp`, by the gradients of the scores.
    ///
    /// ```text
    /// p = exp(score - lse)      ds = p (dp - delta)      delta = sum of dp p = dy y
    /// ```
    pub(super) fn gradients(
        &self,
        block: &AttentionBlock<'_>,
        (scores, dp): (&mut PaddedMatrix<T>, &mut PaddedMatrix<T>),
        (lse, delta): (&PerQuery<T>, &PerQuery<T>),
    ) {
        simd(
            #[inline(always)]
            || {
                self.add_mask(block, scores);
                for group in 0..block.queries.div_ceil(LANES) {
                    let (lse, delta) = (&lse[group], &delta[group]);
                    let seen = hide(block, group, scores);
                    let rows = scores.lanes_mut(0, group).zip(dp.lanes_mut(0, group));
                    for (scores, dp) in rows.take(seen) {
                        for ((score, dp), (&lse, &delta)) in
                            scores.iter_mut().zip(dp).zip(lse.iter().zip(delta))
                        {
                            let p = (*score - lse).exp_of_score();
                            *score = p;
                            *dp = p * (*dp - delta);
                        }
                    }
                    let stair = block.seen_in_stair(group * LANES);
                    for row in dp.lanes_mut(seen, group).take(stair - seen) {
                        *row = [T::zero(); LANES];
                    }
                }
            },
        );
    }

    /// Adds the mask to the scores.
    #[inline(always)]
    fn add_mask(&self, block: &AttentionBlock<'_>, scores: &mut PaddedMatrix<T>) {
        let Some((layout, mask)) = self.mask else { return };
        let place = (block.sequence, block.head);
        let rows = layout.rows(mask, place, block.query, block.key);
        scores.add_turned(rows, (block.queries, block.keys));
    }
}

/// Hides keys from those queries of the group that do not see them. Returns the number of the block's keys
/// that any query of the group sees. The scores with the further keys of the same stair become 0, because
/// the products read them.
#[inline(always)]
fn hide<T: Float>(block: &AttentionBlock<'_>, group: usize, scores: &mut PaddedMatrix<T>) -> usize {
    let first = group * LANES;
    let (whole, seen) = (block.seen(first), block.seen(first + LANES - 1));
    for (key, row) in (whole..seen).zip(scores.lanes_mut(whole, group)) {
        let hidden = block.blind(first, key);
        for (lane, score) in row.iter_mut().enumerate() {
            *score = if lane < hidden { T::narrow(f64::NEG_INFINITY) } else { *score };
        }
    }
    for row in scores.lanes_mut(seen, group).take(block.seen_in_stair(first) - seen) {
        *row = [T::zero(); LANES];
    }
    seen
}
