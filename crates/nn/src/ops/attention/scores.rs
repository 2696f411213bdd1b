//! The scores of a block of queries and some keys, and their exponentials.

use candelabrum_memory::simd::simd;

use super::super::elementwise::{largest, sum};
use super::super::float::Float;
use super::geometry::Geometry;
use super::mask::MaskLayout;

/// Some queries of one head, and some keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) sequence: usize,
    pub(super) head: usize,
    /// The first query.
    pub(super) query: usize,
    pub(super) queries: usize,
    /// The first key.
    pub(super) key: usize,
    pub(super) keys: usize,
}

/// The running maximum and the sum of the exponentials of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running<T> {
    pub(super) max: T,
    pub(super) sum: T,
    /// By what the sums so far were multiplied when the last keys came.
    pub(super) correction: T,
}

impl<T: Float> Running<T> {
    pub(super) fn new() -> Self {
        Self { max: T::narrow(f64::NEG_INFINITY), sum: T::zero(), correction: T::one() }
    }

    /// The factor of the result, and the logarithm of the sum of all exponentials. A row that sees no
    /// key has the factor 0, and infinity as logarithm: then its exponentials are 0 in the backward.
    pub(super) fn finish(self) -> (T, T) {
        if self.sum == T::zero() {
            (T::zero(), T::narrow(f64::INFINITY))
        } else {
            (T::one() / self.sum, self.max + self.sum.ln())
        }
    }
}

/// The scores of an attention: how they are masked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Masking<'a, T> {
    pub(super) geometry: &'a Geometry,
    pub(super) mask: Option<(MaskLayout, &'a [T])>,
}

impl<T: Float> Masking<'_, T> {
    /// The number of the block's keys that query number `row` of the block sees.
    #[inline(always)]
    fn visible(&self, block: &Block, row: usize) -> usize {
        let visible = self.geometry.visible(block.query + row);
        visible.saturating_sub(block.key).min(block.keys)
    }

    /// Adds the mask to the scores of a row that are visible.
    #[inline(always)]
    fn add_mask(&self, block: &Block, row: usize, scores: &mut [T]) {
        let Some((layout, mask)) = self.mask else { return };
        let place = (block.sequence, block.head);
        let mask = layout.row(mask, place, block.query + row, block.key);
        scores.iter_mut().zip(mask).for_each(|(score, &m)| *score += m);
    }

    /// Replaces each row of scores by `exp(score - max)`, and updates the row's maximum and sum.
    pub(super) fn exponentials(&self, block: &Block, scores: &mut [T], running: &mut [Running<T>]) {
        simd(
            #[inline(always)]
            || {
                let rows = scores.chunks_exact_mut(block.keys).zip(&mut *running).enumerate();
                for (row, (scores, running)) in rows {
                    let (scores, hidden) = scores.split_at_mut(self.visible(block, row));
                    hidden.fill(T::zero());
                    self.add_mask(block, row, scores);
                    let before = running.max;
                    running.max = largest(before, scores); // A missed NaN makes the sum NaN.
                    // With nothing but minus infinity so far, all exponentials are 0.
                    let all_hidden = running.max == T::narrow(f64::NEG_INFINITY);
                    let max = if all_hidden { T::zero() } else { running.max };
                    for score in &mut *scores {
                        *score = (*score - max).exp();
                    }
                    running.correction = (before - max).exp();
                    running.sum = running.sum * running.correction + sum(scores);
                }
            },
        );
    }

    /// Replaces each row of scores by its probabilities, and each row of their gradients, `dp`, by the
    /// gradients of the scores.
    ///
    /// ```text
    /// p = exp(score - lse)      ds = p (dp - delta)      delta = sum of dp p = dy y
    /// ```
    pub(super) fn gradients(
        &self,
        block: &Block,
        (scores, dp): (&mut [T], &mut [T]),
        (lse, delta): (&[T], &[T]),
    ) {
        simd(
            #[inline(always)]
            || {
                let rows = scores.chunks_exact_mut(block.keys).zip(dp.chunks_exact_mut(block.keys));
                let sums = lse.iter().zip(delta);
                for (row, ((scores, dp), (&lse, &delta))) in rows.zip(sums).enumerate() {
                    let visible = self.visible(block, row);
                    let (scores, hidden) = scores.split_at_mut(visible);
                    hidden.fill(T::zero());
                    let (dp, hidden) = dp.split_at_mut(visible);
                    hidden.fill(T::zero());
                    self.add_mask(block, row, scores);
                    for (score, dp) in scores.iter_mut().zip(dp) {
                        let p = (*score - lse).exp();
                        *score = p;
                        *dp = p * (*dp - delta);
                    }
                }
            },
        );
    }
}

/// The sum of the products of two rows of the same length, in sixteen lanes.
#[inline(always)]
pub(super) fn dot<T: Float>(xs: &[T], ys: &[T]) -> T {
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
