//! Calls of the driver that no safe function makes, each by itself.

use anyhow::Result;
use cudarc::driver::{CudaStream, DriverError, result, sys};

/// Enqueues an allocation. A capture records it.
pub(crate) fn allocate(
    stream: &CudaStream,
    bytes: usize,
) -> std::result::Result<sys::CUdeviceptr, DriverError> {
    // SAFETY: the stream is alive. Whoever calls frees the memory, or leaves it to the process' end.
    unsafe { result::malloc_async(stream.cu_stream(), bytes) }
}

/// Enqueues a fill with zeros of memory that the stream has allocated.
pub(crate) fn fill(
    stream: &CudaStream,
    at: sys::CUdeviceptr,
    bytes: usize,
) -> std::result::Result<(), DriverError> {
    // SAFETY: the stream is alive, and a wrong address spoils memory of the GPU only, which this
    // process does not use for anything else.
    unsafe { result::memset_d8_async(at, 0, bytes, stream.cu_stream()) }
}

/// Enqueues a copy on the device.
pub(crate) fn copy(
    stream: &CudaStream,
    [to, from]: [sys::CUdeviceptr; 2],
    bytes: usize,
) -> std::result::Result<(), DriverError> {
    // SAFETY: as in `fill`.
    unsafe { result::memcpy_dtod_async(to, from, bytes, stream.cu_stream()) }
}

/// Enqueues a copy whose two addresses do not say where they are.
pub(crate) fn copy_anywhere(
    stream: &CudaStream,
    [to, from]: [sys::CUdeviceptr; 2],
    bytes: usize,
) -> std::result::Result<(), DriverError> {
    // SAFETY: as in `fill`.
    unsafe { sys::cuMemcpyAsync(to, from, bytes, stream.cu_stream()) }.result()
}

/// Enqueues that memory is freed.
pub(crate) fn free(
    stream: &CudaStream,
    at: sys::CUdeviceptr,
) -> std::result::Result<(), DriverError> {
    // SAFETY: as in `fill`. No Rust value owns the memory.
    unsafe { result::free_async(at, stream.cu_stream()) }
}

/// A module of a compiled image: machine code, or PTX, which ends with a 0.
pub(crate) fn load(image: &[u8]) -> std::result::Result<sys::CUmodule, DriverError> {
    // SAFETY: the image ends with a 0 or says its own length. Modules stay until the process ends.
    unsafe { result::module::load_data(image.as_ptr().cast()) }
}

/// A kernel of a module.
pub(crate) fn kernel(module: sys::CUmodule, name: &str) -> Result<sys::CUfunction> {
    let name = std::ffi::CString::new(name)?;
    // SAFETY: the module is loaded.
    Ok(unsafe { result::module::get_function(module, name) }?)
}

/// What the driver says of a kernel.
pub(crate) fn attribute(
    kernel: sys::CUfunction,
    what: sys::CUfunction_attribute,
) -> std::result::Result<i32, DriverError> {
    // SAFETY: the kernel's module is loaded.
    unsafe { result::function::get_function_attribute(kernel, what) }
}
