//! Ranks that are threads of this process, and ranks that are processes of this program.

use std::thread;

use candelabrum::prelude::World;
use candelabrum_testkit::ranks::{RanksOf, is_rank};

/// What `work` returns on each of so many ranks, which are threads, in their order.
pub(crate) fn on_ranks<R: Send>(ranks: usize, work: impl Fn(&World) -> R + Sync) -> Vec<R> {
    let worlds = World::threads(ranks).unwrap();
    thread::scope(|scope| {
        let work = &work;
        let ranks: Vec<_> =
            worlds.into_iter().map(|world| scope.spawn(move || work(&world))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The world of this process, if it is a rank that a test has started.
pub(crate) fn world_of_rank() -> Option<World> {
    is_rank().then(|| World::from_env().unwrap())
}

/// For a test whose ranks run the test function itself: [`world_of_rank`]. In the test, so many ranks run, which must succeed,
/// for each of the `counts`.
pub(crate) fn on_processes(ranks: RanksOf, counts: &[usize]) -> Option<World> {
    ranks.run_in_test(counts);
    world_of_rank()
}
