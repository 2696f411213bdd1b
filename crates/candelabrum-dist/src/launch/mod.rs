//! The start of this process and of further ranks. This is the only module that reads the
//! environment.
//!
//! [`Launch::detect`] recognises our own launcher, Open MPI, Hydra (MPICH, Intel MPI), Slurm,
//! MXNet's tracker and any launcher that sets `RANK` and `WORLD_SIZE` (torchrun). A program that starts
//! its ranks itself gives them their places by a [`WorldConfig`]. A [`Job`] starts processes of any
//! program on this host and watches them until they have ended (`watch.rs`). [`spawn()`] does so with
//! copies of the running program. Both need Linux (the cfg `local_ranks`); elsewhere MPI starts the ranks.

mod ancestors;
#[cfg(local_ranks)]
mod children;
mod config;
mod cores;
mod detect;
mod device;
mod dmlc;
mod ended;
mod engines;
mod environment;
mod exit;
mod interface;
mod job;
mod launchers;
mod meeting;
mod out_of_memory;
mod output;
mod report;
mod request;
#[cfg(local_ranks)]
mod run;
#[cfg(not(local_ranks))]
#[path = "no_run.rs"]
mod run;
mod scheduler;
mod secret;
mod signals;
mod spawn;
#[cfg(local_ranks)]
mod tie;
#[cfg(not(local_ranks))]
#[path = "no_tie.rs"]
mod tie;
mod variables;
#[cfg(local_ranks)]
mod watch;
mod workers_option;

pub use config::WorldConfig;
pub use detect::{Launch, timeout};
pub use ended::{JobEnd, Outcome};
pub use environment::{RankEnvironment, limit_threads, prepare};
pub use exit::exit_at_once;
pub use interface::interface_address;
pub use job::{Job, MAX_WORKERS};
pub use launchers::Launcher;
pub use output::{JobOutput, OutputCapture, Prefix, Stream};
pub use report::{RankEvent, report};
pub use request::{AGAIN, EndRequest, StopRequest};
pub use scheduler::Scheduler;
pub use secret::unique_job;
pub(crate) use signals::ignore_file_size_signal;
pub use signals::{ENDING, Signals, ending_signals, interrupted_by};
pub use spawn::spawn;
pub use variables::{restarts, threads_of_launcher};

pub use device::DeviceChoice;
pub(crate) use environment::host;
pub(crate) use meeting::{MeetingPoint, wants_tcp};
pub(crate) use scheduler::keep_scheduler;
pub(crate) use tie::follow_parent;
pub(crate) use workers_option::note_ignored;

/// Whether this build has ranks that need no MPI: they communicate by shared memory or TCP, and [`spawn()`], `--workers`
/// and `candelabrum run` start them. They need Linux.
pub const LOCAL_RANKS: bool = cfg!(local_ranks);

/// The environment variables of this project. The launcher sets some of them, users the others.
pub mod vars {
    /// The number of this process, counted from 0.
    pub const RANK: &str = "CANDELABRUM_RANK";
    /// The number of processes, servers included.
    pub const WORLD_SIZE: &str = "CANDELABRUM_WORLD_SIZE";
    /// The number of ranks that are servers of the key-value store.
    pub const SERVERS: &str = "CANDELABRUM_SERVERS";
    /// The job id, which differs between jobs. Users may set it, too.
    pub const JOB: &str = "CANDELABRUM_JOB";
    /// The secret of a job, which only its user knows.
    pub const SECRET: &str = "CANDELABRUM_SECRET";
    /// The path of the pipe through which ranks report to the launcher.
    pub const REPORTS: &str = "CANDELABRUM_REPORTS";
    /// The launcher's process. When it ends, its ranks end too.
    pub const PARENT: &str = "CANDELABRUM_PARENT";
    /// The longest time that a rank waits for another one, in seconds.
    pub const TIMEOUT: &str = "CANDELABRUM_TIMEOUT";
    /// The seconds that ranks have to save their work after a signal that asks for the end.
    pub const GRACE: &str = "CANDELABRUM_GRACE";
    /// How often the job has been started again after a failure.
    pub const RESTART: &str = "CANDELABRUM_RESTART";
    /// The compute threads of each rank, as the user gave them to `candelabrum run`.
    pub const THREADS: &str = "CANDELABRUM_THREADS";
    /// The port at which rank 0 listens for the ranks of other hosts.
    pub const PORT: &str = "CANDELABRUM_PORT";
    /// The device on which ranks compute: auto, cpu, cuda, cuda:N.
    pub const DEVICE: &str = "CANDELABRUM_DEVICE";
    /// The backend: auto, or tcp.
    pub const BACKEND: &str = "CANDELABRUM_BACKEND";
    /// The network interface for the connections between hosts.
    pub const INTERFACE: &str = "CANDELABRUM_INTERFACE";
    /// The process that has been started again in its own place, see `environment.rs`.
    pub const STARTED_AGAIN: &str = "CANDELABRUM_STARTED_AGAIN";
    /// The name of this host, where the system's names do not distinguish the hosts.
    pub const HOST: &str = "CANDELABRUM_HOST";
}
