//! The command `candelabrum run` with a time limit. The ranks are small shell scripts.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longer than every test takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A script that does not end, but takes notice of a signal within a moment.
pub(crate) const WAIT: &str = "while :; do sleep 0.05; done";

/// A command to be started.
pub(crate) struct Run(Command);

/// A command that runs. Dropping this value ends it.
pub(crate) struct Running(candelabrum_testkit::Running);

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The exit code; `None` if a signal ended the command.
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
    /// From the start to the end.
    pub(crate) took: Duration,
}

/// `candelabrum run` with these options.
pub(crate) fn run<'a>(options: impl IntoIterator<Item = &'a str>) -> Run {
    // The tests may run under nohup, which ignores SIGHUP, or in the background of a shell, which ignores SIGINT.
    let mut command = Command::new("/usr/bin/env");
    command.arg("--default-signal").arg(env!("CARGO_BIN_EXE_candelabrum"));
    command.arg("run").args(options);
    // The tests may themselves be started in a Slurm allocation, or with settings of a user.
    let ours = ["CANDELABRUM_", "SLURM_", "MASTER_", "RUST_"];
    for (name, _) in env::vars_os() {
        if ours.iter().any(|start| name.to_string_lossy().starts_with(start)) {
            command.env_remove(name);
        }
    }
    Run(command)
}

impl Run {
    pub(crate) fn option(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.0.arg(name).arg(value);
        self
    }

    /// What every rank runs.
    pub(crate) fn script(mut self, script: &str) -> Self {
        self.0.args(["--", "sh", "-c", script]);
        self
    }

    /// The program of every rank.
    pub(crate) fn program(mut self, program: impl AsRef<OsStr>) -> Self {
        self.0.arg("--").arg(program);
        self
    }

    /// Further arguments of the program.
    pub(crate) fn arguments<'a>(mut self, all: impl IntoIterator<Item = &'a str>) -> Self {
        self.0.args(all);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.0.env(name, value);
        self
    }

    pub(crate) fn start(self) -> Running {
        Running(candelabrum_testkit::Running::start(self.0))
    }

    /// Starts the command and waits for its end.
    pub(crate) fn finish(self) -> Ended {
        self.start().finish()
    }
}

impl Running {
    /// Sends a signal to the command alone, as `kill` does.
    pub(crate) fn signal(&self, signal: Signal) {
        self.0.signal(signal);
    }

    /// Whether the command has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.status().is_some()
    }

    /// Waits for the end.
    #[track_caller]
    pub(crate) fn finish(self) -> Ended {
        let (output, took) = self.0.finish(LIMIT);
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let (out, err) = (text(output.stdout), text(output.stderr));
        Ended { code: output.status.code(), signal: output.status.signal(), out, err, took }
    }
}

impl Ended {
    /// Asserts that the command has ended with this code.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// Asserts that the errors contain all these parts.
    #[track_caller]
    pub(crate) fn says<'a>(self, parts: impl IntoIterator<Item = &'a str>) -> Self {
        for part in parts {
            assert!(self.err.contains(part), "no {part:?} in {self:#?}");
        }
        self
    }

    /// The lines of standard output, sorted: ranks write in any order.
    pub(crate) fn lines(&self) -> Vec<&str> {
        let mut lines: Vec<&str> = self.out.lines().collect();
        lines.sort_unstable();
        lines
    }
}

/// Waits for something.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited for {what} for {LIMIT:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The process number that a rank has written into a file by `echo $$ > FILE`.
#[track_caller]
pub(crate) fn process_in(file: &Path) -> u32 {
    until(&format!("{}", file.display()), || {
        let text = fs::read_to_string(file).ok()?;
        text.strip_suffix('\n')?.parse().ok()
    })
}

/// Sends a signal to a process.
pub(crate) fn kill(process: u32, signal: Signal) {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw).expect("a process number");
    kill_process(process, signal).expect("the process is there");
}

/// Whether a process is there and not a corpse.
pub(crate) fn lives(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}
