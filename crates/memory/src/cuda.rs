//! Numbers in a GPU's memory, and copies from and to candle's tensors.
//!
//! Memory belongs to the stream of candle's device, so candle's work on a tensor and the copies
//! made here run in order without synchronisation. Another stream (NCCL's) must wait for that
//! stream first.

use std::any::Any;
use std::sync::Arc;

use bytemuck::Pod;
use candle_core::cuda::{CudaStorageSlice, cudarc::driver::CudaStream};
use candle_core::{CpuStorage, CudaStorage, Device, InplaceOp1, Layout, Storage, Tensor};
use cudarc::driver::{CudaSlice, CudaView, CudaViewMut, DriverError};

use crate::{DeviceMemory, ElementType, Error, Flat, Result};

/// Bytes on a GPU.
#[derive(Debug)]
pub struct CudaMemory(pub CudaSlice<u8>);

/// Zeros on `device`, which is a GPU.
///
/// # Errors
/// Too little memory on the device.
pub fn zeros(device: &Device, element: ElementType, len: usize) -> Result<Flat> {
    let stream = device.as_cuda_device()?.cuda_stream();
    let memory = CudaMemory(allocate(&stream, len * element.size())?);
    Ok(Flat::on_device(element, len, Box::new(memory)))
}

/// Zeroed memory of at least one byte, because the driver has no empty memory.
///
/// # Errors
/// The driver's error.
pub fn allocate(stream: &Arc<CudaStream>, bytes: usize) -> Result<CudaSlice<u8>> {
    stream.alloc_zeros(bytes.max(1)).map_err(|error| cuda_error("cuMemAllocAsync", error))
}

/// Copies to the device, in the order of `stream`.
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

/// Copies from the device, and waits for the copy.
///
/// # Errors
/// The driver's error.
pub fn download(stream: &Arc<CudaStream>, from: &CudaSlice<u8>, to: &mut [u8]) -> Result<()> {
    if to.is_empty() {
        return Ok(());
    }
    let copied = stream.memcpy_dtoh(&from.slice(..to.len()), to);
    copied.map_err(|error| cuda_error("cuMemcpyDtoHAsync", error))?;
    stream.synchronize().map_err(|error| cuda_error("cuStreamSynchronize", error))
}

/// Evaluates `$work` with `$s`, the typed slice of a storage whose type is `$element`, and `$other`
/// if the storage has another type.
macro_rules! with_slice {
    ($element:expr, $slice:expr, $s:ident => $work:expr, $other:block) => {
        match ($element, $slice) {
            (ElementType::F32, CudaStorageSlice::F32($s)) => $work,
            (ElementType::F64, CudaStorageSlice::F64($s)) => $work,
            (ElementType::F16, CudaStorageSlice::F16($s)) => $work,
            (ElementType::Bf16, CudaStorageSlice::BF16($s)) => $work,
            (ElementType::I32, CudaStorageSlice::I32($s)) => $work,
            (ElementType::I64, CudaStorageSlice::I64($s)) => $work,
            (ElementType::U8, CudaStorageSlice::U8($s)) => $work,
            _ => $other,
        }
    };
}

impl DeviceMemory for CudaMemory {
    fn read(&self, to: &mut [u8]) -> Result<()> {
        download(self.0.stream(), &self.0, to)
    }

    fn write(&mut self, from: &[u8]) -> Result<()> {
        let stream = Arc::clone(self.0.stream());
        upload(&stream, from, &mut self.0)?;
        stream.synchronize().map_err(|error| cuda_error("cuStreamSynchronize", error))
    }

    fn copy_from_tensor(
        &mut self,
        element: ElementType,
        len: usize,
        tensor: &Tensor,
    ) -> Result<()> {
        let (storage, layout) = tensor.storage_and_layout();
        let Storage::Cuda(storage) = &*storage else { return Err(not_on_gpu(tensor)) };
        let (start, end) = range(layout, len)?;
        let stream = storage.device.cuda_stream();
        join(&stream, self.0.stream())?;
        let mut to = self.0.slice_mut(..len * element.size());
        let mut copy = |view| {
            let copied = stream.memcpy_dtod(&view, &mut to);
            copied.map_err(|error| cuda_error("cuMemcpyDtoDAsync", error))
        };
        if len > 0 {
            with_slice!(element, &storage.slice, s => copy(bytes_of(&s.slice(start..end))?), {
                Err(other_type(element, tensor))
            })?;
        }
        join(self.0.stream(), &stream)
    }

