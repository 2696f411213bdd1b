//! A wait that leaves the core to threads that compute.

use std::thread;
use std::time::{Duration, Instant};

/// Until this time a wait polls without a break. On a machine with a core for every rank, the
/// answer to a short message then arrives much sooner.
const SPIN: Duration = Duration::from_micros(30);

/// Polls before the first reading of the clock, which costs as much as a poll.
const FIRST: u32 = 8;

/// From [`SPIN`] until this time a wait yields between two polls, and afterwards it sleeps. Ranks
/// and their threads may share cores, and a wait that spins takes the core of the rank that it
/// waits for.
const YIELD: Duration = Duration::from_micros(100);

/// The longest sleep between two polls.
const LONGEST: Duration = Duration::from_micros(100);

/// If a yield takes longer than this, a computing thread got the core for a whole time slice (4 ms
/// on the machine where this was written).
const TAKEN: Duration = Duration::from_micros(500);

/// For this time after such a yield, waits sleep, because a thread that wakes from a sleep gets its
/// core back at once.
const CROWDED: Duration = Duration::from_millis(250);

/// The load of this machine, as earlier waits have observed it.
#[derive(Clone, Debug, Default)]
pub(super) struct MachineLoad {
    crowded_until: Option<Instant>,
}

impl MachineLoad {
    /// Whether a yield was long so recently that waits must sleep.
    pub(super) fn is_crowded(&self, now: Instant) -> bool {
        self.crowded_until.is_some_and(|until| now < until)
    }

    /// Notes the time that a yield took. Returns whether it was so long that waits must sleep from
    /// `now` on.
    pub(super) fn note_yield(&mut self, took: Duration, now: Instant) -> bool {
        let is_taken = took > TAKEN;
        if is_taken {
            self.crowded_until = Some(now + CROWDED);
        }
        is_taken
    }
}

/// One wait. The caller polls often at first. Later each pause is an eighth of the time already
/// waited, so the answer is late by an eighth at most and a long wait costs almost nothing.
pub(super) struct BackoffWait {
    questions: u32,
    start: Option<Instant>,
}

impl BackoffWait {
    pub(super) fn begin() -> Self {
        Self { questions: 0, start: None }
    }

    /// Pauses before the next poll. Returns the time that the wait had lasted before the pause.
    pub(super) fn pause(&mut self, load: &mut MachineLoad) -> Duration {
        self.questions += 1;
        if self.questions <= FIRST && load.crowded_until.is_none() {
            std::hint::spin_loop();
            return Duration::ZERO;
        }
        let now = Instant::now();
        let waited = now - *self.start.get_or_insert(now);
        if waited > YIELD || load.is_crowded(now) {
            thread::sleep((waited / 8).min(LONGEST));
            return waited;
        }
        load.crowded_until = None;
        if waited < SPIN {
            std::hint::spin_loop();
            return waited;
        }
        thread::yield_now();
        load.note_yield(now.elapsed(), now);
        waited
    }
}

/// Waits until `is_over` or for `limit`. Returns whether it is over.
pub(super) fn poll(limit: Duration, mut is_over: impl FnMut() -> bool) -> bool {
    let (mut load, mut wait) = (MachineLoad::default(), BackoffWait::begin());
    while !is_over() {
        if wait.pause(&mut load) >= limit {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_wait_sleeps_and_a_crowded_core_makes_every_wait_sleep() {
        let mut load = MachineLoad::default();
        let started = Instant::now().checked_sub(Duration::from_millis(50)).expect("an uptime");
        let mut wait = BackoffWait { questions: FIRST, start: Some(started) };
        let before = Instant::now();
        assert!(wait.pause(&mut load) >= Duration::from_millis(50));
        assert!(before.elapsed() >= LONGEST, "50 ms / 8 is more than the longest sleep");

        load.crowded_until = Some(Instant::now() + CROWDED);
        let mut wait = BackoffWait { questions: FIRST, start: Some(before) };
        assert!(wait.pause(&mut load) < Duration::from_millis(50));
        assert!(load.crowded_until.is_some());
    }
}
