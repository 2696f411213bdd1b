//! The watch over the processes of a job: what happens when one of them fails, when a signal arrives,
//! and when all have ended but something is left.
//!
//! Each of these makes a list of signals with times. The first list that is made counts, and the
//! processes get its signals until they have gone.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};

use super::children::{Children, LOOK};
use super::ended::{BeforeSignals, JobEnd};
use super::report::{RankEvent, RankReport, Reports};
use super::request::{EndRequest, StopRequest};
use super::signals::{ENDING, Signals, TSTP};
use crate::Result;

/// After the failure of a rank, the others have this long to notice it and report.
const TO_NOTICE: Duration = Duration::from_secs(1);

/// Then they get SIGTERM, and have this long before they are killed. They cannot save anything that all ranks
/// would have to agree on.
const TO_END: Duration = Duration::from_secs(3);

/// After a signal that asks for the end, the ranks have this long to save their work before they are killed,
/// unless the user says otherwise.
///
/// It does not depend on their progress. A rank that waits for a slow disk, for a network's file system or for
/// another rank neither computes nor writes for many seconds, and looks like one that hangs. To kill it early would
/// lose the work for which it has the time. A user who does not want to wait presses Ctrl-C again.
pub(super) const TO_SAVE: Duration = Duration::from_secs(30);

/// After they are killed, processes have this long to disappear.
const TO_DISAPPEAR: Duration = Duration::from_secs(2);

/// The time between two interrupts that force an mpiexec or srun to end.
const BETWEEN: Duration = Duration::from_millis(100);

/// What the watch does for a job.
#[derive(Clone, Debug)]
pub(super) struct WatchRules {
    /// See [`TO_SAVE`].
    pub(super) to_save: Duration,
    /// Signals to this process, and the signal that the processes get for each.
    pub(super) forwarded: Vec<(i32, Signal)>,
    /// The process starts the ranks itself. If it is killed, ranks may be left.
    pub(super) is_launcher: bool,
}

pub(super) struct JobWatch {
    rules: WatchRules,
    children: Children,
    reports: Reports,
    /// All reports but those of checkpoints.
    heard: Vec<RankReport>,
    /// The step of the newest checkpoint.
    saved: Option<u64>,
    before: BeforeSignals,
    /// The signals that the processes will get, and when.
    steps: VecDeque<(Instant, Signal)>,
    /// The list of signals has been made.
    is_ending: bool,
    has_sent: bool,
    killed: Option<Instant>,
    request: EndRequest,
    /// The first signal that asked for the end.
    interrupt: Option<i32>,
    /// The processes that had not gone when they were killed.
    late: Vec<usize>,
}

impl JobWatch {
    pub(super) fn new(rules: WatchRules, children: Children, reports: Reports) -> Self {
        Self {
            rules,
            children,
            reports,
            heard: Vec::new(),
            saved: None,
            before: BeforeSignals::begin(),
            steps: VecDeque::new(),
            is_ending: false,
            has_sent: false,
            killed: None,
            request: EndRequest::default(),
            interrupt: None,
            late: Vec::new(),
        }
    }

    /// Waits for the end of all processes. It has no deadline as long as none fails.
    pub(super) fn until_all_have_gone(&mut self, signals: &mut Signals) -> Result<()> {
        loop {
            self.children.look()?;
            if !self.has_sent {
                self.before.look(&self.children.statuses());
            }
            // A rank reports before it ends, so the reports of all that have ended are there.
            self.hear();
            while let Some(signal) = signals.next_arrived() {
                self.obey(signal);
            }
            if self.children.have_gone() || self.has_given_up() {
                return Ok(());
            }
            if !self.is_ending {
                self.begin_to_end();
            }
            self.send_what_is_due();
            std::thread::sleep(LOOK);
        }
    }

