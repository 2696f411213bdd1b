//! The end of a job: whether it succeeded, and the cause if it did not.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use super::out_of_memory::OomKills;
use super::report::{RankEvent, RankReport};
use super::signals::{ENDING, KILL, XCPU, interrupted_by, signal_name};
use crate::error::of_rank;

/// The most names of processes that a message has.
const MOST_NAMES: usize = 8;

/// The end of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Every rank succeeded.
    Success,
    /// A rank failed. The line names the rank and the reason.
    Failed(String),
    /// A signal asked the launcher, or a rank, to end, and all ranks have ended before they were complete.
    Interrupted {
        /// The signal.
        signal: i32,
        /// The signal's name, and what was lost if something was.
        message: String,
    },
}

/// The end of a job, with what a launcher of other programs needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobEnd {
    /// Success, the cause of the failure, or the interrupt.
    pub outcome: Outcome,
    /// The exit code of the process that is the cause of the failure, or 128 plus the number of the
    /// signal that ended it. After an interrupt, 128 plus the number of its signal. 0 after a success.
    pub code: i32,
    /// The rank that is the cause of the failure. `None` if it did not fail, or if all ranks report
    /// the same error.
    pub rank: Option<usize>,
    /// The step of the newest checkpoint on the disk, if the ranks have reported one.
    pub saved: Option<u64>,
    /// The end of what the processes have written to standard error, see
    /// [`OutputCapture::tail`](super::OutputCapture::tail).
    pub tail: Vec<u8>,
}

impl JobEnd {
    /// The end by a signal. `late`: the processes that had to be killed. `failed`: the failure of a rank, which
    /// the signal has not caused.
    pub(super) fn interrupted(
        signal: i32,
        late: &[String],
        saved: Option<u64>,
        failed: Option<&Self>,
    ) -> Self {
        let mut message = interrupted_by(signal);
        if let Some(Self { outcome: Outcome::Failed(cause), .. }) = failed {
            message += &format!("; {cause}");
        }
        if !late.is_empty() {
            let names = late[..late.len().min(MOST_NAMES)].join(", ");
            let others = match late.len().saturating_sub(MOST_NAMES) {
                0 => String::new(),
                others => format!(" and {others} others"),
            };
            let lost = match saved {
                Some(step) => format!("nothing was saved since step {step}"),
                None => "what was not saved is lost".to_owned(),
            };
            message +=
                &format!("; {names}{others} did not end in time and had to be killed: {lost}");
        }
        Self::new(Outcome::Interrupted { signal, message }, 128 + signal, None)
    }

    fn new(outcome: Outcome, code: i32, rank: Option<usize>) -> Self {
        Self { outcome, code, rank, saved: None, tail: Vec::new() }
    }

    /// The end of a job whose processes have ended. Of all failures it names the cause: first a death
    /// by signal, then a rank's own error, then an exit code. Consequences of another rank's failure
    /// come last, and so do the ends of processes to which the launcher has sent a signal.
    pub(super) fn of_ranks(
        statuses: &[Option<ExitStatus>],
        before: &BeforeSignals,
        reports: &[RankReport],
        name: impl Fn(usize) -> String,
    ) -> Self {
        let failed = |rank: usize, message: String| {
            let code = statuses.get(rank).copied().flatten().map_or(1, code);
            let code = if code == 0 { 1 } else { code };
            Self::new(Outcome::Failed(message), code, Some(rank))
        };
        if let Some((rank, signal)) = before.died {
            let message = format!("{} was killed by {}", name(rank), signal_name(signal));
            let reason = before.reason_of(signal).map(|reason| format!("; {reason}"));
            return failed(rank, message + &reason.unwrap_or_default());
        }
        let errors = |of_echoes: bool| {
            reports.iter().filter_map(move |report| match &report.news {
                RankEvent::Failed { message, echo } if *echo == of_echoes => {
                    Some((report.rank, message))
                }
                _ => None,
            })
        };
        if let Some((rank, message)) = errors(false).next() {
            let everywhere = errors(false).filter(|(_, other)| *other == message);
            return match everywhere.count() {
                count if count == statuses.len() => {
                    Self { rank: None, ..failed(rank, message.clone()) }
                }
                _ => failed(rank, of_rank(rank, message)),
            };
        }
        let silent = |&&(i, _): &&(usize, ExitStatus)| errors(true).all(|(rank, _)| rank != i);
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
            let echo = errors(true).next().map(|(_, message)| format!(": {message}"));
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
    /// The kernel's counts at the start of the job.
    kills: OomKills,
}

impl BeforeSignals {
    /// Nothing has failed yet.
    pub(super) fn begin() -> Self {
        Self { kills: OomKills::now(), ..Self::default() }
    }

