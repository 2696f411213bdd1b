//! Jobs of workers and servers, and what a process of them does.

use std::io::Write;
use std::time::{Duration, Instant};

use candelabrum_dist::World;
use candelabrum_kvstore::{Error, KvStore, Result, Server, ServerStats, StoreConfig};
use candelabrum_testkit::EndedProgram as EndedRank;
use candelabrum_testkit::leftovers::assert_no_socket_without_a_process;
use candelabrum_testkit::ranks::RanksOf;
use tempfile::TempDir;

/// The variable that names the case of a process.
const CASE: &str = "STORE_TEST_CASE";

/// Exit status of a rank that got an error.
const FAILED: i32 = 3;

/// The deadline between ranks where a test measures none. It is long, so that an error that comes
/// only with the deadline is noticed as late.
const DEADLINE: &str = "40";

/// How ranks are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Local,
    /// By mpiexec: over MPI if this build has the feature, over the local backend otherwise.
    Mpiexec,
}

/// Ranks to be started.
pub(crate) struct Job {
    case: String,
    workers: usize,
    servers: usize,
    backend: Backend,
    variables: Vec<(&'static str, String)>,
    limit: Duration,
    scratch: TempDir,
}

/// Ranks that have ended.
pub(crate) struct EndedProgram {
    /// By rank; under mpiexec one for all ranks.
    pub(crate) outputs: Vec<EndedRank>,
    pub(crate) took: Duration,
}

impl Job {
    pub(crate) fn new(case: &str, workers: usize, servers: usize) -> Self {
        let variables = vec![
            ("CANDELABRUM_SERVERS", servers.to_string()),
            ("CANDELABRUM_TIMEOUT", DEADLINE.to_owned()),
            ("CANDELABRUM_DEVICE", "cpu".to_owned()),
            (CASE, case.to_owned()),
        ];
        let (limit, backend) = (Duration::from_secs(240), Backend::Local);
        let scratch = tempfile::tempdir().expect("a directory");
        Self { case: case.to_owned(), workers, servers, backend, variables, limit, scratch }
    }

    pub(crate) fn over(self, backend: Backend) -> Self {
        Self { backend, ..self }
    }

    pub(crate) fn variable(mut self, name: &'static str, value: &str) -> Self {
        self.variables.push((name, value.to_owned()));
        self
    }

    /// Sets the deadline between ranks.
    pub(crate) fn deadline(self, seconds: u32) -> Self {
        self.variable("CANDELABRUM_TIMEOUT", &seconds.to_string())
    }

    /// Runs the ranks until all have ended. Prints a line and returns `None` if there is no mpiexec.
    pub(crate) fn run(self) -> Option<EndedProgram> {
        let mut ranks = RanksOf::test("rank_main").limit(self.limit);
        for (name, value) in &self.variables {
            ranks = ranks.env(name, value);
        }
        let start = Instant::now();
        let world_size = self.workers + self.servers;
        let outputs = match self.backend {
            Backend::Local => ranks.run(world_size),
            Backend::Mpiexec => {
                // Jobs of mpiexec share a directory, and the first job that ends removes it.
                let ranks = ranks.env("TMPDIR", self.scratch.path().display());
                vec![ranks.run_under_mpiexec(world_size)?]
            }
        };
        println!("{} of {} + {}: {:?}", self.case, self.workers, self.servers, start.elapsed());
        Some(EndedProgram { outputs, took: start.elapsed() })
    }

    /// [`Self::run`] over the local backend.
    pub(crate) fn run_here(self) -> EndedProgram {
        self.run().expect("the local backend is always there")
    }
}

impl EndedProgram {
    pub(crate) fn text(&self) -> String {
        let with_code = |output: &EndedRank| format!("--- {:?}\n{}", output.code, output.text);
        self.outputs.iter().map(with_code).collect()
    }

    /// The rests of all lines with `prefix`, of all ranks.
    pub(crate) fn words(&self, prefix: &str) -> Vec<&str> {
        let lines = self.outputs.iter().flat_map(|output| output.text.lines());
        lines.filter_map(|line| Some(&line[line.find(prefix)? + prefix.len()..])).collect()
    }

    #[track_caller]
    pub(crate) fn assert_succeeded(&self) {
        assert!(self.outputs.iter().all(|output| output.code == Some(0)), "{}", self.text());
        assert_no_socket_without_a_process();
    }

    /// Rank `rank` has printed an error with all `parts`, and has ended with a failure.
    #[track_caller]
    pub(crate) fn assert_failed(&self, rank: usize, parts: &[&str]) {
        let output = &self.outputs[rank];
        assert_eq!(output.code, Some(FAILED), "rank {rank} must fail: {}", self.text());
        for part in parts {
            assert!(output.text.contains(part), "no `{part}` from rank {rank}: {}", self.text());
        }
    }
}

/// The program of a rank: `script` gets the case. A text that it returns is printed.
pub(crate) fn run_rank(script: impl FnOnce(&str, &World) -> Result<String>) {
    let Ok(case) = std::env::var(CASE) else { return };
    let world = match World::from_env() {
        Ok(world) => world,
        Err(error) => fail(None, &error.into()),
    };
    match script(&case, &world) {
        Ok(text) => {
            let rank = world.everyone().rank();
            drop(world);
            say(&format!("rank {rank} finished: {text}"));
        }
        Err(error) => fail(Some(&world), &error),
    }
}

/// Prints a line in one write, because mpiexec mixes the pieces that several ranks write. A newline
/// before it ends a line of libtest's.
pub(crate) fn say(line: &str) {
    let line = format!("\n{line}\n");
    std::io::stdout().write_all(line.as_bytes()).expect("standard output");
}

/// Ends a rank as an error ends a program: prints it, reports it to the other ranks, and exits.
pub(crate) fn fail(world: Option<&World>, error: &Error) -> ! {
    let rank = world.map_or("?".to_owned(), |world| world.everyone().rank().to_string());
    say(&format!("error of rank {rank}: {error}"));
    if let Some(world) = world.filter(|_| !error.is_echo()) {
        world.abort(&error.to_string());
    }
    std::process::exit(FAILED);
}

/// The result of a part of a script.
pub(crate) enum StageResult<R> {
    OfWorker(R),
    OfServer(ServerStats),
}

impl<R> StageResult<R> {
    pub(crate) fn worker(self) -> Option<R> {
        match self {
            Self::OfWorker(result) => Some(result),
            Self::OfServer(_) => None,
        }
    }
}

/// A part of a script with a store: a worker does `work`, and a server serves.
pub(crate) fn stage<R>(
    world: &World,
    config: &StoreConfig,
    work: impl FnOnce(&KvStore) -> Result<R>,
) -> Result<StageResult<R>> {
    stage_with(world, config, Server::new(), work)
}

/// [`stage`] with this server.
pub(crate) fn stage_with<R>(
    world: &World,
    config: &StoreConfig,
    server: Server,
    work: impl FnOnce(&KvStore) -> Result<R>,
) -> Result<StageResult<R>> {
    if world.is_server() {
        return Ok(StageResult::OfServer(server.run(world)?));
    }
    let store = KvStore::with_config(config, world)?;
    work(&store).map(StageResult::OfWorker)
}
