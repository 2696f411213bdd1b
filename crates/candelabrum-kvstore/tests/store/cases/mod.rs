//! The suite of results: the same script for every kind of store, bound, world and backend.

mod compressed;
mod optimizers;
mod suite;
mod tables;
mod values;

use candelabrum_dist::World;
use candelabrum_kvstore::{Result, StoreConfig, StoreKind};

use self::suite::Suite;
use crate::harness::{say, stage};

/// A bound at which most values of the suite are divided among the servers.
const SMALL_BOUND: usize = 8;

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
