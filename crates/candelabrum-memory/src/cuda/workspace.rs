//! Memory in which the calls on a stream keep intermediate results: one workspace for cuBLAS, cuBLASLt and cuDNN, and
//! one for kernels of ours ([`Scratch`]).
//!
//! The calls on a stream run one after the other, so they share this memory. NVIDIA promises that products of
//! cuBLAS have the same bits in every run only where the program gives the workspace. Memory that is there before
//! a step is recorded also keeps allocations out of the recording.
//!
//! **Invariant (workspace)** Only work on the stream of a workspace uses the workspace. Its memory is not freed as
//! long as anything else has the stream, because recorded graphs contain the address.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use candle_core::CudaDevice;
use cudarc::cublas::sys;
use cudarc::driver::sys::CUstreamCaptureStatus;
use cudarc::driver::{CudaSlice, CudaStream};

use super::memory::allocate_unset;
use super::region::Region;
use super::{CudaSpan, CudaSpanMut, cuda_error, library_error};
use crate::Result;

/// The bytes for cuBLAS and cuBLASLt: what NVIDIA recommends for Hopper, the most of all GPUs.
pub(super) const PRODUCT_BYTES: usize = 32 << 20;

/// The least bytes of memory for kernels.
const SCRATCH_BYTES: usize = 1 << 20;

/// Who uses a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkspaceUser {
    Libraries,
    Kernels,
}

/// Memory of a workspace.
#[derive(Debug)]
pub(super) struct WorkspaceMemory {
    slice: CudaSlice<u8>,
    /// Whether a [`Scratch`] has it.
    is_taken: AtomicBool,
}

impl WorkspaceMemory {
    fn new(stream: &Arc<CudaStream>, bytes: usize) -> Result<Arc<Self>> {
        let slice = allocate_unset(stream, bytes)?;
        Ok(Arc::new(Self { slice, is_taken: AtomicBool::new(false) }))
    }

    pub(super) fn region(&self) -> Region<'_> {
        Region::new(&self.slice)
    }
}

/// The memory of one stream and user, the largest last. Earlier memory may be part of graphs.
struct Workspace {
    user: WorkspaceUser,
    stream: Arc<CudaStream>,
    memory: Vec<Arc<WorkspaceMemory>>,
}

/// The streams that nothing but workspaces has, so nothing will use them again.
fn is_left(workspaces: &[Workspace], stream: &Arc<CudaStream>) -> bool {
    let own = workspaces.iter().filter(|workspace| Arc::ptr_eq(&workspace.stream, stream));
    Arc::strong_count(stream) == own.map(|workspace| 1 + workspace.memory.len()).sum::<usize>()
}

static WORKSPACES: OnceLock<Mutex<Vec<Workspace>>> = OnceLock::new();

/// The workspace of the stream with at least this many bytes. Memory that a capture would have to allocate belongs to
/// its graph, and is freed there after the call.
fn memory(
    user: WorkspaceUser,
    stream: &Arc<CudaStream>,
    bytes: usize,
) -> Result<Arc<WorkspaceMemory>> {
    let workspaces = WORKSPACES.get_or_init(Mutex::default);
    let mut workspaces = workspaces.lock().unwrap_or_else(PoisonError::into_inner);
    let known = |of: &Workspace| of.user == user && Arc::ptr_eq(&of.stream, stream);
    let known = workspaces.iter().position(known);
    let largest = known.and_then(|at| workspaces[at].memory.last());
    if let Some(memory) = largest.filter(|memory| memory.slice.len() >= bytes) {
        return Ok(Arc::clone(memory));
    }
    let memory = WorkspaceMemory::new(stream, bytes)?;
    let status = stream.capture_status();
    let status = status.map_err(|error| cuda_error("cuStreamIsCapturing", error))?;
    if status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
        return Ok(memory);
    }
    if let Some(at) = known {
        workspaces[at].memory.push(Arc::clone(&memory));
        return Ok(memory);
    }
    // Memory of streams that are gone is freed in the order of those streams.
    let left: Vec<bool> = workspaces.iter().map(|of| is_left(&workspaces, &of.stream)).collect();
    let mut left = left.into_iter();
    workspaces.retain(|_| !left.next().unwrap_or(false));
    let (stream, memory_of) = (Arc::clone(stream), vec![Arc::clone(&memory)]);
    workspaces.push(Workspace { user, stream, memory: memory_of });
    Ok(memory)
}

/// The workspace of the stream for a call of a library, `None` if the call needs none.
pub(super) fn workspace(
    stream: &Arc<CudaStream>,
    bytes: usize,
) -> Result<Option<Arc<WorkspaceMemory>>> {
    if bytes == 0 { Ok(None) } else { memory(WorkspaceUser::Libraries, stream, bytes).map(Some) }
}

/// Gives the workspace of the device's stream to candle's handle of cuBLAS.
pub(super) fn give_to_cublas(device: &CudaDevice) -> Result<()> {
    let memory = memory(WorkspaceUser::Libraries, &device.cuda_stream(), PRODUCT_BYTES)?;
    let at = memory.region().at() as *mut c_void;
    let handle = device.cublas_handle();
    // SAFETY: invariant (workspace). The handle has the stream as long as it lives, and all of its work is on that
    // stream.
    let set = unsafe { sys::cublasSetWorkspace_v2(*handle.handle(), at, memory.slice.len()) };
    set.result().map_err(library_error("cublasSetWorkspace"))
}

/// Memory in which a kernel leaves numbers for the kernels that are launched after it, until it is dropped. Most often
/// it costs no allocation.
#[derive(Debug)]
pub struct Scratch {
    memory: Arc<WorkspaceMemory>,
    len: usize,
}

impl Scratch {
    /// Memory of `len` f32 numbers, or half as many f64, with unspecified contents, for kernels on this stream.
    pub(super) fn new(stream: &Arc<CudaStream>, len: usize) -> Result<Self> {
        let bytes = len * size_of::<f32>();
        let shared = memory(WorkspaceUser::Kernels, stream, bytes.max(SCRATCH_BYTES))?;
        if !shared.is_taken.swap(true, Ordering::AcqRel) {
            return Ok(Self { memory: shared, len });
        }
        // A second one at the same time has memory of its own.
        let memory = WorkspaceMemory::new(stream, bytes)?;
        Ok(Self { memory, len })
    }

    /// The numbers.
    pub fn span(&self) -> CudaSpan<'_> {
        CudaSpan::new(self.memory.region().range(0..self.len * size_of::<f32>()))
    }

    /// The numbers, mutable.
    pub fn span_mut(&mut self) -> CudaSpanMut<'_> {
        CudaSpanMut::new(self.memory.region().range(0..self.len * size_of::<f32>()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.memory.is_taken.store(false, Ordering::Release);
    }
}
