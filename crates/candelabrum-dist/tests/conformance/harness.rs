//! Groups of ranks: real processes with a time limit. No process survives its test.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use candelabrum_dist::{Error, World};
use candelabrum_testkit::Running;
use candelabrum_testkit::leftovers::assert_nothing_is_left;
use candelabrum_testkit::ranks::{RankOutput, finish_all};
use tempfile::TempDir;

/// The variable that names the case of a process.
const CASE: &str = "CANDELABRUM_CONFORMANCE_CASE";

/// The variable that marks the processes of one group, so that a test finds those that are left.
const MARK: &str = "CANDELABRUM_CONFORMANCE_GROUP";

/// Exit status of a rank that got an error.
const FAILED: i32 = 3;

/// How ranks are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// As by our own launcher.
    Local,
    /// By mpiexec: over MPI if this build has the feature, over the local backend otherwise.
    Mpi,
    /// As by our own launcher, over TCP.
    Tcp,
    /// As by torchrun; the test sets the variables that identify the job.
    Torchrun,
    /// As by MPICH's mpiexec, with a shell between this process and each rank.
    Hydra,
    /// As by our own launcher, all on the first GPU, each as if it were on another host.
    Nccl,
    /// One process without a launcher.
    Alone,
}

/// The case that this process was started for, if it is a rank.
pub(crate) fn case_to_run() -> Option<String> {
    std::env::var(CASE).ok()
}

/// Ends a rank as an error ends a program: prints it, reports it to the other ranks, and exits.
pub(crate) fn fail(world: Option<World>, error: &Error) -> ! {
    let rank = world.as_ref().map_or("?".to_owned(), |world| world.rank().to_string());
    // In one write, because mpiexec mixes the pieces that several ranks write.
    let line = format!("error of rank {rank}: {error}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("standard error");
    if let Some(world) = world.filter(|_| !error.is_echo()) {
        world.abort(&error.to_string());
    }
    std::process::exit(FAILED);
}

/// Whether mpiexec is installed. Prints a line if not.
pub(crate) fn has_mpiexec() -> bool {
    let there = Command::new("mpiexec")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !there {
        println!("left out: there is no mpiexec on the PATH");
    }
    there
}

/// Whether ranks under mpiexec use MPI. Prints a line if not.
pub(crate) fn has_mpi() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    has_mpiexec()
        && *FOUND.get_or_init(|| {
            let there = Group::new(Backend::Mpi, 1, "backend").run().output().contains("over mpi");
            if !there {
                println!("left out: this is a build without the feature `mpi`");
            }
            there
        })
}

const RANK_MAIN: [&str; 4] = ["rank_main", "--exact", "--nocapture", "--test-threads=1"];

/// Ranks to be started.
pub(crate) struct Group {
    backend: Backend,
    size: usize,
    case: String,
    limit: Duration,
    variables: Vec<(String, String)>,
    /// A variable of one rank: rank, name, value.
    own: Option<(usize, String, String)>,
    /// The pretended hosts by rank; empty if none are pretended.
    hosts: Vec<String>,
    scratch: TempDir,
}

impl Group {
    pub(crate) fn new(backend: Backend, size: usize, case: &str) -> Self {
        let limit = Duration::from_secs(240);
        let variables = vec![("CANDELABRUM_TIMEOUT".to_owned(), "40".to_owned())];
        let scratch = tempfile::tempdir().expect("a directory for mpiexec");
        let (case, hosts) = (case.to_owned(), Vec::new());
        Self { backend, size, case, limit, variables, own: None, hosts, scratch }
    }

    /// Sets the time after which all ranks are killed and the test fails.
    pub(crate) fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets an environment variable of one rank that this process starts.
    pub(crate) fn variable_of(self, rank: usize, name: &str, value: &str) -> Self {
        Self { own: Some((rank, name.to_owned(), value.to_owned())), ..self }
    }

