//! The barrier: each rank has a counter in its own cache line, and only that rank raises it.
//!
//! A rank arrives with one store. A waiting rank polls another rank's counter for a short time and
//! then sleeps in a futex. A rank on the same core cannot arrive while this rank polls, so this
//! rank yields the core instead. The number of polls adapts to earlier waits: it grows after a poll
//! that succeeded late and after a short sleep, and shrinks after a long sleep.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::futex;
use rustix::time::Timespec;

use super::cell::AnnouncedWords;
use super::region::MappedRegion;
use crate::comm::wait::MachineLoad;

/// The least and the most polls before the first sleep: about 1 µs and some hundreds of µs.
const SPINS: (u32, u32) = (64, 16384);

/// A sleep shorter than this costs more than it saves.
const WORTH_SPINNING: Duration = Duration::from_micros(300);

/// The number of times that a rank yields a shared core before it sleeps.
const YIELDS: usize = 8;

/// The longest sleep. After it the caller checks whether a rank has failed.
const NAP: Duration = Duration::from_millis(20);

/// The cells of all ranks, and this rank's state at the barrier.
#[derive(Debug)]
pub(super) struct BarrierCells {
    region: Arc<MappedRegion>,
    rank: usize,
    arrived: u32,
    turn: usize,
    spins: u32,
    /// The core that this rank is on.
    core: u32,
    load: MachineLoad,
}

impl BarrierCells {
    pub(super) fn new(region: MappedRegion) -> Self {
        let (rank, region) = (region.member().rank, Arc::new(region));
        Self {
            region,
            rank,
            arrived: 0,
            turn: 0,
            spins: SPINS.0,
            core: 0,
            load: MachineLoad::default(),
        }
    }

    pub(super) fn region(&self) -> &Arc<MappedRegion> {
        &self.region
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn world_size(&self) -> usize {
        self.region.member().world_size
    }

    /// Shows this rank's next operation. The other ranks can read the words after the next barrier.
    pub(super) fn show(&mut self, words: AnnouncedWords) {
        self.turn ^= 1;
        for (shown, word) in self.region.cell(self.rank).shown[self.turn].iter().zip(words) {
            shown.store(word, Ordering::Relaxed);
        }
    }

    /// The words that `rank` showed before the barrier at which the ranks last agreed.
    pub(super) fn shown(&self, rank: usize) -> AnnouncedWords {
        let mut words = AnnouncedWords::default();
        for (word, shown) in words.iter_mut().zip(&self.region.cell(rank).shown[self.turn]) {
            *word = shown.load(Ordering::Relaxed);
        }
        words
    }

    /// Reports to the other ranks that this rank has reached its next barrier. A rank that has seen
    /// the arrival also sees all earlier writes of this rank.
    pub(super) fn arrive(&mut self) {
        self.arrived = self.arrived.wrapping_add(1);
        let own = self.region.cell(self.rank);
        self.core = rustix::thread::sched_getcpu() as u32;
        own.core.store(self.core, Ordering::Relaxed);
        // SeqCst orders this store before the load of `sleepers`. A sleeper increments `sleepers`
        // before it loads `arrived`. So this rank sees the sleeper, or the sleeper the arrival.
        own.arrived.store(self.arrived, Ordering::SeqCst);
        if own.sleepers.load(Ordering::SeqCst) > 0 {
            // If the wake-up fails, the sleeper still wakes after `NAP`.
            let _ = futex::wake(&own.arrived, futex::Flags::empty(), u32::MAX >> 1);
        }
    }

    /// Whether `rank` has reached the barrier that this rank reached last.
    pub(super) fn has_arrived(&self, rank: usize) -> bool {
        let arrived = self.region.cell(rank).arrived.load(Ordering::SeqCst);
        arrived.wrapping_sub(self.arrived) as i32 >= 0
    }

    /// Says that this rank does not wait at its barrier any longer. A rank that comes later must not pass it alone.
    pub(super) fn give_up(&self) {
        // SeqCst orders this store before this rank's next look at the arrivals, and the arrival of a late rank before
        // its look at this word. So this rank sees the arrival, or the late rank sees this word.
        self.region.cell(self.rank).given_up.store(self.arrived, Ordering::SeqCst);
    }

    /// Takes [`Self::give_up`] back.
    pub(super) fn wait_after_all(&self) {
        self.region.cell(self.rank).given_up.store(0, Ordering::SeqCst);
    }

    /// Whether `rank` has arrived at this rank's barrier, and has given up there.
    pub(super) fn has_given_up(&self, rank: usize) -> bool {
        let given_up = self.region.cell(rank).given_up.load(Ordering::SeqCst);
        given_up != 0 && given_up == self.arrived
    }

    /// Waits for `rank` for a limited time. Returns whether it has arrived.
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
                // At twice the usual time, the limit lets even the longest wait end without sleep.
                if spun > self.spins / 2 {
                    self.spins = (self.spins * 2).min(SPINS.1);
                }
                return true;
            }
            std::hint::spin_loop();
        }
        let start = Instant::now();
        self.sleep(rank);
        // More polls would have cost less than a short sleep.
        self.spins = if start.elapsed() < WORTH_SPINNING {
            (self.spins * 2).min(SPINS.1)
        } else {
            (self.spins / 2).max(SPINS.0)
        };
        self.has_arrived(rank)
    }

    /// Yields the core that this rank shares with `rank`. Returns whether `rank` has arrived. A
    /// yield is better than a sleep at first: the system moves one of two runnable threads to an
    /// idle core, but it does not move a sleeping thread.
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
            // The caller polls again after every return, whatever its reason.
            let _ = futex::wait(&cell.arrived, futex::Flags::empty(), seen, Some(&nap));
        }
        cell.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}
