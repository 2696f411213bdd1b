//! A job: processes of any program, started on this host and watched until all have ended.
//!
//! The launchers of this project are all made of it: [`super::spawn()`], which starts copies of the
//! running program, and the command `candelabrum run`, which starts any program, or an mpiexec.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::RankEnvironment;
use super::output::JobOutput;
use super::signals::PASSED_ON;
use crate::{Error, Result};

/// The most ranks that a job has on one host.
pub const MAX_WORKERS: usize = 256;

/// Processes to be started on this host.
#[derive(Clone, Debug)]
pub struct Job {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
    pub(super) variables: Vec<(OsString, OsString)>,
    /// `None`: one process that starts the ranks itself.
    pub(super) ranks: Option<(usize, RankEnvironment)>,
    pub(super) output: JobOutput,
    pub(super) grace: Option<Duration>,
    /// Signals to this process, and the signal that the processes get for each.
    pub(super) forwarded: Vec<(i32, i32)>,
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
            output: JobOutput::default(),
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
    pub fn output(self, output: JobOutput) -> Self {
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
}
