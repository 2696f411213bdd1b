//! The replacement of the MPI backend in builds without it.

use std::sync::Arc;
use std::time::Duration;

use super::Communicator;
use crate::{Error, Result};

/// Whether this build has the MPI backend.
pub(crate) const COMPILED: bool = false;

/// # Errors
/// Always [`Error::NotCompiled`].
pub(crate) fn connect(
    _world_size: usize,
    _host: String,
    _deadline: Duration,
) -> Result<Arc<dyn Communicator>> {
    Err(Error::NotCompiled { what: "the MPI backend is not in this build".into(), feature: "mpi" })
}
