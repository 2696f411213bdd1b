//! Which device a rank computes on.

use candle_core::Device;
use cudarc::driver::{CudaContext, DriverError};

use crate::launch::DeviceChoice;
use crate::{Error, Result};

/// The device of the rank with this number on its host: a GPU where there is one, unless the choice
/// is another. Ranks take the GPUs in turn.
///
/// # Errors
/// A GPU was asked for and there is none, or not that one.
pub(crate) fn device(choice: DeviceChoice, local_rank: usize) -> Result<Device> {
    let count = CudaContext::device_count();
    let ordinal = match (choice, count) {
        (DeviceChoice::Cpu, _) => return Ok(Device::Cpu),
        (DeviceChoice::Auto, Err(error)) => {
            tracing::debug!("no GPU: {error}");
            return Ok(Device::Cpu);
        }
        (DeviceChoice::Auto, Ok(0)) => return Ok(Device::Cpu),
        (DeviceChoice::Cuda(_), Err(error)) => return Err(not_counted(error)),
        (DeviceChoice::Cuda(Some(ordinal)), Ok(_)) => ordinal,
        (DeviceChoice::Auto | DeviceChoice::Cuda(None), Ok(count)) => {
            let count = usize::try_from(count).unwrap_or(0);
            let what = "CANDELABRUM_DEVICE asks for a GPU, but this host has none".to_owned();
            local_rank.checked_rem(count).ok_or(Error::Launch { what })?
        }
    };
    // A stream of its own: the default one is another for every thread.
    Ok(Device::new_cuda_with_stream(ordinal)?)
}

fn not_counted(error: DriverError) -> Error {
    Error::Cuda { call: "cuDeviceGetCount", message: error.to_string() }
}
