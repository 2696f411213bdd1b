//! What the cases of a store share.

use candelabrum_kvstore::{Key, KvStore, Result, StoreKind};

use crate::numbers::{Digest, flat, sum};

/// A worker in one store of the suite.
pub(super) struct Suite<'a> {
    pub(super) store: &'a KvStore,
    pub(super) is_sync: bool,
    pub(super) rank: usize,
    pub(super) workers: usize,
    pub(super) digest: Digest,
}

impl<'a> Suite<'a> {
    pub(super) fn new(store: &'a KvStore) -> Self {
        let is_sync = store.config().kind == StoreKind::DistSync;
        let (rank, workers) = (store.rank(), store.num_workers());
        Self { store, is_sync, rank, workers, digest: Digest::default() }
    }

    /// The pulled value, which enters the digest.
    pub(super) fn pull(&mut self, key: &Key) -> Result<Vec<f32>> {
        let value = flat(&self.store.pull(key, 0)?.wait()?);
        self.digest.add(&value);
        Ok(value)
    }

    /// Every worker pushes once: together in dist_sync, in the order of the ranks in dist_async.
    /// Returns the update by update pushed values, given what each worker pushes. All pushes are part
    /// of the value afterwards.
    pub(super) fn round(
        &self,
        key: &Key,
        values: impl Fn(usize) -> Vec<f32>,
        push: impl Fn(&[f32]) -> Result<()>,
    ) -> Result<Vec<Vec<f32>>> {
        let all: Vec<Vec<f32>> = (0..self.workers).map(values).collect();
        if self.is_sync {
            push(&all[self.rank])?;
            // No worker begins the next round before this one is complete.
            drop(self.store.pull(key, 0)?.wait()?);
            return Ok(vec![sum(&all)]);
        }
        for (turn, own) in all.iter().enumerate() {
            if turn == self.rank {
                push(own)?;
                drop(self.store.pull(key, 0)?.wait()?);
            }
            self.store.barrier()?;
        }
        Ok(all)
    }
}
