//! Some queries of a head and some keys, and which of them see each other.

use std::ops::Range;

use super::super::float::Float;
use super::super::product_precision;
use super::geometry::{Geometry, KEYS, QUERIES};
use super::matrix::LANES;

/// Some queries of a head, and some keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block<'a> {
    geometry: &'a Geometry,
    pub(super) sequence: usize,
    pub(super) head: usize,
    /// The first query.
    pub(super) query: usize,
    pub(super) queries: usize,
    /// The first key.
    pub(super) key: usize,
    pub(super) keys: usize,
    /// The queries of a stair.
    width: usize,
}

/// A part of a block: some neighbouring queries, and the keys that one of them sees, but none of the queries
/// before. With a causal mask these parts are the stairs of the diagonal, and otherwise the first of them has
/// all keys.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stair {
    pub(super) queries: Range<usize>,
    pub(super) keys: Range<usize>,
}

impl<'a> Block<'a> {
    /// The blocks of all queries of a head, with no keys.
    pub(super) fn of_head<T: Float>(
        geometry: &'a Geometry,
        sequence: usize,
        head: usize,
    ) -> impl Iterator<Item = Self> {
        // In bf16 each product packs its factors, so a few large ones are faster, although they compute
        // scores that the mask hides.
        let in_bf16 = product_precision::bf16::<T>().is_some();
        let width = if in_bf16 { std::env::var("BW").map_or(32, |x| x.parse().unwrap()) } else { LANES };
        (0..geometry.queries).step_by(QUERIES).map(move |query| {
            let queries = QUERIES.min(geometry.queries - query);
            Self { geometry, sequence, head, query, queries, key: 0, keys: 0, width }
        })
    }

    /// The blocks of these queries and of all keys that they see.
    pub(super) fn with_keys(self) -> impl Iterator<Item = Self> {
        let visible = self.geometry.visible(self.query + self.queries - 1);
        (0..visible).step_by(KEYS).map(move |key| Self { key, keys: KEYS.min(visible - key), ..self })
    }

    /// The number of the block's keys that query number `query` of the block sees.
    #[inline(always)]
    pub(super) fn seen(&self, query: usize) -> usize {
        self.geometry.visible(self.query + query).saturating_sub(self.key).min(self.keys)
    }

    /// The number of queries from number `first` of the block on that do not see key number `key` of the block.
    #[inline(always)]
    pub(super) fn blind(&self, first: usize, key: usize) -> usize {
        (self.key + key + 1).saturating_sub(self.geometry.visible(self.query + first))
    }

    /// The number of the block's keys up to the end of the stair to which query number `query` belongs.
    #[inline(always)]
    pub(super) fn seen_in_stair(&self, query: usize) -> usize {
        self.seen((query / self.width + 1) * self.width - 1)
    }

    pub(super) fn stairs(self) -> impl Iterator<Item = Stair> {
        let width = if self.seen(0) == self.keys { self.queries } else { self.width };
        (0..self.queries).step_by(width).scan(0, move |seen, first| {
            let last = self.queries.min(first + width) - 1;
            let keys = *seen..self.seen(last);
            *seen = keys.end;
            Some(Stair { queries: first..last + 1, keys })
        })
    }
}
