//! How this process was started, and how to start more: the only module that reads the environment.
//!
//! [`Launch::detect`] recognises our own launcher, Open MPI, Hydra (MPICH, Intel MPI), Slurm and
//! anything that sets `RANK` and `WORLD_SIZE` (torchrun). [`spawn()`] starts ranks on this host and
//! looks after them.

mod ancestors;
mod detect;
mod device;
mod environment;
mod interface;
mod launchers;
mod meeting;
mod report;
mod signals;
mod spawn;

pub use detect::Launch;
pub use environment::{RankEnvironment, limit_threads, prepare};
pub use interface::interface_address;
pub use launchers::Launcher;
pub use report::report_failure;
pub use spawn::{MAX_WORKERS, Outcome, spawn, spawn_with};

pub(crate) use detect::timeout;
pub(crate) use device::{DeviceChoice, device_choice};
pub(crate) use environment::host;
pub(crate) use meeting::{MeetingPoint, meeting_point, wants_tcp};
pub(crate) use spawn::follow_parent;

/// The environment variables of this project: some are set by the launcher, the others by users.
mod vars {
    pub(super) const RANK: &str = "CANDELABRUM_RANK";
    pub(super) const WORLD_SIZE: &str = "CANDELABRUM_WORLD_SIZE";
    /// A word that is another for every job. Users may set it, too.
    pub(super) const JOB: &str = "CANDELABRUM_JOB";
    /// A word that only this job's user knows.
    pub(super) const SECRET: &str = "CANDELABRUM_SECRET";
    /// Where ranks report their failures to the launcher.
    pub(super) const REPORTS: &str = "CANDELABRUM_REPORTS";
    /// The launcher's process, without which its ranks end.
    pub(super) const PARENT: &str = "CANDELABRUM_PARENT";
    /// Seconds that anybody waits for anybody.
    pub(super) const TIMEOUT: &str = "CANDELABRUM_TIMEOUT";
    /// The port at which rank 0 listens for the ranks of other hosts.
    pub(super) const PORT: &str = "CANDELABRUM_PORT";
    /// The device that ranks compute on: auto, cpu, cuda, cuda:N.
    pub(super) const DEVICE: &str = "CANDELABRUM_DEVICE";
    /// How ranks talk: auto, or tcp.
    pub(super) const BACKEND: &str = "CANDELABRUM_BACKEND";
    /// The network interface by which hosts talk.
    pub(super) const INTERFACE: &str = "CANDELABRUM_INTERFACE";
    /// This host's name, where the system does not tell hosts apart.
    pub(super) const HOST: &str = "CANDELABRUM_HOST";
}
