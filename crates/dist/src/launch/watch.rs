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
use super::ended::{BeforeSignals, Ended};
use super::report::{Report, Reports};
use super::signals::{HUP, INT, Signals, TERM, TSTP};
use crate::Result;

/// After they are killed, processes have this long to disappear.
const TO_DISAPPEAR: Duration = Duration::from_secs(2);

/// The time between two interrupts that force an mpiexec or srun to end.
const BETWEEN: Duration = Duration::from_millis(100);

/// Whether a signal to the launcher asks for the end of the job.
pub(super) fn ends(signal: i32) -> bool {
    [INT, TERM, HUP].contains(&signal)
}

/// The times that processes have to end by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grace {
    /// After the failure of a rank, the others have this long to notice it and report.
    pub to_notice: Duration,
    /// Then they get SIGTERM, and have this long before they are killed. With `None` they are killed
    /// without SIGTERM.
    pub to_end: Option<Duration>,
    /// After a signal that asks the job to stop, the ranks have this long to save their work. Then
    /// they are killed.
    pub to_save: Duration,
}

/// The times of [`super::spawn()`].
impl Default for Grace {
    fn default() -> Self {
        let two_seconds = Duration::from_secs(2);
        Self { to_notice: two_seconds, to_end: None, to_save: two_seconds }
    }
}

/// What the watch does for a job.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) grace: Grace,
    /// Signals to this process, and the signal that the processes get for each.
    pub(super) forwarded: Vec<(i32, Signal)>,
    /// The process starts the ranks itself. If it is killed, ranks may be left.
    pub(super) is_launcher: bool,
}

pub(super) struct Watch {
    rules: Rules,
    children: Children,
    reports: Reports,
    heard: Vec<Report>,
    before: BeforeSignals,
    /// The signals that the processes will get, and when.
    steps: VecDeque<(Instant, Signal)>,
    /// The list of signals has been made.
    is_ending: bool,
    has_sent: bool,
    killed: Option<Instant>,
    interrupt: Option<i32>,
    /// The number of processes that ran when they were killed.
    late: usize,
}

impl Watch {
    pub(super) fn new(rules: Rules, children: Children, reports: Reports) -> Self {
        Self {
            rules,
            children,
            reports,
            heard: Vec::new(),
            before: BeforeSignals::default(),
            steps: VecDeque::new(),
            is_ending: false,
            has_sent: false,
            killed: None,
            interrupt: None,
            late: 0,
        }
    }

    /// Waits for the end of all processes. It has no deadline as long as none fails.
    pub(super) fn until_all_have_gone(&mut self, signals: &mut Signals) -> Result<()> {
        loop {
            self.heard.extend(self.reports.take());
            self.children.look()?;
            if !self.has_sent {
                self.before.look(&self.children.statuses());
            }
            while let Some(signal) = signals.next_arrived() {
                self.obey(signal);
            }
            if self.children.have_gone() || self.has_given_up() {
                self.heard.extend(self.reports.take());
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
    pub(super) fn ended(&self, name: impl Fn(usize) -> String) -> Ended {
        match self.interrupt {
            Some(signal) => Ended::interrupted(signal, self.late),
            None => Ended::of_ranks(&self.children.statuses(), &self.before, &self.heard, name),
        }
    }

    /// Plans the end if a process has failed, or if all have ended and something is left.
    fn begin_to_end(&mut self) {
        let Grace { to_notice, to_end, .. } = self.rules.grace;
        let first = if self.children.have_failed() || !self.heard.is_empty() {
            Instant::now() + to_notice
        } else if self.children.have_ended() {
            Instant::now()
        } else {
            return;
        };
        self.is_ending = true;
        self.steps.extend(to_end.map(|_| (first, Signal::TERM)));
        self.steps.push_back((first + to_end.unwrap_or_default(), Signal::KILL));
    }

    fn obey(&mut self, signal: i32) {
        let sent = self.rules.forwarded.iter().find(|(caught, _)| *caught == signal);
        if !ends(signal) {
            if let Some(&(_, sent)) = sent {
                self.children.signal(sent);
                if signal == TSTP {
                    self.pause();
                }
            }
        } else if self.interrupt.is_none() {
            self.interrupt = Some(signal);
            self.send(sent.map_or(Signal::TERM, |&(_, sent)| sent));
            // Ranks that have begun to end after a failure get no more time.
            if !self.is_ending {
                let end = Instant::now() + self.rules.grace.to_save;
                self.steps.push_back((end, Signal::KILL));
            }
            self.is_ending = true;
        } else if signal == INT {
            let mut at = Instant::now();
            self.steps.clear();
            if self.rules.is_launcher {
                self.steps.extend([(at, Signal::INT), (at + BETWEEN, Signal::INT)]);
                at += TO_DISAPPEAR;
            }
            self.steps.push_back((at, Signal::KILL));
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
            self.late = self.children.statuses().iter().filter(|status| status.is_none()).count();
        }
        self.children.signal(signal);
    }

    /// The processes have ended, and what they have left in their groups does not disappear: it may
    /// be a process that its parent, outside of the group, does not wait for.
    fn has_given_up(&self) -> bool {
        self.children.have_ended() && self.killed.is_some_and(|at| at.elapsed() >= TO_DISAPPEAR)
    }
}
