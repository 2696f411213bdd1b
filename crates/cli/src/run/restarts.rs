//! Whether a job is started again after a failure, and after which pause.

use std::time::Duration;

/// The exit codes after which another start would end in the same way: wrong options, a program that
/// cannot be executed, and one that is not there.
pub(super) const IN_VAIN: [i32; 3] = [2, 126, 127];

/// The longest pause, in first pauses.
const LONGEST: u32 = 30;

/// What the user wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    pub(super) most: usize,
    /// The pause before the first restart.
    pub(super) pause: Duration,
    /// A job that ran so long before it failed has all its restarts again.
    pub(super) reset: Duration,
}

/// The restarts so far.
#[derive(Debug)]
pub(super) struct Restarts {
    policy: Policy,
    /// Since the start, or since the job has run for [`Policy::reset`].
    used: usize,
    all: usize,
}

/// What to do after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Start the job again after a pause. It is restart `number` of those that the policy allows.
    Restart { number: usize, pause: Duration },
    /// The restarts are used up.
    UsedUp,
    /// Another start would end in the same way.
    InVain,
}

impl Restarts {
    pub(super) fn new(policy: Policy) -> Self {
        Self { policy, used: 0, all: 0 }
    }

    /// The number of restarts since the start.
    pub(super) fn all(&self) -> usize {
        self.all
    }

    /// What to do after a job has run for `lasted` and has failed with an exit code.
    pub(super) fn after(&mut self, code: i32, lasted: Duration) -> Next {
        let Policy { most, pause, reset } = self.policy;
        if IN_VAIN.contains(&code) {
            return Next::InVain;
        }
        if lasted >= reset {
            self.used = 0;
        }
        if self.used >= most {
            return Next::UsedUp;
        }
        let doublings = u32::try_from(self.used).unwrap_or(u32::MAX);
        let times = 2_u32.checked_pow(doublings).unwrap_or(LONGEST).min(LONGEST);
        self.used += 1;
        self.all += 1;
        Next::Restart { number: self.used, pause: pause.saturating_mul(times) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn restarts(most: usize) -> Restarts {
        Restarts::new(Policy { most, pause: SECOND, reset: 600 * SECOND })
    }

    #[test]
    fn pauses_double_up_to_thirty_times_the_first_one() {
        let mut restarts = restarts(40);
        let seconds = std::iter::from_fn(|| match restarts.after(1, SECOND) {
            Next::Restart { pause, .. } => Some(pause.as_secs()),
            _ => None,
        });
        let seconds: Vec<u64> = seconds.collect();
        assert_eq!(seconds[..7], [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!((seconds.len(), seconds[39]), (40, 30));
    }

    #[test]
    fn a_long_run_gives_all_restarts_back_but_not_the_number_of_the_attempt() {
        let mut restarts = restarts(2);
        let first = Next::Restart { number: 1, pause: SECOND };
        let second = Next::Restart { number: 2, pause: 2 * SECOND };
        assert_eq!(restarts.after(1, SECOND), first);
        assert_eq!(restarts.after(1, SECOND), second);
        assert_eq!(restarts.after(1, 600 * SECOND), first);
        assert_eq!(restarts.after(1, SECOND), second);
        assert_eq!(restarts.after(1, SECOND), Next::UsedUp);
        assert_eq!(restarts.all(), 4);
    }

    #[test]
    fn a_usage_error_is_not_tried_again() {
        for code in IN_VAIN {
            assert_eq!(restarts(9).after(code, SECOND), Next::InVain);
        }
        assert_eq!(restarts(0).after(137, SECOND), Next::UsedUp);
    }
}
