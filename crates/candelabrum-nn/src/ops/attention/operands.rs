//! What an attention reads.

use super::block::AttentionBlock;
use super::geometry::{AttentionGeometry, HeadLayout};
use super::head_rows::HeadRows;
use super::rotary::RotaryTable;
use super::scores::Masking;
use crate::kernels::float::Float;

/// What all tasks of an attention read.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a, T> {
    pub(super) geometry: &'a AttentionGeometry,
    pub(super) rotary: Option<&'a RotaryTable>,
    pub(super) masking: Masking<'a, T>,
    /// Queries, keys and values.
    pub(super) heads: [HeadLayout<'a, T>; 3],
}

impl<'a, T: Float> Operands<'a, T> {
    /// The keys of a head of a sequence, rotated if the attention rotates them.
    pub(super) fn keys(&self, sequence: usize, kv_head: usize) -> HeadRows<'a, T> {
        let rotation = self.rotary.map(|table| (table, 0));
        HeadRows::new(&self.heads[1], (sequence, kv_head), 0..self.geometry.keys, rotation)
    }

    /// The values of a head of a sequence.
    pub(super) fn values(&self, sequence: usize, kv_head: usize) -> HeadRows<'a, T> {
        HeadRows::new(&self.heads[2], (sequence, kv_head), 0..self.geometry.keys, None)
    }

    /// The queries of a block, rotated if the attention rotates them.
    pub(super) fn queries(&self, block: &AttentionBlock<'_>) -> HeadRows<'a, T> {
        let rotation = self.rotary.map(|table| (table, table.shift()));
        HeadRows::new(&self.heads[0], (block.sequence, block.head), block.query_range(), rotation)
    }
}
