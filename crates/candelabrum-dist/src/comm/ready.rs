//! The point at which numbers in a GPU's memory are complete. An operation that is started on the
//! numbers waits for it.

use candelabrum_memory::FlatTensor;
use candelabrum_memory::cuda::cuda_error;
use cudarc::driver::{CudaEvent, sys};

use crate::{Error, Result};

/// # Errors
/// Numbers on a device whose stream is being captured. The driver's error.
pub(super) fn check_not_recorded(flat: &FlatTensor) -> Result<()> {
    let Some(memory) = flat.cuda_memory() else { return Ok(()) };
    let status = memory.0.stream().capture_status();
    let status = status.map_err(|error| cuda_error("cuStreamIsCapturing", error))?;
    if status == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
        return Ok(());
    }
    let what = "a collective in a step that is recorded as CUDA graphs".to_owned();
    Err(Error::Unsupported { what })
}

/// A point of a GPU's stream.
pub(super) struct StreamPoint(pub(super) CudaEvent);

/// The point that the stream of this memory has reached now; `None` for memory of the host.
///
/// # Errors
/// The driver's error.
pub(super) fn ready(flat: &mut FlatTensor) -> Result<Option<StreamPoint>> {
    let Some(memory) = flat.cuda_memory_mut() else { return Ok(None) };
    let event = memory.0.stream().record_event(None);
    Ok(Some(StreamPoint(event.map_err(|error| cuda_error("cuEventRecord", error))?)))
}