    /// Sets the pretended host of each rank: one letter for each.
    pub(crate) fn hosts(self, hosts: &str) -> Self {
        Self { hosts: hosts.chars().map(|host| host.to_string()).collect(), ..self }
    }

    /// Starts the ranks and waits for their end.
    pub(crate) fn run(self) -> Ended {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let job = format!("conformance-{}-{count}", std::process::id());
        let processes = match self.backend {
            Backend::Local | Backend::Tcp | Backend::Nccl => {
                let variables = match self.backend {
                    Backend::Tcp => over_tcp(),
                    Backend::Nccl => on_one_gpu(),
                    _ => Vec::new(),
                };
                (0..self.size).map(|rank| self.local_rank(rank, &job, &variables)).collect()
            }
            Backend::Torchrun => {
                let names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];
                let rank = |rank| self.placed(rank, this_program(), names);
                (0..self.size).map(|r| self.start(rank(r), &job)).collect()
            }
            Backend::Hydra => {
                let names = ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"];
                let rank = |rank| self.placed(rank, behind_a_shell(), names);
                (0..self.size).map(|r| self.start(rank(r), &job)).collect()
            }
            Backend::Mpi => vec![self.mpiexec(&job)],
            Backend::Alone => vec![self.start(this_program(), &job)],
        };
        let start = Instant::now();
        let what = format!("{} with {} ranks ({:?})", self.case, self.size, self.backend);
        let outputs = finish_all(&what, processes, self.limit);
        let elapsed = start.elapsed();
        let statuses = outputs.iter().map(|output| output.status).collect();
        let outputs = outputs.into_iter().map(|output| RankOutput::from(output).text).collect();
        Ended { job, statuses, outputs, elapsed }
    }

    fn local_rank(&self, rank: usize, job: &str, variables: &[(&str, String)]) -> Running {
        let mut command = this_program();
        command
            .envs(variables.iter().map(|(name, value)| (name, value)))
            // For NCCL, which refuses two ranks of one host on one GPU.
            .env("NCCL_HOSTID", format!("host-{rank}"))
            .env("CANDELABRUM_RANK", rank.to_string())
            .env("CANDELABRUM_WORLD_SIZE", self.size.to_string())
            .env("CANDELABRUM_JOB", job)
            // The rank ends when this process ends.
            .env("CANDELABRUM_PARENT", std::process::id().to_string())
            .envs(self.own.iter().filter(|(of, ..)| *of == rank).map(|(_, name, value)| (name, value)))
            .envs(self.hosts.get(rank).map(|host| ("CANDELABRUM_HOST", host)));
        self.start(command, job)
    }

    /// Sets the variables of some launcher: rank and size in the world, rank and size on the host.
    fn placed(&self, rank: usize, mut command: Command, names: [&str; 4]) -> Command {
        let (rank, size) = (rank.to_string(), self.size.to_string());
        command.envs(names.into_iter().zip([&rank, &size, &rank, &size]));
        command
    }

    fn mpiexec(&self, job: &str) -> Running {
        let mut command = Command::new("mpiexec");
        command
            .args(["--bind-to", "none", "--oversubscribe"])
            // Jobs of mpiexec share a directory, and the first job that ends removes it.
            .env("TMPDIR", self.scratch.path())
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .env("OMPI_MCA_rmaps_base_oversubscribe", "1");
        let program = std::env::current_exe().expect("this test binary");
        if self.hosts.is_empty() {
            command.args(["-n", &self.size.to_string()]).arg(&program);
        }
        // `mpiexec -n 1 PROGRAM : -n 1 PROGRAM ..`, each with an environment of its own. `start`
        // adds the arguments of the last one.
        for (rank, host) in self.hosts.iter().enumerate() {
            if rank > 0 {
                command.args(RANK_MAIN).arg(":");
            }
            let host = format!("CANDELABRUM_HOST={host}");
            command.args(["-n", "1", "-x", &host]).arg(&program);
        }
        self.start(command, job)
    }

    fn start(&self, mut command: Command, job: &str) -> Running {
        command
            .args(RANK_MAIN)
            .env(CASE, &self.case)
            .env(MARK, job)
            // A visible GPU must not change the backend that a test is about.
            .env("CANDELABRUM_DEVICE", if self.backend == Backend::Nccl { "cuda:0" } else { "cpu" })
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        Running::start(command)
    }
}

