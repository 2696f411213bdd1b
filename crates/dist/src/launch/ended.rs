//! The end of a job: whether it succeeded, and the cause if it did not.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use super::report::Report;
use super::signals::signal_name;

/// The end of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Every rank succeeded.
    Success,
    /// A rank failed. The line names the rank and the reason.
    Failed(String),
    /// This signal asked the launcher to stop, and the launcher has stopped the ranks.
    Interrupted(i32),
}

/// The end of a job, with what a launcher of other programs needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// Success, the cause of the failure, or the interrupt.
    pub outcome: Outcome,
    /// The exit code of the process that is the cause of the failure, or 128 plus the number of the
    /// signal that ended it. After an interrupt, 128 plus the number of its signal. 0 after a success.
    pub code: i32,
    /// The rank that is the cause of the failure. `None` if it did not fail, or if all ranks report
    /// the same error.
    pub rank: Option<usize>,
    /// After an interrupt, the number of processes that had not ended in time and were killed.
    pub late: usize,
    /// The end of what the processes have written to standard error, see
    /// [`Capture::tail`](super::Capture::tail).
    pub tail: Vec<u8>,
}

impl Ended {
    pub(super) fn interrupted(signal: i32, late: usize) -> Self {
        Self { late, ..Self::new(Outcome::Interrupted(signal), 128 + signal, None) }
    }

    fn new(outcome: Outcome, code: i32, rank: Option<usize>) -> Self {
        Self { outcome, code, rank, late: 0, tail: Vec::new() }
    }

    /// The end of a job whose processes have ended. Of all failures it names the cause: first a death
    /// by signal, then a rank's own error, then an exit code. Consequences of another rank's failure
    /// come last, and so do the ends of processes to which the launcher has sent a signal.
    pub(super) fn of_ranks(
        statuses: &[Option<ExitStatus>],
        before: &BeforeSignals,
        reports: &[Report],
        name: impl Fn(usize) -> String,
    ) -> Self {
        let failed = |rank: usize, message: String| {
            let code = statuses.get(rank).copied().flatten().map_or(1, code);
            let code = if code == 0 { 1 } else { code };
            Self::new(Outcome::Failed(message), code, Some(rank))
        };
        if let Some((rank, signal)) = before.died {
            let message = format!("{} was killed by {}", name(rank), signal_name(signal));
            return failed(rank, message);
        }
        if let Some(first) = reports.iter().find(|report| !report.echo) {
            let everywhere = reports.iter().filter(|r| !r.echo && r.message == first.message);
            let message = first.message.clone();
            return match everywhere.count() {
                count if count == statuses.len() => {
                    Self { rank: None, ..failed(first.rank, message) }
                }
                _ => failed(first.rank, format!("{}: {message}", name(first.rank))),
            };
        }
        let silent =
            |&&(i, _): &&(usize, ExitStatus)| reports.iter().all(|report| report.rank != i);
        // A rank that failed without a report (a panic, an exit) is the cause of the other ranks'
        // failures.
        let status = |i: usize| statuses.get(i).copied().flatten().filter(|s| !s.success());
        let others = (0..statuses.len()).filter(|i| !before.failed.contains(i));
        let ended: Vec<(usize, ExitStatus)> = before
            .failed
            .iter()
            .copied()
            .chain(others)
            .filter_map(|i| Some((i, status(i)?)))
            .collect();
        if let Some(&(rank, status)) = ended.iter().find(silent).or(ended.first()) {
            let echo = reports.first().map(|report| format!(": {}", report.message));
            let echo = echo.unwrap_or_default();
            return failed(rank, format!("{} ended with {status}{echo}", name(rank)));
        }
        Self::new(Outcome::Success, 0, None)
    }
}

/// The failures before the launcher sent a signal to any process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BeforeSignals {
    /// The first process that a signal ended, and the signal.
    died: Option<(usize, i32)>,
    /// The processes that have failed, in the order of their ends.
    failed: Vec<usize>,
}

