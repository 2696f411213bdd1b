//! The replacement of the local backend and of TCP in builds without them. They need Linux.

use std::sync::Arc;

use super::Communicator;
use super::member::{JobMember, TcpConfig};
use crate::{Error, Result};

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
