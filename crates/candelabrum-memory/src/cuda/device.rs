//! GPUs as devices of candle, prepared for training.

use candle_core::Device;
use cudarc::driver::{CudaContext, result, sys};

use super::cuda_error;
use super::region::wait;
use super::workspace::give_to_cublas;
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
/// - candle's products have a workspace of 32 MiB, which they share with ours.
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
    give_to_cublas(cuda)?;
    Ok(device)
}

/// Returns the memory that was freed on `device`, which is a GPU, to the driver. The memory of graphs is not in the
/// pool of other memory, so before a step is recorded the program gives up what the computed steps have used.
/// Waits for the device.
///
/// # Errors
/// The driver's error.
pub fn trim(device: &Device) -> Result<()> {
    let stream = device.as_cuda_device()?.cuda_stream();
    wait(&stream)?;
    let pool = default_pool(stream.context())?;
    // SAFETY: the pool is the device's, which the context keeps.
    let trimmed = unsafe { sys::cuMemPoolTrimTo(pool, 0) };
    trimmed.result().map_err(|error| cuda_error("cuMemPoolTrimTo", error))
}

/// The bytes that are allocated on `device`, which is a GPU, outside of recorded graphs.
///
/// # Errors
/// The driver's error.
pub fn allocated(device: &Device) -> Result<usize> {
    pool_attribute(device, sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
}

/// The most of [`allocated`] since the last [`forget_most_allocated`].
///
/// # Errors
/// The driver's error.
pub fn most_allocated(device: &Device) -> Result<usize> {
    pool_attribute(device, sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)
}

/// Lets [`most_allocated`] begin again with what is allocated now.
///
/// # Errors
/// The driver's error.
pub fn forget_most_allocated(device: &Device) -> Result<()> {
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    set_pool_attribute(device.as_cuda_device()?.cuda_stream().context(), attribute, 0)
}

fn pool_attribute(device: &Device, attribute: sys::CUmemPool_attribute) -> Result<usize> {
    let pool = default_pool(device.as_cuda_device()?.cuda_stream().context())?;
    let mut value = 0_u64;
    // SAFETY: the attributes that are asked for are a `u64`, which the call writes before it returns.
    let got = unsafe { sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()) };
    got.result().map_err(|error| cuda_error("cuMemPoolGetAttribute", error))?;
    Ok(usize::try_from(value).unwrap_or(usize::MAX))
}

fn default_pool(context: &CudaContext) -> Result<sys::CUmemoryPool> {
    // SAFETY: the context keeps its device.
    let pool = unsafe { result::device::get_default_mem_pool(context.cu_device()) };
    pool.map_err(|error| cuda_error("cuDeviceGetDefaultMemPool", error))
}

fn keep_freed_memory(context: &CudaContext) -> Result<()> {
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    set_pool_attribute(context, attribute, u64::MAX)
}

fn set_pool_attribute(
    context: &CudaContext,
    attribute: sys::CUmemPool_attribute,
    mut value: u64,
) -> Result<()> {
    let pool = default_pool(context)?;
    // SAFETY: the attributes that are set are a `u64`, which the call reads before it returns.
    let set = unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast()) };
    set.result().map_err(|error| cuda_error("cuMemPoolSetAttribute", error))
}