    fn copy_to_tensor(&self, element: ElementType, len: usize, tensor: &Tensor) -> Result<()> {
        if !tensor.device().is_cuda() {
            return Err(not_on_gpu(tensor));
        }
        let fill = Fill { memory: self, element, len };
        tensor.inplace_op1(&fill).map_err(Error::from)
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// Writes a buffer into a tensor's storage.
struct Fill<'a> {
    memory: &'a CudaMemory,
    element: ElementType,
    len: usize,
}

impl Fill<'_> {
    fn fill(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let (start, end) = range(layout, self.len)?;
        let stream = storage.device.cuda_stream();
        let memory = &self.memory.0;
        join(&stream, memory.stream())?;
        let from = memory.slice(..self.len * self.element.size());
        let copy = |mut view: CudaViewMut<'_, u8>| {
            let copied = stream.memcpy_dtod(&from, &mut view);
            copied.map_err(|error| cuda_error("cuMemcpyDtoDAsync", error))
        };
        let dtype = format!("{:?}", candle_core::backend::BackendStorage::dtype(storage));
        if self.len > 0 {
            with_slice!(
                self.element,
                &mut storage.slice,
                s => copy(bytes_of_mut(&mut s.slice_mut(start..end))?),
                {
                    let what = format!("copying {} to a tensor of {dtype}", self.element);
                    Err(Error::Unsupported { what })
                }
            )?;
        }
        join(memory.stream(), &stream)
    }
}

impl InplaceOp1 for Fill<'_> {
    fn name(&self) -> &'static str {
        "copy_to_tensor"
    }

    fn cpu_fwd(&self, _storage: &mut CpuStorage, _layout: &Layout) -> candle_core::Result<()> {
        candle_core::bail!("a buffer on a GPU is not copied to a tensor on the CPU in place")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> candle_core::Result<()> {
        self.fill(storage, layout).map_err(candle_core::Error::from)
    }
}

/// Orders the work that is started on `stream` from now on after the work on `other`.
fn join(stream: &CudaStream, other: &CudaStream) -> Result<()> {
    if stream == other {
        return Ok(());
    }
    stream.join(other).map_err(|error| cuda_error("cuStreamWaitEvent", error))
}

/// The range of a tensor's elements in its storage.
fn range(layout: &Layout, len: usize) -> Result<(usize, usize)> {
    let what = "copying a tensor that is not contiguous: call `contiguous()` first".to_owned();
    let (start, end) = layout.contiguous_offsets().ok_or(Error::Unsupported { what })?;
    if end - start != len {
        let (expected, got) = (len, end - start);
        return Err(Error::Length { op: "the copy of a tensor", expected, got });
    }
    Ok((start, end))
}

fn not_on_gpu(tensor: &Tensor) -> Error {
    let what = format!("copying between a buffer on a GPU and a tensor on {:?}", tensor.device());
    Error::Unsupported { what }
}

fn other_type(element: ElementType, tensor: &Tensor) -> Error {
    Error::Unsupported { what: format!("copying a tensor of {:?} to {element}", tensor.dtype()) }
}

/// An error of the driver.
pub fn cuda_error(call: &'static str, error: DriverError) -> Error {
    Error::Cuda { call, message: error.to_string() }
}

/// The bytes of numbers on a device.
fn bytes_of<'a, T: Pod>(view: &CudaView<'a, T>) -> Result<CudaView<'a, u8>> {
    let bytes = view.len() * size_of::<T>();
    // SAFETY: every byte of a `Pod` is initialised, and a byte has no alignment.
    let bytes = unsafe { view.transmute(bytes) };
    bytes.ok_or_else(|| Error::Unsupported { what: "a view of bytes".to_owned() })
}

/// The bytes of numbers on a device, mutable.
fn bytes_of_mut<'a, T: Pod>(view: &'a mut CudaViewMut<'_, T>) -> Result<CudaViewMut<'a, u8>> {
    let bytes = view.len() * size_of::<T>();
    // SAFETY: any bytes are a `Pod`, and a byte has no alignment.
    let bytes = unsafe { view.transmute_mut(bytes) };
    bytes.ok_or_else(|| Error::Unsupported { what: "a view of bytes".to_owned() })
}
