//! The device on which a rank computes, in builds without CUDA: the CPU.

use candle_core::Device;

use crate::launch::DeviceChoice;
use crate::{Error, Result};

/// The CPU.
///
/// # Errors
/// [`Error::NotCompiled`] if `choice` asks for a GPU.
pub(crate) fn device(choice: DeviceChoice, _local_rank: usize) -> Result<Device> {
    match choice {
        DeviceChoice::Auto | DeviceChoice::Cpu => Ok(Device::Cpu),
        DeviceChoice::Cuda(_) => {
            let what = "CANDELABRUM_DEVICE asks for a GPU".to_owned();
            Err(Error::NotCompiled { what, feature: "cuda" })
        }
    }
}
