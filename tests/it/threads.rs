//! Ranks that are threads of this process.

use std::thread;

use candelabrum::prelude::World;

/// What `work` returns on each of so many ranks, in their order.
pub(crate) fn on_ranks<R: Send>(ranks: usize, work: impl Fn(&World) -> R + Sync) -> Vec<R> {
    let worlds = World::threads(ranks).unwrap();
    thread::scope(|scope| {
        let work = &work;
        let ranks: Vec<_> =
            worlds.into_iter().map(|world| scope.spawn(move || work(&world))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
