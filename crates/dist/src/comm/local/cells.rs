//! The barrier: a cache line per rank with a counter that only its owner raises.
//!
//! Arriving is one store. Waiting looks at every other counter, spins a little, and then sleeps in
//! a futex: on a shared machine long spinning takes the core from the rank that is waited for.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::futex;
use rustix::time::Timespec;

use super::memory::{Memory, Region};
use crate::Result;
use crate::comm::collective::Header;

/// Looks before the first sleep; a few microseconds.
const SPINS: usize = 100;

/// A sleeper looks at the sockets' news this often.
const NAP: Duration = Duration::from_millis(20);

/// What a rank shows the others. Two cache lines, against prefetching neighbours.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct Cell {
    /// Barriers that this rank has reached.
    arrived: AtomicU32,
    /// Ranks that sleep until `arrived` changes.
    sleepers: AtomicU32,
    /// What the rank is about to do, for odd and even operations in turn: a rank that is one
    /// operation ahead must not overwrite what a slower one still reads.
    header: [[AtomicU64; Header::WORDS]; 2],
}

/// All ranks' cells, and where this rank stands.
#[derive(Debug)]
pub(super) struct Cells {
    region: Region,
    arrived: u32,
    turn: usize,
}

impl Cells {
    pub(super) fn map(memory: &mut Memory) -> Result<Self> {
        Ok(Self { region: memory.map_next(size_of::<Cell>())?, arrived: 0, turn: 0 })
    }

    pub(super) fn rank(&self) -> usize {
        self.region.rank()
    }

    pub(super) fn world_size(&self) -> usize {
        self.region.world_size()
    }

    /// Shows what this rank is about to do; seen by the others once they passed the next barrier.
    pub(super) fn show_header(&mut self, words: [u64; Header::WORDS]) {
        self.turn ^= 1;
        for (shown, word) in self.region.cell(self.rank()).header[self.turn].iter().zip(words) {
            shown.store(word, Ordering::Relaxed);
        }
    }

    /// What every rank showed before the barrier that was just passed.
    pub(super) fn headers(&self) -> Vec<[u64; Header::WORDS]> {
        let words = |rank| {
            let mut words = [0; Header::WORDS];
            for (word, shown) in words.iter_mut().zip(&self.region.cell(rank).header[self.turn]) {
                *word = shown.load(Ordering::Relaxed);
            }
            words
        };
        (0..self.world_size()).map(words).collect()
    }

    /// Tells the others that this rank has reached its next barrier: what it wrote before is theirs
    /// to see.
    pub(super) fn arrive(&mut self) {
        self.arrived = self.arrived.wrapping_add(1);
        let own = self.region.cell(self.rank());
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
    pub(super) fn wait_a_while(&self, rank: usize) -> bool {
        for _ in 0..SPINS {
            if self.has_arrived(rank) {
                return true;
            }
            std::hint::spin_loop();
        }
        let cell = self.region.cell(rank);
        cell.sleepers.fetch_add(1, Ordering::SeqCst);
        let seen = cell.arrived.load(Ordering::SeqCst);
        if !self.has_arrived(rank) {
            let nap = Timespec { tv_sec: 0, tv_nsec: NAP.as_nanos() as _ };
            // Every reason to wake leads to another look.
            let _ = futex::wait(&cell.arrived, futex::Flags::empty(), seen, Some(&nap));
        }
        cell.sleepers.fetch_sub(1, Ordering::SeqCst);
        self.has_arrived(rank)
    }
}
