//! The device on which a rank computes, in builds without CUDA: the CPU.

use candle_core::Device;

use crate::launch::DeviceChoice;
use crate::{Error, Result};

/// The CPU.
///
/// # Errors
/// [`Error::NotCompiled`] if `choice` asks for a GPU.
pub(crate) fn device(choice: DeviceChoice, _local_rank: usize) -> Result<(Device, Option<String>)> {
    match choice {
        DeviceChoice::Auto | DeviceChoice::Cpu => Ok((Device::Cpu, None)),
        DeviceChoice::Cuda(_) => {
            let what = format!("a GPU was asked for ({choice})");
            Err(Error::NotCompiled { what, feature: "cuda" })
        }
    }
}
