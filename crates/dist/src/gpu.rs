//! The choice of the device on which a rank computes.

use candelabrum_memory::cuda::cuda_error;
use candle_core::Device;
use cudarc::driver::{CudaContext, DriverError};

use crate::launch::DeviceChoice;
use crate::{Error, Result};

/// The device of the rank with the number `local_rank` on its host: a GPU if the host has one and
/// `choice` does not exclude it. The ranks of a host take its GPUs in turn.
///
/// # Errors
/// `choice` asks for a GPU and the host has none, or does not have this one.
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
    // A stream of the device's own, because CUDA's default stream is a different one in each
    // thread.
    Ok(Device::new_cuda_with_stream(ordinal)?)
}

fn not_counted(error: DriverError) -> Error {
    cuda_error("cuDeviceGetCount", error).into()
}