    /// The end of the job, once all processes have gone.
    pub(super) fn ended(&self, name: impl Fn(usize) -> String) -> JobEnd {
        let statuses = self.children.statuses();
        let ended = JobEnd::of_ranks(&statuses, &self.before, &self.heard, &name);
        let ended = match self.interrupt {
            Some(signal) if !self.is_complete() => {
                let late: Vec<String> = self.late.iter().map(|&index| name(index)).collect();
                let has_failed = |report: &RankReport| {
                    matches!(report.news, RankEvent::Failed { echo: false, .. })
                };
                let failed = self.before.has_died() || self.heard.iter().any(has_failed);
                JobEnd::interrupted(signal, &late, self.saved, failed.then_some(&ended))
            }
            _ => ended,
        };
        JobEnd { saved: self.saved, ..ended }
    }

    /// All ranks have done all their work, whatever signals have come. A program that reports nothing may have
    /// been cut short, although it has succeeded.
    fn is_complete(&self) -> bool {
        let is_complete =
            |rank| self.heard.contains(&RankReport { rank, news: RankEvent::Complete });
        self.children.have_succeeded() && (0..self.children.statuses().len()).all(is_complete)
    }

    fn hear(&mut self) {
        for report in self.reports.take() {
            match report.news {
                RankEvent::Saved(step) => {
                    self.saved = self.saved.max(Some(step));
                    continue;
                }
                // A rank that got a signal of the user's ends the job as if the launcher had got it.
                RankEvent::Interrupted(signal) if ENDING.contains(&signal) && !self.has_sent => {
                    self.obey(signal);
                }
                _ => {}
            }
            self.heard.push(report);
        }
    }

    /// Plans the end if a process has failed, or if all have ended and something is left.
    fn begin_to_end(&mut self) {
        let is_failure = |report: &RankReport| matches!(report.news, RankEvent::Failed { .. });
        let first = if self.children.have_failed() || self.heard.iter().any(is_failure) {
            Instant::now() + TO_NOTICE
        } else if self.children.have_ended() {
            Instant::now()
        } else {
            return;
        };
        self.is_ending = true;
        self.steps.extend([(first, Signal::TERM), (first + TO_END, Signal::KILL)]);
    }

    fn obey(&mut self, signal: i32) {
        let sent = self.rules.forwarded.iter().find(|(caught, _)| *caught == signal);
        if !ENDING.contains(&signal) {
            if let Some(&(_, sent)) = sent {
                self.children.signal(sent);
                if signal == TSTP {
                    self.pause();
                }
            }
            return;
        }
        match self.request.hear(signal) {
            StopRequest::First => {
                self.interrupt = Some(signal);
                self.send(sent.map_or(Signal::TERM, |&(_, sent)| sent));
                // Ranks that have begun to end after a failure get no more time.
                if !self.is_ending {
                    let end = Instant::now() + self.rules.to_save;
                    self.steps.push_back((end, Signal::KILL));
                }
                self.is_ending = true;
            }
            StopRequest::Same => {}
            StopRequest::AtOnce => {
                let mut at = Instant::now();
                self.steps.clear();
                if self.rules.is_launcher {
                    self.steps.extend([(at, Signal::INT), (at + BETWEEN, Signal::INT)]);
                    at += TO_DISAPPEAR;
                }
                self.steps.push_back((at, Signal::KILL));
            }
        }
    }

    /// Stops this process until it is continued, and then continues the others.
    fn pause(&self) {
        // A process may always send signals to itself.
        let _: std::result::Result<(), Errno> = kill_process(getpid(), Signal::STOP);
        self.children.signal(Signal::CONT);
    }

    fn send_what_is_due(&mut self) {
        while let Some(&(at, signal)) = self.steps.front()
            && at <= Instant::now()
        {
            self.steps.pop_front();
            self.send(signal);
        }
    }

    fn send(&mut self, signal: Signal) {
        self.has_sent = true;
        if signal == Signal::KILL && self.killed.is_none() {
            self.killed = Some(Instant::now());
            self.late = self.children.present();
        }
        self.children.signal(signal);
    }

    /// The processes have ended, and what they have left in their groups does not disappear: it may
    /// be a process that its parent, outside of the group, does not wait for.
    fn has_given_up(&self) -> bool {
        self.children.have_ended() && self.killed.is_some_and(|at| at.elapsed() >= TO_DISAPPEAR)
    }
}
