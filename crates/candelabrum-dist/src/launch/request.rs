//! The one rule by which launchers and ranks hear the signals that ask for their end.
//!
//! One request may arrive as several signals. A terminal gives Ctrl-C to all processes of its group, and mpiexec
//! passes it on. systemd and batch systems signal every process of a job, and its launcher passes its own signal on.
//! A terminal that closes sends SIGHUP twice. A save that each of them could cut short would seldom be whole. So the
//! first signal is the request, and all others repeat it. The exception is a SIGINT that comes [`AGAIN`] or more after
//! the first signal: a user has pressed Ctrl-C again.

use std::time::{Duration, Instant};

use super::signals::INT;

/// So long after the first signal, a SIGINT ends everything at once. One key press arrives within milliseconds.
pub const AGAIN: Duration = Duration::from_secs(2);

/// The signals that have asked this process to end.
#[derive(Clone, Copy, Debug, Default)]
pub struct EndRequest(Option<Instant>);

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopRequest {
    /// The work is saved, and the job ends.
    First,
    /// What has been asked for already.
    Same,
    /// The job ends at once. What it has not saved is lost.
    AtOnce,
}

impl EndRequest {
    /// Takes notice of one of the signals in [`ENDING`](super::ENDING), which has arrived now.
    pub fn hear(&mut self, signal: i32) -> StopRequest {
        self.hear_at(signal, Instant::now())
    }

    fn hear_at(&mut self, signal: i32, now: Instant) -> StopRequest {
        match self.0 {
            None => {
                self.0 = Some(now);
                StopRequest::First
            }
            Some(first) if signal == INT && now.duration_since(first) >= AGAIN => {
                StopRequest::AtOnce
            }
            Some(_) => StopRequest::Same,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::signals::{ENDING, HUP, TERM};
    use super::*;

    #[test]
    fn only_a_later_interrupt_is_another_request() {
        let begin = Instant::now();
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        for first in ENDING {
            let mut request = EndRequest::default();
            assert_eq!(request.hear_at(first, at(0)), StopRequest::First);
            for (signal, milliseconds) in
                [(INT, 0), (TERM, 1), (INT, 1999), (TERM, 9000), (HUP, 9000)]
            {
                assert_eq!(
                    request.hear_at(signal, at(milliseconds)),
                    StopRequest::Same,
                    "{signal}"
                );
            }
            assert_eq!(request.hear_at(INT, at(2000)), StopRequest::AtOnce);
        }
    }
}
