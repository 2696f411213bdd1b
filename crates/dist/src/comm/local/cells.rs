//! The barrier: each rank has a counter in its own cache line, and only that rank raises it.
//!
//! A rank arrives by one store. A waiting rank reads every other counter, spins for a short time, and
//! then sleeps in a futex. A rank on the same core cannot arrive while this one spins, so this one yields
//! the core instead. Earlier waits decide how long a rank spins for another one: longer where spinning
//! was enough, shorter where it was not.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::futex;
use rustix::time::Timespec;

use super::cell::Shown;
use super::region::Region;
use crate::comm::wait::Load;

/// Looks before the first sleep, at least and at most: a microsecond and some hundreds of them.
const SPINS: (u32, u32) = (64, 16384);

/// A sleep that is over sooner has cost more than it saved.
const WORTH_SPINNING: Duration = Duration::from_micros(300);

/// How often a rank lets go of a core that it shares before it sleeps.
const YIELDS: usize = 8;

/// A sleeper looks at the sockets' news this often.
const NAP: Duration = Duration::from_millis(20);

/// All ranks' cells, and where this rank stands.
#[derive(Debug)]
pub(super) struct Cells {
    region: Arc<Region>,
    rank: usize,
    arrived: u32,
    turn: usize,
    spins: u32,
    /// The core that this rank is on.
    core: u32,
    load: Load,
}

impl Cells {
    pub(super) fn new(region: Region) -> Self {
        let (rank, region) = (region.member().rank, Arc::new(region));
        Self { region, rank, arrived: 0, turn: 0, spins: SPINS.0, core: 0, load: Load::default() }
    }

    pub(super) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn world_size(&self) -> usize {
        self.region.member().world_size
    }

    /// Shows what this rank is about to do; seen by the others once they passed the next barrier.
    pub(super) fn show(&mut self, words: Shown) {
        self.turn ^= 1;
        for (shown, word) in self.region.cell(self.rank).shown[self.turn].iter().zip(words) {
            shown.store(word, Ordering::Relaxed);
        }
    }

    /// What `rank` showed before the barrier at which this rank last agreed.
    pub(super) fn shown(&self, rank: usize) -> Shown {
        let mut words = Shown::default();
        for (word, shown) in words.iter_mut().zip(&self.region.cell(rank).shown[self.turn]) {
            *word = shown.load(Ordering::Relaxed);
        }
        words
    }

    /// Tells the others that this rank has reached its next barrier: what it wrote before is theirs
    /// to see.
    pub(super) fn arrive(&mut self) {
        self.arrived = self.arrived.wrapping_add(1);
        let own = self.region.cell(self.rank);
        self.core = rustix::thread::sched_getcpu() as u32;
        own.core.store(self.core, Ordering::Relaxed);
        // SeqCst orders this store before the look at the sleepers; a sleeper counts itself before
        // it looks at the counter: one of the two sees the other.
        own.arrived.store(self.arrived, Ordering::SeqCst);
        if own.sleepers.load(Ordering::SeqCst) > 0 {
            // A failure to wake is mended by the sleeper's own clock.
            let _ = futex::wake(&own.arrived, futex::Flags::empty(), u32::MAX >> 1);
        }
    }

    /// Whether `rank` has reached the barrier that this rank reached last.
    pub(super) fn has_arrived(&self, rank: usize) -> bool {
        let arrived = self.region.cell(rank).arrived.load(Ordering::Acquire);
        arrived.wrapping_sub(self.arrived) as i32 >= 0
    }

    /// Waits for `rank` a while: true once it is there.
    pub(super) fn wait_a_while(&mut self, rank: usize) -> bool {
        if self.has_arrived(rank) {
            return true;
        }
        if self.region.cell(rank).core.load(Ordering::Relaxed) == self.core {
            if !self.let_go_first(rank) {
                self.sleep(rank);
            }
            return self.has_arrived(rank);
        }
        for spun in 0..self.spins {
            if self.has_arrived(rank) {
                // The longest of many waits shall end before the spinning does.
                if spun > self.spins / 2 {
                    self.spins = (self.spins * 2).min(SPINS.1);
                }
                return true;
            }
            std::hint::spin_loop();
        }
        let start = Instant::now();
        self.sleep(rank);
        // A sleep that was all but over when it began would have been better spun through.
        self.spins = if start.elapsed() < WORTH_SPINNING {
            (self.spins * 2).min(SPINS.1)
        } else {
            (self.spins / 2).max(SPINS.0)
        };
        self.has_arrived(rank)
    }

    /// Lets `rank` have the core that both are on; true once it is there. While both can run, the
    /// system moves one of them to an idle core; a sleeper stays.
    fn let_go_first(&mut self, rank: usize) -> bool {
        let mut now = Instant::now();
        if self.load.is_crowded(now) {
            return false;
        }
        for _ in 0..YIELDS {
            thread::yield_now();
            if self.has_arrived(rank) {
                return true;
            }
            let before = std::mem::replace(&mut now, Instant::now());
            if self.load.note_yield(now - before, now) {
                return false;
            }
        }
        false
    }

    fn sleep(&self, rank: usize) {
        let cell = self.region.cell(rank);
        cell.sleepers.fetch_add(1, Ordering::SeqCst);
        let seen = cell.arrived.load(Ordering::SeqCst);
        if !self.has_arrived(rank) {
            let nap = Timespec { tv_sec: 0, tv_nsec: NAP.as_nanos() as _ };
            // Every reason to wake leads to another look.
            let _ = futex::wait(&cell.arrived, futex::Flags::empty(), seen, Some(&nap));
        }
        cell.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}