    /// Why the system sent this signal, as far as that can be known.
    fn reason_of(&self, signal: i32) -> Option<String> {
        match signal {
            KILL => self.kills.reason(),
            XCPU => Some("its limit of processor time was reached (`ulimit -t`)".to_owned()),
            _ => None,
        }
    }

    /// Notes what has ended since the last look.
    pub(super) fn look(&mut self, statuses: &[Option<ExitStatus>]) {
        self.died = self.died.or_else(|| killed(statuses));
        for (i, status) in statuses.iter().enumerate() {
            if status.is_some_and(|status| !status.success()) && !self.failed.contains(&i) {
                self.failed.push(i);
            }
        }
    }

    /// Whether a process has died, and not by one of the signals that ask for the end.
    pub(super) fn has_died(&self) -> bool {
        self.died.is_some_and(|(_, signal)| !ENDING.contains(&signal))
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

    fn report(rank: usize, message: &str, echo: bool) -> RankReport {
        RankReport { rank, news: RankEvent::Failed { message: message.to_owned(), echo } }
    }

    /// `earlier`: what the launcher saw at each look before it sent a signal.
    #[track_caller]
    fn check(
        statuses: &[Option<ExitStatus>],
        earlier: &[&[Option<ExitStatus>]],
        reports: &[RankReport],
        expected: (&str, i32, Option<usize>),
    ) {
        let mut before = BeforeSignals::default();
        earlier.iter().for_each(|statuses| before.look(statuses));
        let ended = JobEnd::of_ranks(statuses, &before, reports, |rank| format!("rank {rank}"));
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
    fn a_message_that_begins_with_a_rank_gets_no_other_one() {
        let about = report(1, "rank 0: no data", false);
        check(&[exit(1), exit(1)], &[], &[about], ("rank 0: no data", 1, Some(1)));
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
    fn an_interrupt_names_what_was_lost() {
        let message = |late: &[&str], saved, failed: Option<&JobEnd>| {
            let late: Vec<String> = late.iter().map(|name| (*name).to_owned()).collect();
            let ended = JobEnd::interrupted(2, &late, saved, failed);
            assert_eq!(ended.code, 130);
            let Outcome::Interrupted { signal: 2, message } = ended.outcome else {
                panic!("{ended:?}")
            };
            message
        };
        assert_eq!(message(&[], Some(7), None), "interrupted by SIGINT");
        let killed = "did not end in time and had to be killed";
        assert_eq!(
            message(&["rank 0", "rank 2"], Some(7), None),
            format!(
                "interrupted by SIGINT; rank 0, rank 2 {killed}: nothing was saved since step 7"
            )
        );
        let many = ["x"; 10];
        assert_eq!(
            message(&many, None, None),
            format!(
                "interrupted by SIGINT; {} and 2 others {killed}: what was not saved is lost",
                ["x"; 8].join(", ")
            )
        );
        let reports = [report(1, "no space", false)];
        let before = BeforeSignals::default();
        let failed = JobEnd::of_ranks(&[exit(143), exit(1)], &before, &reports, |rank| {
            format!("rank {rank}")
        });
        assert_eq!(message(&[], None, Some(&failed)), "interrupted by SIGINT; rank 1: no space");
    }

    #[test]
    fn a_success_has_no_cause() {
        let ended = JobEnd::of_ranks(&[exit(0), exit(0)], &BeforeSignals::default(), &[], |rank| {
            rank.to_string()
        });
        assert_eq!((ended.outcome, ended.code, ended.rank), (Outcome::Success, 0, None));
    }
}
