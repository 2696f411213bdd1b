//! Borrowed bytes on a GPU, and copies between them.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, result, sys};

use super::cuda_error;
use crate::Result;

/// A borrowed run of bytes on a GPU. Whoever has a `Region` of memory may read the memory. Only two
/// kinds of functions write to it: those that borrow the memory mutably, and those that change a tensor,
/// whose storage is shared. Other crates know it only as the content of an [`Arg`](super::Arg).
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    at: sys::CUdeviceptr,
    bytes: usize,
    stream: &'a Arc<CudaStream>,
    borrow: PhantomData<&'a [u8]>,
}

impl<'a> Region<'a> {
    /// All bytes of `memory`.
    pub(super) fn new<T>(memory: &'a CudaSlice<T>) -> Self {
        let stream = memory.stream();
        // The guard records an event for work on other streams, of which there is none here.
        let (at, _guard) = memory.device_ptr(stream);
        let bytes = memory.num_bytes();
        Self { at, bytes, stream, borrow: PhantomData }
    }

    /// Some of the bytes.
    ///
    /// # Panics
    /// If the range is not inside.
    pub(super) fn range(self, range: Range<usize>) -> Self {
        let Range { start, end } = range;
        assert!(start <= end && end <= self.bytes, "bytes {start}..{end} of {}", self.bytes);
        Self { at: self.at + start as sys::CUdeviceptr, bytes: end - start, ..self }
    }

    pub(super) fn at(self) -> sys::CUdeviceptr {
        self.at
    }

    pub(super) fn bytes(self) -> usize {
        self.bytes
    }

    pub(super) fn stream(self) -> &'a Arc<CudaStream> {
        self.stream
    }

    /// Copies `from` over these bytes. The caller has borrowed them mutably. Both runs must have
    /// the same length.
    pub(super) fn copy_from(self, from: Region<'_>) -> Result<()> {
        assert_eq!(self.bytes, from.bytes, "a copy between runs of different lengths");
        if self.bytes == 0 {
            return Ok(());
        }
        join(self.stream, from.stream)?;
        bind(self.stream)?;
        let stream = self.stream.cu_stream();
        // SAFETY: invariants (borrow) and (one stream) of `cuda`: both runs are alive, and memory
        // that is freed later is freed after this copy.
        let copied = unsafe { result::memcpy_dtod_async(self.at, from.at, self.bytes, stream) };
        copied.map_err(|error| cuda_error("cuMemcpyDtoDAsync", error))?;
        join(from.stream, self.stream)
    }

    /// Sets the bytes to 0. The caller has borrowed them mutably.
    pub(super) fn clear(self) -> Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        bind(self.stream)?;
        // SAFETY: as in `copy_from`.
        let set =
            unsafe { result::memset_d8_async(self.at, 0, self.bytes, self.stream.cu_stream()) };
        set.map_err(|error| cuda_error("cuMemsetD8Async", error))
    }

    /// Copies bytes from the host over these bytes, and waits for the copy.
    pub(super) fn upload(self, from: &[u8]) -> Result<()> {
        assert_eq!(self.bytes, from.len(), "an upload of another length");
        if self.bytes == 0 {
            return Ok(());
        }
        bind(self.stream)?;
        // SAFETY: as in `copy_from`; the wait below ends before the borrow of `from`.
        let copied = unsafe { result::memcpy_htod_async(self.at, from, self.stream.cu_stream()) };
        copied.map_err(|error| cuda_error("cuMemcpyHtoDAsync", error))?;
        wait(self.stream)
    }

    /// Copies these bytes to the host, and waits for the copy.
    pub(super) fn download(self, to: &mut [u8]) -> Result<()> {
        assert_eq!(self.bytes, to.len(), "a download of another length");
        if self.bytes == 0 {
            return Ok(());
        }
        bind(self.stream)?;
        // SAFETY: as in `upload`.
        let copied = unsafe { result::memcpy_dtoh_async(to, self.at, self.stream.cu_stream()) };
        copied.map_err(|error| cuda_error("cuMemcpyDtoHAsync", error))?;
        wait(self.stream)
    }
}

/// Makes the stream's context the current one of this thread.
pub(super) fn bind(stream: &CudaStream) -> Result<()> {
    let bound = stream.context().bind_to_thread();
    bound.map_err(|error| cuda_error("cuCtxSetCurrent", error))
}

/// Waits on the host until all work of the stream is complete.
pub(super) fn wait(stream: &CudaStream) -> Result<()> {
    stream.synchronize().map_err(|error| cuda_error("cuStreamSynchronize", error))
}

/// Orders the work that is started on `stream` from now on after the work on `other`.
fn join(stream: &CudaStream, other: &CudaStream) -> Result<()> {
    if stream == other {
        return Ok(());
    }
    stream.join(other).map_err(|error| cuda_error("cuStreamWaitEvent", error))
}
