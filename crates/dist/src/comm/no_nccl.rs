//! Stands in for the NCCL backend in builds without it: every rank is on the CPU.

use std::sync::Arc;
use std::time::Duration;

use candle_core::Device;

use super::{Communicator, Group};
use crate::launch::DeviceChoice;
use crate::{Error, Result};

/// Whether this build has the NCCL backend.
pub(crate) const COMPILED: bool = false;

/// The CPU.
///
/// # Errors
/// [`Error::NotCompiled`] where a GPU is asked for.
pub(crate) fn device(choice: DeviceChoice, _local_rank: usize) -> Result<Device> {
    match choice {
        DeviceChoice::Auto | DeviceChoice::Cpu => Ok(Device::Cpu),
        DeviceChoice::Cuda(_) => Err(left_out("CANDELABRUM_DEVICE asks for a GPU")),
    }
}

/// # Errors
/// Always [`Error::NotCompiled`].
pub(crate) fn connect(
    _control: Group,
    _device: &Device,
    _deadline: Duration,
) -> Result<Arc<dyn Communicator>> {
    Err(left_out("NCCL"))
}

fn left_out(what: &str) -> Error {
    Error::NotCompiled { what: what.to_owned(), feature: "cuda" }
}
