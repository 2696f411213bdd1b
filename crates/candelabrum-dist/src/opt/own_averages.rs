//! The averages of this rank's shard, where gradients are shared out: they leave their buckets as soon as they have
//! arrived, and the bucket's memory serves a later one.

use std::ops::Range;

use candelabrum_memory::FlatTensor;
use candelabrum_nn::BucketPool;

use crate::Result;

/// Lent buckets that have left and not arrived. With more of them, ranks wait less for each other during the backward
/// pass.
pub(super) const ON_THEIR_WAY: usize = 2;

/// The averages of a step so far.
#[derive(Debug)]
pub(super) struct OwnAverages {
    /// By bucket: this rank's part.
    pub(super) parts: Vec<FlatTensor>,
    pub(super) pool: BucketPool,
    /// The buckets that have arrived during the backward pass.
    pub(super) arrived: Vec<usize>,
}

impl OwnAverages {
    /// No averages yet. `parts` is memory for those of each bucket.
    pub(super) fn new(parts: Vec<FlatTensor>, pool: BucketPool) -> Self {
        Self { parts, pool, arrived: Vec::new() }
    }

    /// Takes this rank's part, the elements `own`, out of a bucket that has arrived.
    pub(super) fn take_out(
        &mut self,
        index: usize,
        bucket: FlatTensor,
        own: Range<usize>,
    ) -> Result<()> {
        self.parts[index].span_mut()?.copy_from(bucket.range(own)?)?;
        self.pool.give_back(bucket);
        Ok(())
    }
}
