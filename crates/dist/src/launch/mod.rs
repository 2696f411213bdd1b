//! The start of this process and of further ranks. This is the only module that reads the
//! environment.
//!
//! [`Launch::detect`] recognises our own launcher, Open MPI, Hydra (MPICH, Intel MPI), Slurm,
//! MXNet's tracker and any launcher that sets `RANK` and `WORLD_SIZE` (torchrun). [`spawn()`] starts
//! ranks on this host and supervises them.

mod ancestors;
mod detect;
mod device;
mod dmlc;
mod environment;
mod interface;
mod launchers;
mod meeting;
mod report;
mod scheduler;
mod signals;
mod spawn;
mod variables;

pub use detect::Launch;
pub use environment::{RankEnvironment, limit_threads, prepare};
pub use interface::interface_address;
pub use launchers::Launcher;
pub use report::report_failure;
pub use scheduler::Scheduler;
pub use spawn::{MAX_WORKERS, Outcome, spawn, spawn_with};

pub(crate) use detect::timeout;
pub use device::DeviceChoice;
pub(crate) use environment::host;
pub(crate) use meeting::{MeetingPoint, meeting_point, wants_tcp};
pub(crate) use scheduler::keep_scheduler;
pub(crate) use spawn::follow_parent;

/// The environment variables of this project. The launcher sets some of them, users the others.
mod vars {
    pub(super) const RANK: &str = "CANDELABRUM_RANK";
    pub(super) const WORLD_SIZE: &str = "CANDELABRUM_WORLD_SIZE";
    /// The number of ranks that are servers of the key-value store.
    pub(super) const SERVERS: &str = "CANDELABRUM_SERVERS";
    /// A word that differs between jobs. Users may set it, too.
    pub(super) const JOB: &str = "CANDELABRUM_JOB";
    /// A word that only this job's user knows.
    pub(super) const SECRET: &str = "CANDELABRUM_SECRET";
    /// The path of the pipe through which ranks report their failures to the launcher.
    pub(super) const REPORTS: &str = "CANDELABRUM_REPORTS";
    /// The launcher's process. When it ends, its ranks end too.
    pub(super) const PARENT: &str = "CANDELABRUM_PARENT";
    /// The longest time that a rank waits for another one, in seconds.
    pub(super) const TIMEOUT: &str = "CANDELABRUM_TIMEOUT";
    /// The port at which rank 0 listens for the ranks of other hosts.
    pub(super) const PORT: &str = "CANDELABRUM_PORT";
    /// The device on which ranks compute: auto, cpu, cuda, cuda:N.
    pub(super) const DEVICE: &str = "CANDELABRUM_DEVICE";
    /// The backend: auto, or tcp.
    pub(super) const BACKEND: &str = "CANDELABRUM_BACKEND";
    /// The network interface for the connections between hosts.
    pub(super) const INTERFACE: &str = "CANDELABRUM_INTERFACE";
    /// The process that has been started again in its own place, see `environment.rs`.
    pub(super) const STARTED_AGAIN: &str = "CANDELABRUM_STARTED_AGAIN";
    /// The name of this host, where the system's names do not distinguish the hosts.
    pub(super) const HOST: &str = "CANDELABRUM_HOST";
}