impl BeforeSignals {
    /// Notes what has ended since the last look.
    pub(super) fn look(&mut self, statuses: &[Option<ExitStatus>]) {
        self.died = self.died.or_else(|| killed(statuses));
        for (i, status) in statuses.iter().enumerate() {
            if status.is_some_and(|status| !status.success()) && !self.failed.contains(&i) {
                self.failed.push(i);
            }
        }
    }
}

/// The exit code by which a shell would name this end.
fn code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

/// The first process that a signal has ended, and the signal.
fn killed(statuses: &[Option<ExitStatus>]) -> Option<(usize, i32)> {
    statuses.iter().enumerate().find_map(|(i, status)| Some((i, status.as_ref()?.signal()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(code: i32) -> Option<ExitStatus> {
        Some(ExitStatus::from_raw(code << 8))
    }

    fn signal(signal: i32) -> Option<ExitStatus> {
        Some(ExitStatus::from_raw(signal))
    }

    fn report(rank: usize, message: &str, echo: bool) -> Report {
        Report { rank, message: message.to_owned(), echo }
    }

    /// `earlier`: what the launcher saw at each look before it sent a signal.
    #[track_caller]
    fn check(
        statuses: &[Option<ExitStatus>],
        earlier: &[&[Option<ExitStatus>]],
        reports: &[Report],
        expected: (&str, i32, Option<usize>),
    ) {
        let mut before = BeforeSignals::default();
        earlier.iter().for_each(|statuses| before.look(statuses));
        let ended = Ended::of_ranks(statuses, &before, reports, |rank| format!("rank {rank}"));
        let (message, code, rank) = expected;
        assert_eq!(ended.outcome, Outcome::Failed(message.to_owned()));
        assert_eq!((ended.code, ended.rank), (code, rank));
    }

    #[test]
    fn the_cause_is_named_with_its_exit_code() {
        let echo = report(0, "rank 1: it broke", true);
        check(
            &[exit(1), exit(3)],
            &[],
            std::slice::from_ref(&echo),
            ("rank 1 ended with exit status: 3: rank 1: it broke", 3, Some(1)),
        );
        let own = report(1, "it broke", false);
        check(
            &[exit(1), exit(3)],
            &[],
            &[echo.clone(), own.clone()],
            ("rank 1: it broke", 3, Some(1)),
        );
        check(
            &[exit(1), signal(9)],
            &[&[None, signal(9)]],
            &[echo],
            ("rank 1 was killed by SIGKILL", 137, Some(1)),
        );
        // A rank that reports an error has failed, whatever its exit code.
        check(&[exit(0), exit(0)], &[], &[own], ("rank 1: it broke", 1, Some(1)));
    }

    #[test]
    fn the_first_failure_is_the_cause_and_not_the_end_of_those_that_the_launcher_ended() {
        let all = [signal(15), exit(3), exit(1)];
        let earlier: [&[_]; 2] = [&[None, exit(3), None], &[None, exit(3), exit(1)]];
        check(&all, &earlier, &[], ("rank 1 ended with exit status: 3", 3, Some(1)));
        let earlier: [&[_]; 2] = [&[None, None, exit(1)], &[None, exit(3), exit(1)]];
        check(&all, &earlier, &[], ("rank 2 ended with exit status: 1", 1, Some(2)));
        // A rank that has reported a consequence is not the cause.
        let echo = report(2, "rank 1: gone", true);
        let message = "rank 1 ended with exit status: 3: rank 1: gone";
        check(&all, &earlier, &[echo], (message, 3, Some(1)));
    }

    #[test]
    fn an_error_of_all_ranks_is_named_once() {
        let reports = [report(1, "no data", false), report(0, "no data", false)];
        check(&[exit(1), exit(1)], &[], &reports, ("no data", 1, None));
    }

    #[test]
    fn the_first_process_that_a_signal_ended_is_found() {
        assert_eq!(killed(&[exit(1), None, signal(11), signal(9)]), Some((2, 11)));
        assert_eq!(killed(&[exit(0), None]), None);
    }

    #[test]
    fn a_success_has_no_cause() {
        let ended = Ended::of_ranks(&[exit(0), exit(0)], &BeforeSignals::default(), &[], |rank| {
            rank.to_string()
        });
        assert_eq!((ended.outcome, ended.code, ended.rank), (Outcome::Success, 0, None));
    }
}
