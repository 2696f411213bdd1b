//! Some queries of a head and some keys, and which of them see each other.

use std::ops::Range;

use super::geometry::AttentionGeometry;
use super::matrix::LANES;
use crate::kernels::float::Float;
use crate::kernels::gemm::bf16::InstructionSet;
use crate::kernels::product_precision;

/// The largest number of queries of a block.
pub(super) const QUERIES: usize = 128;

/// The largest number of keys of a block: the scores of 128 queries take 144 KiB in f32.
pub(super) const KEYS: usize = 256;

/// The queries of a [`CausalStair`], if factors are rounded to bf16. Larger stairs are packed less often, but more
/// scores are computed that the mask hides. Tiles are so fast that packing counts more.
const BF16_STAIR: usize = 32;

/// Some queries of a head, and some keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionBlock<'a> {
    geometry: &'a AttentionGeometry,
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

/// Some neighbouring queries of a block, and the keys of the block that one of them sees, but none of the
/// queries before them. Where a causal mask divides a block, these are the stairs of the diagonal.
#[derive(Clone, Debug)]
pub(super) struct CausalStair {
    pub(super) queries: Range<usize>,
    pub(super) keys: Range<usize>,
}

impl<'a> AttentionBlock<'a> {
    /// Blocks with all queries of a head, and no keys.
    pub(super) fn of_head<T: Float>(
        geometry: &'a AttentionGeometry,
        sequence: usize,
        head: usize,
    ) -> impl Iterator<Item = Self> {
        let width = match product_precision::bf16::<T>() {
            None => LANES,
            Some(InstructionSet::Amx(_)) => QUERIES,
            Some(_) => BF16_STAIR,
        };
        (0..geometry.queries).step_by(QUERIES).map(move |query| {
            let queries = QUERIES.min(geometry.queries - query);
            Self { geometry, sequence, head, query, queries, key: 0, keys: 0, width }
        })
    }

    /// Blocks with these queries and all keys that they see.
    pub(super) fn with_keys(self) -> impl Iterator<Item = Self> {
        let visible = self.geometry.visible(self.query + self.queries - 1);
        let blocks = (0..visible).step_by(KEYS);
        blocks.map(move |key| Self { key, keys: KEYS.min(visible - key), ..self })
    }

    /// The queries by their numbers in the sequence.
    pub(super) fn query_range(&self) -> Range<usize> {
        self.query..self.query + self.queries
    }

    /// The size of a head.
    pub(super) fn dim(&self) -> usize {
        self.geometry.dim
    }

    /// The stairs from the first query on. Together they have all keys.
    pub(super) fn stairs(self) -> impl Iterator<Item = CausalStair> {
        let width = if self.seen(0) == self.keys { self.queries } else { self.width };
        (0..self.queries).step_by(width).scan(0, move |seen, first| {
            let end = self.queries.min(first + width);
            let keys = *seen..self.seen(end - 1);
            *seen = keys.end;
            Some(CausalStair { queries: first..end, keys })
        })
    }

    /// The number of the block's keys that query number `query` of the block sees.
    #[inline(always)]
    pub(super) fn seen(&self, query: usize) -> usize {
        self.geometry.visible(self.query + query).saturating_sub(self.key).min(self.keys)
    }

    /// The number of the block's keys that are seen in the stair of query number `query` of the block.
    #[inline(always)]
    pub(super) fn seen_in_stair(&self, query: usize) -> usize {
        self.seen(query / self.width * self.width + self.width - 1)
    }

    /// How many queries from number `first` of the block on do not see key number `key` of the block.
    #[inline(always)]
    pub(super) fn blind(&self, first: usize, key: usize) -> usize {
        (self.key + key + 1).saturating_sub(self.geometry.visible(self.query + first))
    }
}
