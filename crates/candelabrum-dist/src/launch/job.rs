//! A job: processes of any program, started on this host and watched until all have ended.
//!
//! The launchers of this project are all made of it: [`super::spawn()`], which starts copies of the
//! running program, and the command `candelabrum run`, which starts any program, or an mpiexec.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::rand::{GetRandomFlags, getrandom};

use super::children::{Children, adopt_orphans};
use super::ended::{Ended, Outcome};
use super::output::{Capture, Output, Pump, Source, Stream, destination};
use super::report::Reports;
use super::signals::{ENDING, PASSED_ON, Signals, end_with_launcher};
use super::variables::seconds;
use super::watch::{JobWatch, Rules, TO_SAVE};
use super::{RankEnvironment, dmlc, vars};
use crate::{Error, Result};

/// The most ranks that a job has on one host.
pub const MAX_WORKERS: usize = 256;

/// After an interrupt, a reader of the launcher has this long to read what the ranks have written.
const TO_READ: Duration = Duration::from_secs(2);

/// Processes to be started on this host.
#[derive(Clone, Debug)]
pub struct Job {
    program: PathBuf,
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    /// `None`: one process that starts the ranks itself.
    ranks: Option<(usize, RankEnvironment)>,
    output: Output,
    grace: Option<Duration>,
    /// Signals to this process, and the signal that the processes get for each.
    forwarded: Vec<(i32, i32)>,
}

impl Job {
    /// One process that is no rank, for instance an mpiexec, which starts the ranks itself.
    /// [`Self::ranks`] makes it a job of ranks. A program without a `/` is searched in PATH.
    pub fn new(
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            variables: Vec::new(),
            ranks: None,
            output: Output::default(),
            grace: None,
            forwarded: PASSED_ON.map(|signal| (signal, signal)).into(),
        }
    }

    /// The running program with its arguments.
    ///
    /// # Errors
    /// A program that cannot be found any more.
    pub fn of_this_program() -> Result<Self> {
        let program = std::env::current_exe()
            .map_err(|error| Error::io("find the program of the ranks", error))?;
        Ok(Self::new(program, std::env::args_os().skip(1)))
    }

    /// Starts `ranks` processes, the servers of `environment` included. Each has in its environment
    /// its place among the ranks ([`super::Launch::detect`]) and the variables of `environment`.
    ///
    /// If some ranks are servers, each rank also gets the variables by which scripts for MXNet learn
    /// their role: DMLC_ROLE, DMLC_NUM_WORKER and DMLC_NUM_SERVER.
    #[must_use]
    pub fn ranks(self, ranks: usize, environment: &RankEnvironment) -> Self {
        Self { ranks: Some((ranks, environment.clone())), ..self }
    }

    /// Sets an environment variable of all processes.
    #[must_use]
    pub fn variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Says where the output goes. Without this call it goes where the launcher's output goes.
    #[must_use]
    pub fn output(self, output: Output) -> Self {
        Self { output, ..self }
    }

    /// Sets the time that ranks have to save their work after a signal that asks for the end. With `None` it
    /// is CANDELABRUM_GRACE, or 30 seconds.
    #[must_use]
    pub fn grace(self, grace: Option<Duration>) -> Self {
        Self { grace, ..self }
    }

    /// Sends `sent` to all processes when this process gets the signal `caught`. Without this call they get
    /// `caught`.
    #[must_use]
    pub fn forward(mut self, caught: i32, sent: i32) -> Self {
        self.forwarded.retain(|(known, _)| *known != caught);
        self.forwarded.push((caught, sent));
        self
    }

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
    /// SIGTSTP this process stops, too. A signal to a rank that it reports ([`News::Interrupted`](super::News))
    /// ends the job in the same way.
    ///
    /// The failure of a process is not an error but an [`Outcome::Failed`].
    ///
    /// # Errors
    /// A CANDELABRUM_GRACE that is not a number of seconds, a number of ranks out of range, no rank
    /// besides the servers, a network interface that this host does not have, a file of the output that
    /// cannot be made, a process that cannot be started, or a process for which another part of this
    /// program has waited.
    pub fn run(&self, signals: &mut Signals) -> Result<Ended> {
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
        let sources: Vec<Source> = sources.into_iter().collect::<Result<_>>()?;
        let pump = match &self.output {
            Output::Captured(Capture { prefix, tail, .. }) if !sources.is_empty() => {
                Some(Pump::start(sources, prefix.clone(), *tail)?)
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
                ended = Ended::interrupted(signal, &[], ended.saved, None);
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

    fn rules(&self) -> Result<Rules> {
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
        Ok(Rules { to_save, forwarded, is_launcher: self.ranks.is_none() })
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

    fn destinations(&self, index: usize, command: &mut Command) -> Result<[Option<Source>; 2]> {
        let Output::Captured(capture) = &self.output else { return Ok([None, None]) };
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

/// A secret that cannot be guessed, so that no other user can take the names of the job's sockets.
///
/// # Errors
/// A system without random numbers.
pub fn unique_job() -> Result<String> {
    let mut bytes = [0_u8; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|error| Error::io("draw the name of the job", error))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}
