//! CUDA graphs: work that the GPU repeats after one call of the host.
//!
//! A capture records the work that a thread enqueues on the stream of candle's device. Nothing runs
//! meanwhile. The graph repeats this work on the same addresses. Memory that the recorded work
//! allocates belongs to the graph. It keeps its address, and a launch frees what the last launch
//! has left allocated.

use std::fmt;
use std::mem::{MaybeUninit, offset_of};
use std::ptr;
use std::sync::Arc;

use candle_core::Device;
use cudarc::driver::{CudaGraph, CudaStream, DriverError, sys};

use super::cuda_error;
use crate::{Error, Result};

/// A capture under way. Dropping it discards the recorded work.
#[derive(Debug)]
pub struct Capture {
    /// `None` after the end.
    stream: Option<Arc<CudaStream>>,
}

/// Recorded work, ready to run.
pub struct Graph(CudaGraph);

impl Capture {
    /// Begins to record the work on `device`, which must be a GPU. Other threads may go on to use the
    /// device on other streams.
    ///
    /// # Errors
    /// The driver's error.
    pub fn begin(device: &Device) -> Result<Self> {
        let stream = device.as_cuda_device()?.cuda_stream();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).map_err(|error| cuda_error("cuStreamBeginCapture", error))?;
        Ok(Self { stream: Some(stream) })
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// Recorded work that cannot be repeated. The driver's error if something happened meanwhile
    /// that a capture does not permit, for instance a wait of the host.
    pub fn end(mut self) -> Result<Graph> {
        let Some(stream) = self.stream.take() else { return Err(nothing_recorded()) };
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = finish(&stream, flags);
        let graph = graph.map_err(|error| cuda_error("cuStreamEndCapture", error))?;
        let graph = graph.ok_or_else(nothing_recorded)?;
        match host_copy(&graph)? {
            Some(copy) => Err(copy.refusal()),
            None => Ok(Graph(graph)),
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            drop(finish(&stream, sys::CUgraphInstantiate_flags(0)));
        }
    }
}

fn finish(
    stream: &Arc<CudaStream>,
    flags: sys::CUgraphInstantiate_flags,
) -> std::result::Result<Option<CudaGraph>, DriverError> {
    // The error of a destructor waits in the context for the next call, which then does nothing
    // else. The capture must end all the same.
    let in_a_destructor = stream.context().check_err();
    let graph = stream.end_capture(flags);
    in_a_destructor.and(graph)
}

fn nothing_recorded() -> Error {
    Error::Cuda { call: "cuStreamEndCapture", message: "there is no graph".to_owned() }
}

impl Graph {
    /// Enqueues the recorded work.
    ///
    /// # Errors
    /// The driver's error.
    pub fn launch(&self) -> Result<()> {
        self.0.launch().map_err(|error| cuda_error("cuGraphLaunch", error))
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Graph").field(&self.0.cu_graph()).finish()
    }
}

// SAFETY: the driver permits calls on a graph from any thread, one at a time, and a `Graph` is not
// `Sync`.
unsafe impl Send for Graph {}

const ON_DEVICE: u32 = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32;

/// A recorded copy between the host and the device.
#[derive(Debug, Clone, Copy)]
enum HostCopy {
    /// It would read the host's memory again at each launch. candle's copies read vectors that live only until
    /// the call returns.
    From,
    /// Nothing has been copied yet, but the call has returned: whoever asked for a number on the host has got
    /// another one, and the recorded work may depend on it.
    To,
}

impl HostCopy {
    fn refusal(self) -> Error {
        let what = match self {
            Self::From => "repeating a copy from the host",
            Self::To => "recording a step that asks for a number on the host",
        };
        Error::Unsupported { what: what.to_owned() }
    }
}

/// Whether the graph copies between the host and the device. A copy to the host is the more telling answer: the
/// copies from there may be those of candle's shapes.
fn host_copy(graph: &CudaGraph) -> Result<Option<HostCopy>> {
    // The driver may know more kinds than this enumeration, so they are read as numbers.
    const COPY: u32 = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY as u32;
    let mut found = None;
    for node in nodes(graph)? {
        let mut kind = 0_u32;
        // SAFETY: the node is one of the graph, and an enumeration of the driver has 32 bits.
        let result = unsafe { sys::cuGraphNodeGetType(node, (&raw mut kind).cast()) };
        checked("cuGraphNodeGetType", result)?;
        if kind != COPY {
            continue;
        }
        let mut copy = MaybeUninit::<sys::CUDA_MEMCPY3D>::zeroed();
        // SAFETY: the node is a copy, and the call fills its description.
        let result = unsafe { sys::cuGraphMemcpyNodeGetParams(node, copy.as_mut_ptr()) };
        checked("cuGraphMemcpyNodeGetParams", result)?;
        let is_on_device = |kind: usize, address: usize| {
            let field = |offset: usize| copy.as_ptr().map_addr(|at| at + offset);
            // SAFETY: the field is in the zeroed memory, and any 32 bits are a `u32`.
            let kind = unsafe { field(kind).cast::<u32>().read() };
            // SAFETY: as above; an address has 64 bits.
            let address = unsafe { field(address).cast::<sys::CUdeviceptr>().read() };
            is_on_device(kind, address)
        };
        type Copy = sys::CUDA_MEMCPY3D;
        if !is_on_device(offset_of!(Copy, srcMemoryType), offset_of!(Copy, srcDevice)) {
            found = Some(HostCopy::From);
        }
        if !is_on_device(offset_of!(Copy, dstMemoryType), offset_of!(Copy, dstDevice)) {
            return Ok(Some(HostCopy::To));
        }
    }
    Ok(found)
}

fn nodes(graph: &CudaGraph) -> Result<Vec<sys::CUgraphNode>> {
    let graph = graph.cu_graph();
    let mut count = 0;
    // SAFETY: the graph exists. A null pointer asks for the number of nodes only.
    let result = unsafe { sys::cuGraphGetNodes(graph, ptr::null_mut(), &raw mut count) };
    checked("cuGraphGetNodes", result)?;
    let mut nodes = vec![ptr::null_mut(); count];
    // The driver refuses to write no nodes (580.159, H200).
    if count > 0 {
        // SAFETY: as above, and there is room for `count` nodes.
        let result = unsafe { sys::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count) };
        checked("cuGraphGetNodes", result)?;
    }
    Ok(nodes)
}

fn checked(call: &'static str, result: sys::CUresult) -> Result<()> {
    result.result().map_err(|error| cuda_error(call, error))
}

/// Whether a recorded copy uses memory of the device here. `kind` is the driver's word for the memory.
fn is_on_device(kind: u32, address: sys::CUdeviceptr) -> bool {
    // A driver may describe a copy by addresses alone (NVIDIA/cuda-python#2649, driver 560).
    const UNIFIED: u32 = sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED as u32;
    kind == ON_DEVICE || kind == UNIFIED && is_known_on_device(address)
}

/// Whether the driver knows this address as a device's. It knows nothing of pageable memory.
fn is_known_on_device(address: sys::CUdeviceptr) -> bool {
    let mut kind = 0_u32;
    let what = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    // SAFETY: this attribute is an enumeration of 32 bits, which the call writes before it returns.
    let result = unsafe { sys::cuPointerGetAttribute((&raw mut kind).cast(), what, address) };
    result.result().is_ok() && kind == ON_DEVICE
}
