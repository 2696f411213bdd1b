//! Tests of several ranks: real processes of the test program itself, with a time limit.
//!
//! A test starts its ranks with [`RanksOf::new`]`(rank_main)`. The test `rank_main` does a rank's work if [`is_rank`]
//! is true, and returns at once otherwise. Where nothing is asked of the ranks but a success, one test is both
//! ([`RanksOf::run_in_test`]).

use std::ffi::OsString;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::LIMIT;
use crate::ended::EndedProgram;
use crate::program::{Program, mpiexec, name_of};
use crate::running::Running;

/// The variable that is set for ranks of a test.
const MARK: &str = "CANDELABRUM_TEST_RANK";

/// The variables with which NCCL runs several ranks on one GPU, correctly but slowly.
const ON_ONE_GPU: [(&str, &str); 5] = [
    ("NCCL_SOCKET_IFNAME", "lo"),
    ("NCCL_IB_DISABLE", "1"),
    ("NCCL_NVLS_ENABLE", "0"),
    ("NCCL_MNNVL_ENABLE", "0"),
    ("NCCL_MAX_CTAS", "2"),
];

/// Whether a [`RanksOf`] has started this process.
pub fn is_rank() -> bool {
    std::env::var_os(MARK).is_some()
}

/// How ranks are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
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

/// Ranks to be started.
#[derive(Clone, Debug)]
pub struct RanksOf {
    test: String,
    backend: Backend,
    /// The rank that has it, or all; name, value.
    variables: Vec<(Option<usize>, String, String)>,
    limit: Duration,
}

impl RanksOf {
    /// Ranks that run a test function of this program.
    pub fn new<F: Fn()>(test: F) -> Self {
        Self::test(name_of(&test))
    }

    /// Ranks that run the test `name` of this program.
    pub fn test(name: &str) -> Self {
        Self { test: name.to_owned(), backend: Backend::Local, variables: Vec::new(), limit: LIMIT }
    }

    /// Starts them in another way.
    #[must_use]
    pub fn over(self, backend: Backend) -> Self {
        Self { backend, ..self }
    }

