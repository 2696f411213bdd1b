//! Tests of several ranks: real processes of the test binary itself, with a time limit.
//!
//! A test starts its ranks with [`RanksOf::test`]`("rank_main")`. The test `rank_main` does a
//! rank's work if [`is_rank`] is true, and returns at once otherwise.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::running::{PAUSE, Running};

/// The variable that is set for ranks of a test.
const MARK: &str = "CANDELABRUM_TEST_RANK";

/// Whether a [`RanksOf`] has started this process.
pub fn is_rank() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Ranks to be started.
#[derive(Debug)]
pub struct RanksOf {
    test: String,
    variables: Vec<(String, String)>,
    /// Rank, name, value.
    own_variables: Vec<(usize, String, String)>,
    limit: Duration,
}

/// The result of a rank's process.
#[derive(Debug)]
pub struct RankOutput {
    /// Exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output and standard error.
    pub text: String,
}

impl From<Output> for RankOutput {
    fn from(output: Output) -> Self {
        let text = [output.stdout, output.stderr].concat();
        Self { code: output.status.code(), text: String::from_utf8_lossy(&text).into_owned() }
    }
}

impl RanksOf {
    /// Ranks that run the test `name` of this binary.
    pub fn test(name: &str) -> Self {
        Self {
            test: name.to_owned(),
            variables: Vec::new(),
            own_variables: Vec::new(),
            limit: Duration::from_secs(120),
        }
    }

    /// Sets an environment variable of every rank.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "callers write `path.display()` or a number")]
    pub fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.variables.push((name.to_owned(), value.to_string()));
        self
    }

    /// Sets an environment variable of one rank that [`Self::run`] starts.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "callers write `path.display()` or a number")]
    pub fn env_of(mut self, rank: usize, name: &str, value: impl ToString) -> Self {
        self.own_variables.push((rank, name.to_owned(), value.to_string()));
        self
    }

    /// The time after which every rank is killed and the test fails.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Starts `world_size` ranks of the local backend and waits for them.
    ///
    /// # Panics
    /// If a process cannot be started or the limit passes.
    pub fn run(self, world_size: usize) -> Vec<RankOutput> {
        let program = std::env::current_exe().expect("a test knows its own program");
        let job = format!("test-{}-{:?}", std::process::id(), Instant::now());
        let start = |rank: usize| {
            let mut command = Command::new(&program);
            command
                .args([self.test.as_str(), "--exact", "--nocapture"])
                .env(MARK, "1")
                .env("CANDELABRUM_RANK", rank.to_string())
                .env("CANDELABRUM_WORLD_SIZE", world_size.to_string())
                .env("CANDELABRUM_JOB", &job)
                .envs(self.variables.iter().map(|(name, value)| (name, value)));
            let own = self.own_variables.iter().filter(|(of, ..)| *of == rank);
            command.envs(own.map(|(_, name, value)| (name, value)));
            Running::start(command)
        };
        finish_all(&self.test, (0..world_size).map(start).collect(), self.limit)
            .into_iter()
            .map(RankOutput::from)
            .collect()
    }

    /// Starts the ranks by mpiexec, over MPI if the test was built with it. Prints a line and
    /// returns `None` if there is no mpiexec.
    ///
    /// # Panics
    /// If mpiexec cannot be started or the limit passes.
    #[expect(clippy::print_stdout, reason = "a test says what it leaves out")]
    pub fn run_under_mpiexec(self, world_size: usize) -> Option<RankOutput> {
        let Some(mut command) = mpiexec(world_size) else {
            println!("left out: there is no mpiexec here");
            return None;
        };
        command.arg(std::env::current_exe().expect("a test knows its own program"));
        command.args([self.test.as_str(), "--exact", "--nocapture"]).env(MARK, "1");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        Some(Running::start(command).finish(self.limit).0.into())
    }

    /// [`Self::run`] for ranks that must all succeed.
    ///
    /// # Panics
    /// If a rank fails.
    pub fn run_all_good(self, world_size: usize) -> Vec<RankOutput> {
        let outputs = self.run(world_size);
        for (rank, output) in outputs.iter().enumerate() {
            assert_eq!(output.code, Some(0), "rank {rank} failed: {outputs:#?}");
        }
        outputs
    }
}

/// Waits for the end of all programs, the ranks of `what`.
///
/// # Panics
/// If the limit passes. Then all programs are killed.
#[track_caller]
pub fn finish_all(what: &str, mut programs: Vec<Running>, limit: Duration) -> Vec<Output> {
    let end = Instant::now() + limit;
    while programs.iter_mut().any(|program| program.status().is_none()) {
        if Instant::now() > end {
            let texts: Vec<String> = programs.iter().map(Running::text).collect();
            panic!("{what}: not all ranks ended within {limit:?}: {texts:#?}");
        }
        std::thread::sleep(PAUSE);
    }
    programs.into_iter().map(|program| program.finish(limit).0).collect()
}

/// mpiexec with the options that it needs on this machine; `None` if it is not installed.
pub fn mpiexec(world_size: usize) -> Option<Command> {
    let found = Command::new("mpiexec").arg("--version").stdout(Stdio::piped()).output().ok()?;
    let mut command = Command::new("mpiexec");
    command.args(["-n", &world_size.to_string()]).stdin(Stdio::null());
    if String::from_utf8_lossy(&found.stdout).contains("Open") {
        command
            .args(["--bind-to", "none"])
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    }
    Some(command)
}
