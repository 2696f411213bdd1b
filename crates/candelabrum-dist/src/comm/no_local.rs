//! The replacement of the local backend and of TCP in builds without them. They need Linux.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Communicator;
use crate::{Error, Result};

/// A rank's place in a job, and the deadline of every wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobMember {
    pub(crate) job: [u8; 32],
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) deadline: Duration,
}

/// A rank's place in its job, and the meeting point.
#[derive(Clone, Debug)]
pub(crate) struct TcpConfig {
    pub(crate) member: JobMember,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) interface: Option<IpAddr>,
}

/// # Errors
/// Always [`no_ranks_here`].
pub(crate) fn connect_local(_member: JobMember) -> Result<Arc<dyn Communicator>> {
    Err(no_ranks_here())
}

/// # Errors
/// Always [`no_ranks_here`].
pub(crate) fn connect_tcp(_config: TcpConfig) -> Result<Arc<dyn Communicator>> {
    Err(no_ranks_here())
}

/// What a program says that wants several ranks.
pub(crate) fn no_ranks_here() -> Error {
    let what = "several ranks without MPI need Linux, and this build is for another system";
    Error::NotCompiled { what: what.to_owned(), feature: "mpi" }
}
