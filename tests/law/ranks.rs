//! Ranks as threads of this process, so that hundreds of cases run in a minute.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

use candelabrum::prelude::*;

/// Runs `work` on each of `ranks` ranks, beside `servers` servers of a key-value store, and returns the results in
/// rank order.
pub(crate) fn on_ranks<R: Send>(
    ranks: usize,
    servers: usize,
    work: impl Fn(&World) -> R + Sync,
) -> Vec<R> {
    let work = |world: &World| -> Option<R> {
        if world.is_server() {
            // The workers are told, and their results say why.
            if let Err(error) = Server::new().run(world) {
                world.abort(&error.to_string());
            }
            return None;
        }
        Some(work(world))
    };
    let work = &work;
    let worlds = World::threads(ranks + servers).unwrap();
    thread::scope(|scope| {
        let rank = |world: World| {
            scope.spawn(move || {
                let world = world.with_servers(servers).unwrap();
                // The other ranks must not wait for one that has failed.
                let result = catch_unwind(AssertUnwindSafe(|| work(&world)));
                if result.is_err() {
                    world.abort("a rank has panicked");
                }
                result
            })
        };
        let ranks: Vec<_> = worlds.into_iter().map(rank).collect();
        let results: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        let results = results.into_iter();
        results.filter_map(|result| result.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}
