//! Memory of the GPU. Only this file of the backend knows how a payload has it.

use std::sync::Arc;

use candelabrum_memory::cuda::{CudaMemory, cuda_error};
use candelabrum_memory::{FlatTensor, Location};
use candle_core::Device;
use cudarc::driver::{CudaEvent, CudaSlice, CudaStream};

use crate::Result;
use crate::comm::{ElementType, Payload};

pub(super) use candelabrum_memory::cuda::{allocate, download, upload};

/// The memory of a payload on the device; `None` for a payload on the host.
pub(super) fn slice_of(payload: &mut Payload) -> Option<&mut CudaSlice<u8>> {
    payload.cuda_memory_mut().map(|memory| &mut memory.0)
}

/// A payload of `len` elements in this memory.
pub(super) fn payload_of(element: ElementType, len: usize, slice: CudaSlice<u8>) -> Payload {
    FlatTensor::cuda(element, len, CudaMemory(slice)).into()
}

/// A copy on the device.
pub(super) fn to_device(device: &Device, payload: &Payload) -> Result<Payload> {
    let location = Location::from_device(device);
    let mut copy = FlatTensor::zeros_on(&location, payload.element_type(), payload.len())?;
    copy.copy_from_host(payload)?;
    Ok(copy.into())
}

/// Takes reused memory out of its place, with room for this many bytes.
pub(super) fn take(
    stream: &Arc<CudaStream>,
    place: &mut Option<CudaSlice<u8>>,
    bytes: usize,
) -> Result<CudaSlice<u8>> {
    match place.take().filter(|memory| memory.len() >= bytes) {
        Some(memory) => Ok(memory),
        None => Ok(allocate(stream, bytes)?),
    }
}

/// Orders the work that the stream of the payload's memory is given from now on after `event`.
pub(super) fn wait_for(payload: &mut Payload, event: &CudaEvent) -> Result<()> {
    let Some(slice) = slice_of(payload) else { return Ok(()) };
    let waits = slice.stream().wait(event);
    Ok(waits.map_err(|error| cuda_error("cuStreamWaitEvent", error))?)
}
