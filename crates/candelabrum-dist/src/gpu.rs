//! The choice of the device on which a rank computes.

use candelabrum_memory::cuda;
use candle_core::Device;

use crate::launch::DeviceChoice;
use crate::{Error, Result};

/// The device of the rank with the number `local_rank` on its host: a GPU if the host has one and
/// `choice` does not exclude it. The ranks of a host take its GPUs in turn. If `choice` is
/// [`DeviceChoice::Auto`] and there is no GPU, the text says why.
///
/// # Errors
/// `choice` asks for a GPU and the host has none, or does not have this one.
pub(crate) fn device(choice: DeviceChoice, local_rank: usize) -> Result<(Device, Option<String>)> {
    if choice == DeviceChoice::Cpu {
        return Ok((Device::Cpu, None));
    }
    let count = match cuda::device_count() {
        Ok(0) => Err("this host has none".to_owned()),
        Ok(count) => Ok(count),
        Err(error) => Err(format!("the driver cannot be used ({error})")),
    };
    match (choice, count) {
        (DeviceChoice::Cuda(Some(ordinal)), Ok(count)) if ordinal >= count => {
            let what = format!("{choice} was asked for, but this host has {count} GPU(s)");
            Err(Error::Launch { what })
        }
        (DeviceChoice::Cuda(Some(ordinal)), Ok(_)) => Ok((cuda::open(ordinal)?, None)),
        (_, Ok(count)) => Ok((cuda::open(local_rank % count)?, None)),
        (DeviceChoice::Cuda(_), Err(why)) => {
            Err(Error::Launch { what: format!("a GPU was asked for ({choice}), but {why}") })
        }
        (_, Err(why)) => Ok((Device::Cpu, Some(format!("no GPU: {why}")))),
    }
}
