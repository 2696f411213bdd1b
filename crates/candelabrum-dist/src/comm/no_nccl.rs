//! The replacement of the NCCL backend in builds without it.

use std::sync::Arc;
use std::time::Duration;

use candle_core::Device;

use super::{Communicator, Group};
use crate::{Error, Result};

/// Whether this build has the NCCL backend.
pub(crate) const COMPILED: bool = false;

/// # Errors
/// Always [`Error::NotCompiled`].
pub(crate) fn connect(
    _control: Group,
    _device: &Device,
    _deadline: Duration,
) -> Result<Arc<dyn Communicator>> {
    Err(Error::NotCompiled { what: "NCCL".to_owned(), feature: "cuda" })
}
