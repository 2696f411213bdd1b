//! Whether a job is started again after a failure, and after which pause.

use std::time::Duration;

/// The exit codes after which another start would end in the same way: wrong options, a program that
/// cannot be executed, and one that is not there.
pub(super) const IN_VAIN: [i32; 3] = [2, 126, 127];

/// The longest pause, in first pauses.
const LONGEST: u32 = 30;

/// A program that reports no checkpoints may make no progress, however long it runs. Such a job has so many times
/// [`Policy::most`] restarts in all.
const MOST_IN_ALL: usize = 10;

/// What the user wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    pub(super) most: usize,
    /// The pause before the first restart.
    pub(super) pause: Duration,
    /// A job that ran so long before it failed, and made progress, has all its restarts again.
    pub(super) reset: Duration,
}

/// The restarts so far.
#[derive(Debug)]
pub(super) struct Restarts {
    policy: Policy,
    /// Since the start, or since the restarts were given back.
    used: usize,
    all: usize,
    /// The step of the newest checkpoint when the restarts were given back.
    saved: Option<u64>,
}

/// What to do after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestartDecision {
    /// Start the job again after a pause. It is restart `number` of those that the policy allows.
    Restart { number: usize, pause: Duration },
    /// The restarts are used up.
    UsedUp,
    /// Another start would end in the same way.
    InVain,
}

impl Restarts {
    pub(super) fn new(policy: Policy) -> Self {
        Self { policy, used: 0, all: 0, saved: None }
    }

    /// The number of restarts since the start.
    pub(super) fn all(&self) -> usize {
        self.all
    }

    /// What to do after a job has run for `lasted` and has failed with an exit code. `saved` is the step of its
    /// newest checkpoint, if it has reported one.
    pub(super) fn after(
        &mut self,
        code: i32,
        lasted: Duration,
        saved: Option<u64>,
    ) -> RestartDecision {
        let Policy { most, pause, reset } = self.policy;
        if IN_VAIN.contains(&code) {
            return RestartDecision::InVain;
        }
        let is_unknown = saved.or(self.saved).is_none();
        if lasted >= reset && (is_unknown || saved > self.saved) {
            (self.used, self.saved) = (0, saved);
        }
        if self.used >= most || (is_unknown && self.all >= most.saturating_mul(MOST_IN_ALL)) {
            return RestartDecision::UsedUp;
        }
        let doublings = u32::try_from(self.used).unwrap_or(u32::MAX);
        let times = 2_u32.checked_pow(doublings).unwrap_or(LONGEST).min(LONGEST);
        self.used += 1;
        self.all += 1;
        RestartDecision::Restart { number: self.used, pause: pause.saturating_mul(times) }
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
        let seconds = std::iter::from_fn(|| match restarts.after(1, SECOND, None) {
            RestartDecision::Restart { pause, .. } => Some(pause.as_secs()),
            _ => None,
        });
        let seconds: Vec<u64> = seconds.collect();
        assert_eq!(seconds[..7], [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!((seconds.len(), seconds[39]), (40, 30));
    }

    #[test]
    fn a_long_run_gives_all_restarts_back_but_not_the_number_of_the_attempt() {
        let mut restarts = restarts(2);
        let first = RestartDecision::Restart { number: 1, pause: SECOND };
        let second = RestartDecision::Restart { number: 2, pause: 2 * SECOND };
        assert_eq!(restarts.after(1, SECOND, None), first);
        assert_eq!(restarts.after(1, SECOND, None), second);
        assert_eq!(restarts.after(1, 600 * SECOND, None), first);
        assert_eq!(restarts.after(1, SECOND, None), second);
        assert_eq!(restarts.after(1, SECOND, None), RestartDecision::UsedUp);
        assert_eq!(restarts.all(), 4);
    }

    #[test]
    fn a_long_run_without_progress_gives_nothing_back() {
        let mut restarts = restarts(2);
        let mut number = |saved| match restarts.after(1, 600 * SECOND, saved) {
            RestartDecision::Restart { number, .. } => Some(number),
            _ => None,
        };
        // The first two failures come after new checkpoints, the others at the same step.
        let numbers = [Some(20), Some(40), Some(40), None, Some(40)].map(&mut number);
        assert_eq!(numbers, [Some(1), Some(1), Some(2), None, None]);
        assert_eq!(number(Some(60)), Some(1));
    }

    #[test]
    fn a_job_that_reports_no_checkpoints_does_not_start_again_for_ever() {
        let mut restarts = restarts(3);
        let next = || restarts.after(1, 600 * SECOND, None);
        let count = std::iter::repeat_with(next)
            .take_while(|next| *next != RestartDecision::UsedUp)
            .count();
        assert_eq!(count, 3 * MOST_IN_ALL);
    }

    #[test]
    fn a_usage_error_is_not_tried_again() {
        for code in IN_VAIN {
            assert_eq!(restarts(9).after(code, SECOND, None), RestartDecision::InVain);
        }
        assert_eq!(restarts(0).after(137, SECOND, None), RestartDecision::UsedUp);
    }
}
