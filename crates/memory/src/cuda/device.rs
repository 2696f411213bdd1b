//! GPUs as devices of candle, prepared for training.

use candle_core::Device;
use cudarc::driver::{CudaContext, result, sys};

use super::cuda_error;
use crate::Result;

/// The number of GPUs that this process can use.
///
/// # Errors
/// A missing driver, or a driver that cannot be used.
pub fn device_count() -> Result<usize> {
    let count = CudaContext::device_count().map_err(|error| cuda_error("cuInit", error))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// GPU number `ordinal` as a device of candle.
///
/// - The device has a stream of its own, because CUDA's default stream is a different one in each
///   thread.
/// - cudarc records no events for its slices. candle works on one stream, and code of this
///   workspace that uses another one orders the two by events of its own.
/// - Freed memory stays in the driver's pool. By default the driver returns it to the system at
///   every synchronisation, and the next step would ask for it again.
///
/// # Errors
/// The driver's error.
pub fn open(ordinal: usize) -> Result<Device> {
    let device = Device::new_cuda_with_stream(ordinal)?;
    let cuda = device.as_cuda_device()?;
    // SAFETY: invariant (one stream) of `cuda`: no memory of this device is used on two streams
    // without an event between them.
    unsafe { cuda.disable_event_tracking() };
    keep_freed_memory(cuda.cuda_stream().context())?;
    Ok(device)
}

fn keep_freed_memory(context: &CudaContext) -> Result<()> {
    // SAFETY: the context keeps its device.
    let pool = unsafe { result::device::get_default_mem_pool(context.cu_device()) };
    let pool = pool.map_err(|error| cuda_error("cuDeviceGetDefaultMemPool", error))?;
    let mut threshold = u64::MAX;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: this attribute is a `u64`, which the call reads before it returns.
    let set = unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast()) };
    set.result().map_err(|error| cuda_error("cuMemPoolSetAttribute", error))
}