    /// Sets an environment variable of every rank.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "callers write `path.display()` or a number")]
    pub fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.variables.push((None, name.to_owned(), value.to_string()));
        self
    }

    /// Sets an environment variable of one rank.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "callers write `path.display()` or a number")]
    pub fn env_of(mut self, rank: usize, name: &str, value: impl ToString) -> Self {
        self.variables.push((Some(rank), name.to_owned(), value.to_string()));
        self
    }

    /// The time after which every rank is killed and the test fails.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Starts the ranks and waits for them. Under mpiexec there is one result for all of them.
    ///
    /// # Panics
    /// If a process cannot be started or the limit passes.
    pub fn run(self, world_size: usize) -> Vec<EndedProgram> {
        let what = format!("{world_size} ranks of {} ({:?})", self.test, self.backend);
        finish_all(&what, self.start(world_size), self.limit)
    }

    /// Starts the ranks by mpiexec, over MPI if the test was built with it. Prints a line and
    /// returns `None` if there is no mpiexec.
    ///
    /// # Panics
    /// If mpiexec cannot be started or the limit passes.
    pub fn run_under_mpiexec(self, world_size: usize) -> Option<EndedProgram> {
        mpiexec()?;
        self.over(Backend::Mpi).run(world_size).pop()
    }

    /// [`Self::run`] for ranks that must all succeed.
    ///
    /// # Panics
    /// If a rank fails.
    pub fn run_all_good(self, world_size: usize) -> Vec<EndedProgram> {
        let outputs = self.run(world_size);
        for (rank, output) in outputs.iter().enumerate() {
            assert!(output.succeeded(), "rank {rank} failed: {outputs:#?}");
        }
        outputs
    }

    /// [`Self::run_all_good`] with each of these numbers of ranks, unless this process is itself a rank.
    ///
    /// # Panics
    /// If a rank fails.
    pub fn run_in_test(self, world_sizes: &[usize]) {
        let sizes = world_sizes.iter().filter(|_| !is_rank());
        sizes.for_each(|size| drop(self.clone().run_all_good(*size)));
    }

    fn start(&self, world_size: usize) -> Vec<Running> {
        let programs = match self.backend {
            Backend::Mpi => vec![self.mpi(world_size)],
            Backend::Alone => vec![self.with_variables(self.program(), 0)],
            _ => {
                let job = self.job(world_size);
                (0..world_size).map(|rank| self.placed(rank, world_size, &job)).collect()
            }
        };
        programs.into_iter().map(|program| program.limit(self.limit).start()).collect()
    }

    /// The variables by which a launcher names a job.
    fn job(&self, world_size: usize) -> Vec<(&'static str, String)> {
        let job = format!("test-{}-{:?}", std::process::id(), Instant::now());
        let mut variables = match self.backend {
            Backend::Torchrun | Backend::Hydra => return Vec::new(),
            Backend::Tcp => over_tcp().to_vec(),
            Backend::Nccl => ON_ONE_GPU.map(|(name, value)| (name, value.to_owned())).to_vec(),
            _ => Vec::new(),
        };
        variables.extend([
            ("CANDELABRUM_WORLD_SIZE", world_size.to_string()),
            ("CANDELABRUM_JOB", job),
            // The ranks end when this process ends.
            ("CANDELABRUM_PARENT", std::process::id().to_string()),
        ]);
        variables
    }

    /// A rank that knows its place in the words of its launcher.
    fn placed(&self, rank: usize, world_size: usize, job: &[(&str, String)]) -> Program {
        let (number, size) = (rank.to_string(), world_size.to_string());
        let names: &[&str] = match self.backend {
            Backend::Torchrun => &["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
            Backend::Hydra => &["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
            _ => &["CANDELABRUM_RANK"],
        };
        let program = self.program().envs(job.iter().map(|(name, value)| (name, value)));
        let program = program.envs(names.iter().zip([&number, &size].into_iter().cycle()));
        let program = match self.backend {
            // NCCL refuses two ranks of one host on one GPU.
            Backend::Nccl => program.env("NCCL_HOSTID", format!("host-{rank}")),
            _ => program,
        };
        let program = self.with_variables(program, rank);
        match self.backend {
            // A shell that stays while the program runs, as scripts do.
            Backend::Hydra => {
                program.behind(Program::new("sh").args(["-c", "\"$0\" \"$@\"; exit $?"]))
            }
            _ => program,
        }
    }

    fn program(&self) -> Program {
        Program::test(&self.test).env(MARK, "1")
    }

    /// The variables of the test, which count more than those of a launcher.
    fn with_variables(&self, program: Program, rank: usize) -> Program {
        program.envs(self.variables_of(None)).envs(self.variables_of(Some(rank)))
    }

    fn variables_of(&self, rank: Option<usize>) -> impl Iterator<Item = (&String, &String)> {
        let own = self.variables.iter().filter(move |(of, ..)| *of == rank);
        own.map(|(_, name, value)| (name, value))
    }

    /// The ranks of mpiexec. If some have variables of their own, each rank has its own part of the command line:
    /// `mpiexec -n 1 PROGRAM : -n 1 PROGRAM ...`.
    fn mpi(&self, world_size: usize) -> Program {
        let mpiexec = mpiexec().expect("the test has asked for it");
        let last = self.program().envs(self.variables_of(None));
        if self.variables.iter().all(|(of, ..)| of.is_none()) {
            return last.behind(mpiexec.args(["-n", &world_size.to_string()]));
        }
        let mut words: Vec<OsString> = Vec::new();
        for rank in 0..world_size {
            if rank > 0 {
                words.extend(self.program().words());
                words.push(":".into());
            }
            words.extend(["-n".into(), "1".into()]);
            words.extend(
                self.variables_of(Some(rank))
                    .flat_map(|(name, value)| ["-x".into(), format!("{name}={value}").into()]),
            );
        }
        last.behind(mpiexec.args(words))
    }
}

/// Settings of ranks over TCP. Rank 0 listens at a port that was free a moment ago.
fn over_tcp() -> [(&'static str, String); 3] {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let port = listener.local_addr().expect("its address").port();
    [
        ("CANDELABRUM_BACKEND", "tcp".to_owned()),
        ("MASTER_ADDR", "127.0.0.1".to_owned()),
        ("CANDELABRUM_PORT", port.to_string()),
    ]
}

/// Waits for the end of all programs, the ranks of `what`. If the limit passes, all are killed.
#[track_caller]
fn finish_all(what: &str, mut programs: Vec<Running>, limit: Duration) -> Vec<EndedProgram> {
    let end = Instant::now() + limit;
    while programs.iter_mut().any(|program| !program.has_ended()) {
        if Instant::now() > end {
            let texts: Vec<String> = programs.iter().map(Running::text).collect();
            panic!("{what}: not all ended within {limit:?}: {texts:#?}");
        }
        std::thread::sleep(crate::PAUSE);
    }
    programs.into_iter().map(Running::finish).collect()
}
