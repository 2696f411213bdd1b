//! The command `candelabrum run` with a time limit. The ranks are small shell scripts.

use std::env;
use std::ffi::OsStr;
use std::time::Duration;

use candelabrum_testkit::Program;
pub(crate) use candelabrum_testkit::{EndedProgram, Running, kill, lives, process_in, until};

/// Longer than every test takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A script that does not end, but takes notice of a signal within a moment.
pub(crate) const WAIT: &str = "while :; do sleep 0.05; done";

/// A command to be started.
pub(crate) struct Run(Program);

/// `candelabrum run` with these options.
pub(crate) fn run<'a>(options: impl IntoIterator<Item = &'a str>) -> Run {
    // The tests may run under nohup, which ignores SIGHUP, or in the background of a shell, which ignores SIGINT.
    let program = Program::new("/usr/bin/env").arg("--default-signal").limit(LIMIT);
    let program = program.arg(env!("CARGO_BIN_EXE_candelabrum")).arg("run").args(options);
    // The tests may themselves be started in a Slurm allocation, or with settings of a user.
    let ours = ["CANDELABRUM_", "SLURM_", "MASTER_", "RUST_"];
    let is_ours = |name: &OsStr| ours.iter().any(|ours| name.to_string_lossy().starts_with(ours));
    let names = env::vars_os().map(|(name, _)| name).filter(|name| is_ours(name));
    Run(names.fold(program, Program::env_remove))
}

impl Run {
    pub(crate) fn option(self, name: &str, value: impl AsRef<OsStr>) -> Self {
        Self(self.0.arg(name).arg(value))
    }

    /// What every rank runs.
    pub(crate) fn script(self, script: &str) -> Self {
        Self(self.0.args(["--", "sh", "-c", script]))
    }

    /// The program of every rank.
    pub(crate) fn program(self, program: impl AsRef<OsStr>) -> Self {
        Self(self.0.arg("--").arg(program))
    }

    /// Further arguments of the program.
    pub(crate) fn arguments<'a>(self, all: impl IntoIterator<Item = &'a str>) -> Self {
        Self(self.0.args(all))
    }

    pub(crate) fn env(self, name: &str, value: impl AsRef<OsStr>) -> Self {
        Self(self.0.env(name, value))
    }

    pub(crate) fn start(self) -> Running {
        self.0.start()
    }

    /// Starts the command and waits for its end.
    pub(crate) fn finish(self) -> EndedProgram {
        self.0.run()
    }
}
