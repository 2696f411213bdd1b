//! Bytes on a GPU, and copies from and to the host and candle's tensors.

use std::sync::Arc;

use bytemuck::Pod;
use candle_core::{Device, Tensor};
use cudarc::driver::{CudaSlice, CudaStream};

use super::cuda_error;
use super::launch::KernelArg;
use super::region::{Region, wait};
use super::tensor::{fill_tensor, with_tensor};
use crate::{ElementType, Result};

/// Bytes on a GPU. They belong to the stream of candle's device.
#[derive(Debug)]
pub struct CudaMemory(pub CudaSlice<u8>);

/// Zeros on `device`, which is a GPU.
///
/// # Errors
/// Too little memory on the device.
pub(crate) fn zeros(device: &Device, bytes: usize) -> Result<CudaMemory> {
    allocate(&device.as_cuda_device()?.cuda_stream(), bytes).map(CudaMemory)
}

/// Zeroed memory of at least one byte, because the driver has no empty memory.
///
/// # Errors
/// The driver's error.
pub fn allocate(stream: &Arc<CudaStream>, bytes: usize) -> Result<CudaSlice<u8>> {
    stream.alloc_zeros(bytes.max(1)).map_err(|error| cuda_error("cuMemAllocAsync", error))
}

/// Memory of at least one byte with unspecified contents.
pub(super) fn allocate_unset(stream: &Arc<CudaStream>, bytes: usize) -> Result<CudaSlice<u8>> {
    // SAFETY: every byte is a `u8`, whatever was there before.
    let memory = unsafe { stream.alloc(bytes.max(1)) };
    memory.map_err(|error| cuda_error("cuMemAllocAsync", error))
}

/// Copies to the first bytes of `to`, in the order of `stream`.
///
/// # Errors
/// The driver's error.
pub fn upload(stream: &Arc<CudaStream>, from: &[u8], to: &mut CudaSlice<u8>) -> Result<()> {
    if from.is_empty() {
        return Ok(());
    }
    let copied = stream.memcpy_htod(from, &mut to.slice_mut(..from.len()));
    copied.map_err(|error| cuda_error("cuMemcpyHtoDAsync", error))
}

/// Copies the first bytes of `from`, in the order of `stream`, and waits for the copy.
///
/// # Errors
/// The driver's error.
pub fn download(stream: &Arc<CudaStream>, from: &CudaSlice<u8>, to: &mut [u8]) -> Result<()> {
    if to.is_empty() {
        return Ok(());
    }
    let copied = stream.memcpy_dtoh(&from.slice(..to.len()), to);
    copied.map_err(|error| cuda_error("cuMemcpyDtoHAsync", error))?;
    wait(stream)
}

impl CudaMemory {
    /// The bytes.
    pub(crate) fn room(&self) -> usize {
        self.0.len()
    }

    /// The memory as `len` elements of a type of which all bits are a value.
    ///
    /// # Panics
    /// If the memory is shorter.
    pub(super) fn into_slice<T: Pod>(self, len: usize) -> CudaSlice<T> {
        assert!(len * size_of::<T>() <= self.0.len(), "{len} numbers in {} bytes", self.0.len());
        let stream = Arc::clone(self.0.stream());
        let at = self.0.leak();
        // SAFETY: the memory came from the allocator of this stream, nothing else owns it after
        // `leak`, it has this length, and any bytes are a `T`.
        unsafe { stream.upgrade_device_ptr(at, len) }
    }

    /// The first `bytes` bytes.
    pub(super) fn region(&self, bytes: usize) -> Region<'_> {
        Region::new(&self.0).range(0..bytes)
    }

    /// Copies the first bytes to the host, and waits for the copy.
    pub(crate) fn read(&self, to: &mut [u8]) -> Result<()> {
        self.region(to.len()).download(to)
    }

    /// Copies bytes from the host to the beginning of this memory, and waits for the copy.
    pub(crate) fn write(&mut self, from: &[u8]) -> Result<()> {
        self.region(from.len()).upload(from)
    }

    /// Fills this memory with the `len` elements of a contiguous tensor on a GPU.
    pub(crate) fn copy_from_tensor(
        &mut self,
        element: ElementType,
        len: usize,
        tensor: &Tensor,
    ) -> Result<()> {
        let to = self.region(len * element.size());
        with_tensor(tensor, element, len, |from| to.copy_from(from))
    }

    /// Fills a contiguous tensor on a GPU with the `len` elements of this memory.
    pub(crate) fn copy_to_tensor(
        &self,
        element: ElementType,
        len: usize,
        tensor: &Tensor,
    ) -> Result<()> {
        fill_tensor(tensor, element, len, self.region(len * element.size()))
    }
}

/// Numbers of any type.
impl<'a> From<&'a CudaMemory> for KernelArg<'a> {
    fn from(memory: &'a CudaMemory) -> Self {
        Self::Memory(Region::new(&memory.0))
    }
}

/// Numbers of any type that the kernel writes.
impl<'a> From<&'a mut CudaMemory> for KernelArg<'a> {
    fn from(memory: &'a mut CudaMemory) -> Self {
        Self::Memory(Region::new(&memory.0))
    }
}
