//! Waiting without taking the core away from those who compute.

use std::thread;
use std::time::{Duration, Instant};

/// Until then a wait asks without pause: most messages between ranks of one machine arrive sooner.
const SPIN: Duration = Duration::from_micros(30);

/// The longest sleep between two questions.
const LONGEST: Duration = Duration::from_micros(100);

/// One wait: asks often at first, then sleeps an eighth of the time already waited, so that the
/// answer is late by an eighth at most and a long wait costs next to nothing.
pub(super) struct Wait {
    start: Instant,
}

impl Wait {
    pub(super) fn begin() -> Self {
        Self { start: Instant::now() }
    }

    pub(super) fn waited(&self) -> Duration {
        self.start.elapsed()
    }

    /// Passes some time; gives how long the wait has lasted.
    pub(super) fn pause(&self) -> Duration {
        let waited = self.waited();
        if waited > SPIN {
            thread::sleep((waited / 8).min(LONGEST));
        }
        waited
    }
}

/// Lets this thread's sleeps be as short as asked for: the system rounds them up to 50 µs else.
pub(super) fn wake_on_time() {
    let shortest = std::num::NonZeroU64::new(1000);
    if let Err(error) = rustix::thread::set_current_timer_slack(shortest) {
        tracing::debug!("timer slack stays as it is: {error}");
    }
}
