//! The run of a [`Job`]: its processes are started, and watched until they have ended.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::children::{Children, adopt_orphans};
use super::ended::{JobEnd, Outcome};
use super::job::{Job, MAX_WORKERS};
use super::output::{JobOutput, OutputCapture, OutputPump, OutputSource, Stream, destination};
use super::report::Reports;
use super::secret::unique_job;
use super::signals::{ENDING, Signals};
use super::tie::end_with_launcher;
use super::variables::seconds;
use super::watch::{JobWatch, TO_SAVE, WatchRules};
use super::{dmlc, vars};
use crate::{Error, Result};

/// After an interrupt, a reader of the launcher has this long to read what the ranks have written.
const TO_READ: Duration = Duration::from_secs(2);

impl Job {
    /// Starts the processes and waits until all have ended. When one fails, the others are ended.
    /// When the thread that calls this ends, the kernel ends the processes.
    ///
    /// Each process leads a process group. So signals reach also what a process has started, a signal of
    /// the terminal reaches only this process, and what a process leaves behind is ended with the job. This
    /// process becomes the parent of all orphans among its descendants.
    ///
    /// `signals` is [`Signals::for_jobs`]. These signals reach the processes ([`Self::forward`]). SIGINT,
    /// SIGTERM and SIGHUP end the job: its processes have the [grace](Self::grace) to save their work, and
    /// are killed then. A SIGINT 2 seconds or more after the first of these signals kills them at once. After
    /// SIGTSTP this process stops, too. A signal to a rank that it reports ([`RankEvent::Interrupted`](super::RankEvent))
    /// ends the job in the same way.
    ///
    /// The failure of a process is not an error but an [`Outcome::Failed`].
    ///
    /// # Errors
    /// A CANDELABRUM_GRACE that is not a number of seconds, a number of ranks out of range, no rank
    /// besides the servers, a network interface that this host does not have, a file of the output that
    /// cannot be made, a process that cannot be started, or a process for which another part of this
    /// program has waited.
    pub fn run(&self, signals: &mut Signals) -> Result<JobEnd> {
        let (count, mut common) = self.places()?;
        let rules = self.rules()?;
        let reports = Reports::open()?;
        adopt_orphans()?;
        if self.ranks.is_some() {
            common.push((vars::REPORTS, reports.path()));
        }
        let mut children = Children::default();
        let mut sources = Vec::new();
        for index in 0..count {
            let mut command = self.command(index, &common);
            let [out, err] = self.destinations(index, &mut command)?;
            let child = children.start(self.name(index), &mut command)?;
            let pipes = [
                (out, child.stdout.take().map(OwnedFd::from)),
                (err, child.stderr.take().map(OwnedFd::from)),
            ];
            for (source, pipe) in pipes {
                sources.extend(source.zip(pipe).map(|(source, pipe)| source.with_pipe(pipe)));
            }
        }
        let sources: Vec<OutputSource> = sources.into_iter().collect::<Result<_>>()?;
        let pump = match &self.output {
            JobOutput::Captured(OutputCapture { prefix, tail, .. }) if !sources.is_empty() => {
                Some(OutputPump::start(sources, prefix.clone(), *tail)?)
            }
            _ => None,
        };
        let mut watch = JobWatch::new(rules, children, reports);
        watch.until_all_have_gone(signals)?;
        let mut ended = watch.ended(|index| self.name(index));
        if self.ranks.is_none() {
            ended.rank = None;
        }
        if let Some(pump) = pump {
            let is_interrupted = matches!(ended.outcome, Outcome::Interrupted { .. });
            let end = is_interrupted.then(|| Instant::now() + TO_READ);
            let mut interrupt = None;
            ended.tail = pump.finish(|| {
                let ends = |signal: &i32| ENDING.contains(signal);
                interrupt = interrupt.or_else(|| signals.next_arrived().filter(ends));
                interrupt.is_some() || end.is_some_and(|end| Instant::now() >= end)
            });
            if let (Outcome::Success, Some(signal)) = (&ended.outcome, interrupt) {
                ended = JobEnd::interrupted(signal, &[], ended.saved, None);
            }
        }
        Ok(ended)
    }

    /// The number of processes, and the variables that all of them have.
    fn places(&self) -> Result<(usize, Vec<(&'static str, String)>)> {
        let Some((ranks, environment)) = &self.ranks else { return Ok((1, Vec::new())) };
        let (ranks, servers) = (*ranks, environment.servers);
        if ranks == 0 || ranks > MAX_WORKERS {
            return Err(Error::Setting {
                setting: if servers == 0 { "--workers" } else { "--workers plus --servers" },
                value: ranks.to_string(),
                range: "from 1 to 256 on one host",
            });
        }
        if servers >= ranks {
            return Err(Error::Setting {
                setting: "the number of servers",
                value: servers.to_string(),
                range: "less than the number of ranks",
            });
        }
        let mut variables = environment.variables()?;
        variables.extend([
            (vars::WORLD_SIZE, ranks.to_string()),
            (vars::SERVERS, servers.to_string()),
            (vars::JOB, unique_job()?),
            (vars::PARENT, std::process::id().to_string()),
        ]);
        Ok((ranks, variables))
    }

    fn rules(&self) -> Result<WatchRules> {
        let known = |&(caught, sent): &(i32, i32)| {
            let sent = Signal::from_named_raw(sent).ok_or_else(|| Error::Setting {
                setting: "the signal for the ranks",
                value: sent.to_string(),
                range: "the number of a signal",
            })?;
            Ok((caught, sent))
        };
        let forwarded = self.forwarded.iter().map(known).collect::<Result<_>>()?;
        let to_save = match self.grace {
            Some(grace) => grace,
            None => seconds(vars::GRACE)?.unwrap_or(TO_SAVE),
        };
        Ok(WatchRules { to_save, forwarded, is_launcher: self.ranks.is_none() })
    }

    fn command(&self, index: usize, common: &[(&'static str, String)]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::null());
        command.envs(common.iter().map(|(name, value)| (name, value)));
        if let Some((ranks, environment)) = &self.ranks {
            command.env(vars::RANK, index.to_string());
            command.envs(dmlc::of_rank(index, *ranks, environment.servers));
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        // A program that has started ranks itself must end them.
        let signal = if self.ranks.is_some() { Signal::KILL } else { Signal::TERM };
        end_with_launcher(&mut command, signal);
        command
    }

    fn destinations(
        &self,
        index: usize,
        command: &mut Command,
    ) -> Result<[Option<OutputSource>; 2]> {
        let JobOutput::Captured(capture) = &self.output else { return Ok([None, None]) };
        let (out, source_of_out) = destination(capture, index, Stream::Out)?;
        let (err, source_of_err) = destination(capture, index, Stream::Err)?;
        command.stdout(out).stderr(err);
        Ok([source_of_out, source_of_err])
    }

    /// The name of a process in messages.
    fn name(&self, index: usize) -> String {
        match &self.ranks {
            Some(_) => format!("rank {index}"),
            None => self.program.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        }
    }
}
