//! A program that a test starts, with a time limit.

use std::any::type_name;
use std::env;
use std::ffi::{OsStr, OsString};
use std::iter;
use std::mem;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use tempfile::TempDir;

use crate::LIMIT;
use crate::ended::EndedProgram;
use crate::running::Running;

/// A program to be started.
#[derive(Debug)]
pub struct Program {
    command: Command,
    limit: Duration,
    /// The folder of mpiexec: its jobs share one, and the first job that ends removes that.
    scratch: Option<TempDir>,
}

impl Program {
    /// A program without arguments.
    pub fn new(path: impl AsRef<OsStr>) -> Self {
        Self { command: Command::new(path), limit: LIMIT, scratch: None }
    }

    /// A test function of the running program, in a process of its own, which prints what the test prints.
    pub fn from_test<F: Fn()>(test: F) -> Self {
        Self::test(name_of(&test))
    }

    /// [`Self::from_test`] for the test of this name.
    ///
    /// # Panics
    /// If the system does not name the running program.
    pub fn test(name: &str) -> Self {
        let this = Self::new(env::current_exe().expect("a test knows its own program"));
        this.args([name, "--exact", "--nocapture", "--test-threads=1"])
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(args);
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Sets environment variables.
    #[must_use]
    pub fn envs<N: AsRef<OsStr>, V: AsRef<OsStr>>(
        mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        self.command.envs(variables);
        self
    }

    /// Removes an environment variable.
    #[must_use]
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.command.env_remove(name);
        self
    }

    /// Sets the folder in which the program runs.
    #[must_use]
    pub fn folder(mut self, folder: impl AsRef<Path>) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// The time from the start after which the program is ended and the test fails.
    #[must_use]
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Has another program start this one: its command line comes before this one's.
    #[must_use]
    pub fn behind(mut self, mut other: Self) -> Self {
        mem::swap(&mut self.command, &mut other.command);
        self.scratch = other.scratch.or(self.scratch);
        let inner = other.command;
        self.command.arg(inner.get_program()).args(inner.get_args());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => self.command.env(name, value),
                None => self.command.env_remove(name),
            };
        }
        if let Some(folder) = inner.get_current_dir() {
            self.command.current_dir(folder);
        }
        self
    }

    /// Has a shell run these words first, in the process that then becomes the program.
    #[must_use]
    pub fn after(self, words: &str) -> Self {
        self.behind(Self::new("sh").args(["-c", &format!("{words} exec \"$0\" \"$@\"")]))
    }

    /// Has mpiexec start ranks of this program. Prints a line and returns `None` if there is no mpiexec.
    #[must_use]
    pub fn under_mpiexec(self, ranks: usize) -> Option<Self> {
        Some(self.behind(mpiexec()?.args(["-n", &ranks.to_string()])))
    }

    /// Starts the program, without input.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(mut self) -> Running {
        self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::new(self.command, self.limit, self.scratch)
    }

    /// Starts the program and waits for its end.
    ///
    /// # Panics
    /// If it cannot be started, or the limit passes.
    #[track_caller]
    pub fn run(self) -> EndedProgram {
        self.start().finish()
    }

    /// The command line.
    pub(crate) fn words(&self) -> impl Iterator<Item = OsString> {
        let words = iter::once(self.command.get_program()).chain(self.command.get_args());
        words.map(OsStr::to_owned)
    }

    /// The command, for a start with other streams, and a folder that must stay until its end.
    pub fn into_command(self) -> (Command, Option<TempDir>) {
        (self.command, self.scratch)
    }
}

/// The name of a test function of the running program, as the program's filter knows it.
pub(crate) fn name_of<F: Fn()>(_: &F) -> &'static str {
    let path = type_name::<F>();
    path.split_once("::").map_or(path, |(_, name)| name)
}

/// mpiexec with what it needs on this machine, up to the number of ranks. Prints a line and returns `None` if it is
/// not installed.
///
/// # Panics
/// If there is no room for its folder.
#[expect(clippy::print_stdout, reason = "a test says what it leaves out")]
pub fn mpiexec() -> Option<Program> {
    static VERSION: OnceLock<Option<String>> = OnceLock::new();
    let version = VERSION.get_or_init(|| {
        let asked = Command::new("mpiexec").arg("--version").output().ok()?;
        asked.status.success().then(|| String::from_utf8_lossy(&asked.stdout).into_owned())
    });
    let Some(version) = version else {
        println!("left out: there is no mpiexec here");
        return None;
    };
    let scratch = tempfile::tempdir().expect("a folder for mpiexec");
    let mut mpiexec = Program::new("mpiexec").env("TMPDIR", scratch.path());
    mpiexec.scratch = Some(scratch);
    if version.contains("Open") {
        let variables = [
            "OMPI_ALLOW_RUN_AS_ROOT",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
            "OMPI_MCA_rmaps_base_oversubscribe",
        ];
        mpiexec = mpiexec.args(["--bind-to", "none"]).envs(variables.map(|name| (name, "1")));
    }
    Some(mpiexec)
}
