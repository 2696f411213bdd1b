//! Waiting without taking the core away from those who compute.

use std::thread;
use std::time::{Duration, Instant};

/// Until then a wait asks without a break: on a machine with a core for every rank the answer to a
/// short message is there much sooner.
const SPIN: Duration = Duration::from_micros(30);

/// Questions before the first look at the clock, which costs as much as one.
const FIRST: u32 = 8;

/// From then on a wait lets others run between two questions, and sleeps after this: ranks and their
/// threads may share cores, and who spins on takes one from the rank that it waits for.
const YIELD: Duration = Duration::from_micros(100);

/// The longest sleep between two questions.
const LONGEST: Duration = Duration::from_micros(100);

/// A core that was let go for longer went to a thread that computes, for a whole time slice (4 ms
/// where this was written).
const TAKEN: Duration = Duration::from_micros(500);

/// For so long after that, waits sleep: a sleeper gets its core back at once when it wakes.
const CROWDED: Duration = Duration::from_millis(250);

/// What waits have learnt about this machine's load.
#[derive(Clone, Default)]
pub(super) struct Load {
    crowded_until: Option<Instant>,
}

/// One wait: asks often at first, then sleeps an eighth of the time already waited, so that the
/// answer is late by an eighth at most and a long wait costs next to nothing.
pub(super) struct Wait {
    questions: u32,
    start: Option<Instant>,
}

impl Wait {
    pub(super) fn begin() -> Self {
        Self { questions: 0, start: None }
    }

    /// Passes some time; gives how long the wait has lasted before.
    pub(super) fn pause(&mut self, load: &mut Load) -> Duration {
        self.questions += 1;
        if self.questions <= FIRST && load.crowded_until.is_none() {
            std::hint::spin_loop();
            return Duration::ZERO;
        }
        let now = Instant::now();
        let waited = now - *self.start.get_or_insert(now);
        let crowded = load.crowded_until.is_some_and(|until| now < until);
        if waited > YIELD || crowded {
            thread::sleep((waited / 8).min(LONGEST));
            return waited;
        }
        load.crowded_until = None;
        if waited < SPIN {
            std::hint::spin_loop();
            return waited;
        }
        thread::yield_now();
        if now.elapsed() > TAKEN {
            load.crowded_until = Some(now + CROWDED);
        }
        waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_wait_sleeps_and_a_crowded_core_makes_every_wait_sleep() {
        let mut load = Load::default();
        let started = Instant::now().checked_sub(Duration::from_millis(50)).expect("an uptime");
        let mut wait = Wait { questions: FIRST, start: Some(started) };
        let before = Instant::now();
        assert!(wait.pause(&mut load) >= Duration::from_millis(50));
        assert!(before.elapsed() >= LONGEST, "50 ms / 8 is more than the longest sleep");

        load.crowded_until = Some(Instant::now() + CROWDED);
        let mut wait = Wait { questions: FIRST, start: Some(before) };
        assert!(wait.pause(&mut load) < Duration::from_millis(50));
        assert!(load.crowded_until.is_some());
    }
}
