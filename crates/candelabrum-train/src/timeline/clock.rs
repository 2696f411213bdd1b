//! One time for all ranks, by which spans of different ranks can be compared.
//!
//! Processes of one host share CLOCK_MONOTONIC, so their times are compared directly. Clocks of
//! different hosts are independent. So the ranks leave a barrier, and that moment counts as the
//! same time on all hosts. It is the origin of all times.

use std::fs;
use std::time::Instant;

use candelabrum_dist::{Communicator, Result};
use rustix::time::{ClockId, clock_gettime};

/// The time since all ranks started to record.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimelineClock {
    read: Instant,
    /// The time at `read`.
    nanoseconds: i64,
}

impl TimelineClock {
    /// Agrees on the origin with all ranks. All ranks must call it together.
    pub(super) fn shared(comm: &(dyn Communicator + 'static)) -> Result<Self> {
        comm.barrier()?;
        let (read, now) = (Instant::now(), monotonic());
        let own = clock_name(comm.rank());
        let all = comm.all_gather_text(&format!("{own}\t{now}"))?;
        let marks = all.iter().filter_map(|text| text.split_once('\t'));
        let same = marks.filter(|(name, _)| *name == own);
        let origin = same.filter_map(|(_, now)| now.parse().ok()).min().unwrap_or(now);
        Ok(Self { read, nanoseconds: now - origin })
    }

    pub(super) fn now(&self) -> i64 {
        self.nanoseconds + self.read.elapsed().as_nanos() as i64
    }

    #[cfg(test)]
    pub(super) fn alone() -> Self {
        Self { read: Instant::now(), nanoseconds: 0 }
    }
}

/// Nanoseconds on the clock of this host.
fn monotonic() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// A name that is equal for processes that share CLOCK_MONOTONIC, which have one boot and one time
/// namespace.
fn clock_name(rank: usize) -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    // A kernel without time namespaces has only one time.
    let namespace = fs::read_link("/proc/self/ns/time").unwrap_or_default();
    match boot {
        Ok(boot) => format!("{} {}", boot.trim(), namespace.display()),
        Err(_) => format!("the clock of rank {rank}"),
    }
}
