//! A job of the test's own program: its start, its phases, and assertions about its end.

use std::fs;
use std::time::Duration;

use candelabrum_testkit::leftovers::assert_nothing_is_left;
use candelabrum_testkit::{EndedProgram, Program, Running, kill, until, until_asleep};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use super::program::{Case, now};

/// The deadline of a job. It is generous, because it measures nothing.
const LIMIT: Duration = Duration::from_secs(30);

/// A job that runs.
pub(crate) struct Job {
    pub(crate) running: Running,
    dir: TempDir,
}

/// A job that has ended.
pub(crate) struct EndedJob {
    pub(crate) program: EndedProgram,
    dir: TempDir,
}

/// The settings of a job to start.
pub(crate) struct Start {
    program: Program,
    case: Case,
    dir: TempDir,
}

/// A job of `workers` ranks in which `rank` stays in the phase `what`, or makes the fault `what`.
pub(crate) fn start(what: &str, rank: usize, workers: usize) -> Start {
    let dir = tempfile::tempdir().expect("a directory");
    let (what, workers) = (what.to_owned(), Some(workers));
    let case = Case { what, rank, dir: dir.path().to_owned(), workers };
    let program = Program::test("faults::rank_main").env_remove("RUST_BACKTRACE").limit(LIMIT);
    Start { program, case, dir }
}

impl Start {
    pub(crate) fn variable(self, name: &str, value: &str) -> Self {
        Self { program: self.program.env(name, value), ..self }
    }

    /// A shell runs `words` first, in the process that then becomes the program.
    pub(crate) fn after(self, words: &str) -> Self {
        Self { program: self.program.after(words), ..self }
    }

    /// Starts the job by our launcher.
    pub(crate) fn launch(self) -> Job {
        Job { running: self.program.envs(self.case.variables()).start(), dir: self.dir }
    }

    /// Starts the job by mpiexec. Prints a line and returns `None` if there is no mpiexec.
    pub(crate) fn launch_by_mpiexec(mut self) -> Option<Job> {
        let program = self.program.under_mpiexec(self.case.workers.take().unwrap_or(1))?;
        Some(Self { program, ..self }.launch())
    }
}

impl Job {
    /// Waits until a process is in its phase, and returns this process.
    pub(crate) fn wait_for_arrival(&self) -> Pid {
        let word = self.dir.path().join("arrived");
        let [process, thread] = until("a rank to come to its phase", || {
            let text = fs::read_to_string(&word).ok()?;
            let (process, thread) = text.split_once(' ')?;
            Some([process, thread].map(|id| id.parse().ok().and_then(Pid::from_raw)))
        })
        .map(|id| id.expect("a number"));
        // A rank announces an all-reduce a little before it waits in it.
        until_asleep(process, thread);
        process
    }

    pub(crate) fn finish(self) -> EndedJob {
        EndedJob { program: self.running.finish(), dir: self.dir }
    }
}

/// Sends a signal. Returns the time before.
pub(crate) fn send(pid: Pid, signal: Signal) -> i64 {
    let when = now();
    kill(pid, signal);
    when
}

impl EndedJob {
    /// Our launcher failed with one line that contains all `parts`, and nothing is left.
    #[track_caller]
    pub(crate) fn assert_failed(&self, parts: &[&str]) {
        self.program.clone().fails(parts).expect(1);
        self.assert_nothing_is_left();
    }

    /// mpiexec failed, its output contains all `parts`, and nothing is left.
    #[track_caller]
    pub(crate) fn assert_mpiexec_failed(&self, parts: &[&str]) {
        let EndedProgram { code, err, .. } = self.program.clone().says(parts);
        assert!(code.is_some_and(|code| code != 0) && !err.contains("panicked"), "{code:?}: {err}");
        self.assert_nothing_is_left();
    }

    #[track_caller]
    pub(crate) fn assert_finished(&self, ranks: usize) {
        self.program.clone().success();
        self.digests(ranks);
        self.assert_nothing_is_left();
    }

    /// The digest of each rank's final parameters.
    #[track_caller]
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
        assert_nothing_is_left("FAULT_DIR", &self.dir.path().display().to_string());
    }
}