/// Settings of ranks over TCP. Rank 0 listens at a port that was free a moment ago.
fn over_tcp() -> Vec<(&'static str, String)> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let port = listener.local_addr().expect("its address").port();
    vec![
        ("CANDELABRUM_BACKEND", "tcp".to_owned()),
        ("MASTER_ADDR", "127.0.0.1".to_owned()),
        ("CANDELABRUM_PORT", port.to_string()),
    ]
}

/// Settings with which NCCL runs several ranks on one GPU, correctly but slowly.
fn on_one_gpu() -> Vec<(&'static str, String)> {
    let variables = [
        ("NCCL_SOCKET_IFNAME", "lo"),
        ("NCCL_IB_DISABLE", "1"),
        ("NCCL_NVLS_ENABLE", "0"),
        ("NCCL_MNNVL_ENABLE", "0"),
        ("NCCL_MAX_CTAS", "2"),
    ];
    variables.map(|(name, value)| (name, value.to_owned())).to_vec()
}

/// Whether there is a GPU and a backend for it. If not, prints a line, or fails with
/// `REQUIRE_GPUS=1`.
pub(crate) fn has_gpu() -> bool {
    let required = std::env::var("REQUIRE_GPUS").is_ok_and(|count| !matches!(&*count, "" | "0"));
    let ended = Group::new(Backend::Nccl, 2, "backend").run();
    let there = ended.output().contains("over nccl");
    assert!(there || !required, "REQUIRE_GPUS is set, and there is none: {}", ended.output());
    if !there {
        println!("left out: no GPU here, or a build without the feature `cuda`");
    }
    there
}

fn this_program() -> Command {
    Command::new(std::env::current_exe().expect("this test binary"))
}

/// A shell that stays while the program runs, as scripts do.
fn behind_a_shell() -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "\"$0\" \"$@\"; exit $?"]);
    command.arg(std::env::current_exe().expect("this test binary"));
    command
}

/// A group whose processes have all ended.
pub(crate) struct Ended {
    pub(crate) job: String,
    /// By rank; under mpiexec that of mpiexec alone.
    pub(crate) statuses: Vec<ExitStatus>,
    /// By rank; under mpiexec the output of all ranks together.
    pub(crate) outputs: Vec<String>,
    pub(crate) elapsed: Duration,
}

impl Ended {
    pub(crate) fn output(&self) -> String {
        let mut text = String::new();
        for (output, status) in self.outputs.iter().zip(&self.statuses) {
            text += &format!("--- {status}\n{output}");
        }
        text
    }

    pub(crate) fn all_succeeded(&self) -> bool {
        self.statuses.iter().all(ExitStatus::success)
    }

    /// The digests that the ranks printed after they had completed all cases.
    pub(crate) fn digests(&self) -> Vec<String> {
        let all = self.outputs.concat();
        let after = all.split(" finished: digest ").skip(1);
        after.map(|text| text.chars().take(16).collect()).collect()
    }

    /// Whether a rank exited with an error, not by a signal.
    pub(crate) fn failed(&self, rank: usize) -> bool {
        self.statuses[rank].code() == Some(FAILED)
    }

    pub(crate) fn signal(&self, rank: usize) -> Option<i32> {
        self.statuses[rank].signal()
    }

    /// Asserts that no process, socket or shared memory of the group is left on this machine.
    #[track_caller]
    pub(crate) fn assert_nothing_is_left(&self) {
        assert_nothing_is_left(MARK, &self.job);
    }
}
