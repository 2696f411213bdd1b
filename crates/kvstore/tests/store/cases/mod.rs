//! The suite of results: the same script for every kind of store, bound, world and backend.

mod compressed;
mod optimizers;
mod tables;
mod values;

use candelabrum_dist::World;
use candelabrum_kvstore::{Key, KvStore, Result, StoreConfig, StoreKind};

use crate::harness::{say, stage};
use crate::numbers::Digest;

/// A bound at which most values of the suite are divided among the servers.
const SMALL_BOUND: usize = 8;

/// A worker in one store of the suite.
pub(crate) struct Suite<'a> {
    pub(crate) store: &'a KvStore,
    pub(crate) is_sync: bool,
    pub(crate) rank: usize,
    pub(crate) workers: usize,
    pub(crate) digest: Digest,
}

impl<'a> Suite<'a> {
    fn new(store: &'a KvStore) -> Self {
        let is_sync = store.config().kind == StoreKind::DistSync;
        let (rank, workers) = (store.rank(), store.num_workers());
        Self { store, is_sync, rank, workers, digest: Digest::default() }
    }

    /// The pulled value, which enters the digest.
    pub(crate) fn pull(&mut self, key: &Key) -> Result<Vec<f32>> {
        let value = crate::numbers::flat(&self.store.pull(key, 0)?.wait()?);
        self.digest.add(&value);
        Ok(value)
    }

    /// Every worker pushes once: together in dist_sync, in the order of the ranks in dist_async.
    /// Returns the update by update pushed values, given what each worker pushes. All pushes are part
    /// of the value afterwards.
    pub(crate) fn round(
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
            return Ok(vec![crate::numbers::sum(&all)]);
        }
        for turn in 0..self.workers {
            if turn == self.rank {
                push(&all[turn])?;
                drop(self.store.pull(key, 0)?.wait()?);
            }
            self.store.barrier()?;
        }
        Ok(all)
    }
}

pub(crate) fn all(world: &World) -> Result<String> {
    let mut of_kinds = Vec::new();
    let mut of_tables = None;
    for kind in [StoreKind::DistSync, StoreKind::DistAsync] {
        let mut of_bounds = Vec::new();
        for big_array_bound in [SMALL_BOUND, usize::MAX] {
            let config = StoreConfig { big_array_bound, ..StoreConfig::new(kind) };
            let part = stage(world, &config, |store| {
                let mut suite = Suite::new(store);
                assert_eq!((suite.rank, suite.workers), (world.rank(), world.world_size()));
                values::all(&mut suite)?;
                optimizers::all(&mut suite)?;
                compressed::all(&mut suite)?;
                Ok(suite.digest)
            })?;
            of_bounds.extend(part.worker());
            values::string_keys(world, &config)?;
            optimizers::by_the_servers_updater(world, &config)?;
        }
        if let [divided, whole] = of_bounds[..] {
            assert_eq!(divided, whole, "{kind}: a division over the servers changes bits");
            of_kinds.push(format!("{:016x}", whole.0));
        }
        let part = stage(world, &StoreConfig::new(kind), |store| tables::all(&Suite::new(store)))?;
        if let Some(digest) = part.worker() {
            let first = *of_tables.get_or_insert(digest);
            assert_eq!(digest, first, "the first values of a table depend on the kind of store");
        }
        values::counts(world, kind)?;
    }
    if let Some(tables) = of_tables {
        say(&format!("digests {} {:016x}", of_kinds.concat(), tables.0));
    }
    Ok("the suite".to_owned())
}
