//! A job of the test's own program: its start, its signals, and assertions about its end.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use candelabrum_testkit::leftovers::assert_nothing_is_left;
use candelabrum_testkit::ranks::mpiexec;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::{Running, assert_one_line_error, ranks_of};
use crate::program::{Case, now};

/// The deadline of a job. It is generous, because it measures nothing.
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct Job {
    running: Running,
    dir: TempDir,
    case: Case,
}

pub(crate) struct Ended {
    pub(crate) output: Output,
    pub(crate) took: Duration,
    dir: TempDir,
    case: Case,
}

/// The settings of a job to start.
pub(crate) struct Start {
    case: Case,
    dir: TempDir,
    variables: Vec<(&'static str, String)>,
    /// Shell commands before the program.
    before: Option<String>,
}

/// A job of `workers` ranks in which `rank` stays in the phase `what`, or makes the fault `what`.
pub(crate) fn start(what: &str, rank: usize, workers: usize) -> Start {
    let dir = tempfile::tempdir().expect("a directory");
    let (what, workers) = (what.to_owned(), Some(workers));
    let case = Case { what, rank, dir: dir.path().to_owned(), workers };
    Start { case, dir, variables: Vec::new(), before: None }
}

impl Start {
    pub(crate) fn variable(mut self, name: &'static str, value: &str) -> Self {
        self.variables.push((name, value.to_owned()));
        self
    }

    /// A shell runs `words` first, in the process that then becomes the program.
    pub(crate) fn after(mut self, words: &str) -> Self {
        self.before = Some(words.to_owned());
        self
    }

    /// Starts the job by our launcher.
    pub(crate) fn launch(self) -> Job {
        let program = std::env::current_exe().expect("a test knows its own program");
        let command = match &self.before {
            None => Command::new(program),
            Some(words) => {
                let mut command = Command::new("sh");
                command.args(["-c", &format!("{words} exec \"$0\" \"$@\"")]).arg(program);
                command
            }
        };
        self.run(command)
    }

    /// Starts the job by mpiexec. Prints a line and returns `None` if there is no mpiexec.
    pub(crate) fn launch_by_mpiexec(mut self) -> Option<Job> {
        let Some(mut command) = mpiexec(self.case.workers.take().unwrap_or(1)) else {
            println!("left out: there is no mpiexec here");
            return None;
        };
        command.arg(std::env::current_exe().expect("a test knows its own program"));
        // Jobs of mpiexec share a directory, and the first job that ends removes it.
        let scratch = self.dir.path().join("mpiexec");
        fs::create_dir(&scratch).expect("the test's directory");
        command.env("TMPDIR", scratch);
        Some(self.run(command))
    }

    fn run(self, mut command: Command) -> Job {
        command
            .args(["rank_main", "--exact", "--nocapture", "--test-threads=1"])
            .envs(self.case.variables())
            .envs(self.variables)
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::null());
        Job { running: Running::start(command), dir: self.dir, case: self.case }
    }
}

impl Job {
    /// Waits until a process is in its phase, and returns this process.
    pub(crate) fn wait_for_arrival(&self) -> Pid {
        let end = Instant::now() + LIMIT;
        let word = self.dir.path().join("arrived");
        loop {
            if let Ok(text) = fs::read_to_string(&word) {
                // A process announces an all-reduce a little before it calls it.
                std::thread::sleep(Duration::from_millis(200));
                return text.trim().parse().ok().and_then(Pid::from_raw).expect("a process");
            }
            assert!(Instant::now() < end, "rank {} never came to its phase", self.case.rank);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn launcher(&self) -> Pid {
        Pid::from_child(&self.running.child)
    }

    /// The processes of our launcher's ranks.
    pub(crate) fn ranks(&self) -> Vec<Pid> {
        ranks_of(&self.running).into_iter().filter_map(|(_, pid)| Pid::from_raw(pid)).collect()
    }

    pub(crate) fn finish(self) -> Ended {
        let (output, took) = self.running.finish(LIMIT);
        Ended { output, took, dir: self.dir, case: self.case }
    }
}

/// Sends a signal. Returns the time before.
pub(crate) fn send(pid: Pid, signal: Signal) -> i64 {
    let when = now();
    kill_process(pid, signal).expect("it can be signalled");
    when
}

impl Ended {
    /// Our launcher failed with one line that contains all `parts`, and nothing is left.
    #[track_caller]
    pub(crate) fn assert_failed(&self, parts: &[&str]) {
        assert_one_line_error(&self.output, parts);
        assert_eq!(self.output.status.code(), Some(1), "{:?}", self.output.status);
        self.assert_nothing_is_left();
    }

    /// mpiexec failed, its output contains all `parts`, and nothing is left.
    #[track_caller]
    pub(crate) fn assert_mpiexec_failed(&self, parts: &[&str]) {
        let stderr = String::from_utf8_lossy(&self.output.stderr);
        assert!(!self.output.status.success(), "{stderr}");
        assert!(self.output.status.signal().is_none(), "{:?}", self.output.status);
        for part in parts {
            assert!(stderr.contains(part), "`{part}` is missing: {stderr}");
        }
        assert!(!stderr.contains("panicked"), "{stderr}");
        self.assert_nothing_is_left();
    }

    #[track_caller]
    pub(crate) fn assert_finished(&self, ranks: usize) {
        let stderr = String::from_utf8_lossy(&self.output.stderr);
        assert!(self.output.status.success(), "{stderr}");
        for rank in 0..ranks {
            assert!(self.dir.path().join(format!("finished-{rank}")).exists(), "rank {rank}");
        }
        self.assert_nothing_is_left();
    }

    /// The digest of each rank's final parameters.
    pub(crate) fn digests(&self, ranks: usize) -> Vec<String> {
        let of_rank = |rank| fs::read_to_string(self.dir.path().join(format!("finished-{rank}")));
        (0..ranks).map(|rank| of_rank(rank).expect("it has finished")).collect()
    }

    /// The errors of the surviving ranks: rank, time in nanoseconds, error.
    pub(crate) fn noticed(&self) -> Vec<(usize, i64, String)> {
        let of_rank = |rank| {
            let text = fs::read_to_string(self.dir.path().join(format!("noticed-{rank}"))).ok()?;
            let (when, error) = text.split_once(' ')?;
            Some((rank, when.parse().ok()?, error.to_owned()))
        };
        (0..8).filter_map(of_rank).collect()
    }

    /// No process, no socket and no name in /dev/shm is left.
    #[track_caller]
    pub(crate) fn assert_nothing_is_left(&self) {
        assert_nothing_is_left("FAULT_DIR", &self.case.dir.display().to_string());
    }
}
