//! What a capture takes, and what its graph does.

use anyhow::Result;
use candelabrum_memory::cuda::Capture;
use candle_core::{DType, Tensor};
use cudarc::driver::{CudaGraph, DriverError, sys};
use serde_json::json;

use crate::driver;
use crate::probe::{Probe, say};

const BYTES: usize = 1 << 20;

const AUTO_FREE: sys::CUgraphInstantiate_flags =
    sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;

/// Prints the outcome of a call, and returns whether it went well.
fn went<T>(call: &str, outcome: &std::result::Result<T, DriverError>) -> bool {
    let error = outcome.as_ref().err().map(|error| format!("{:?}", error.0));
    say(&json!({"call": call, "error": error}));
    outcome.is_ok()
}

/// Allocates, fills and frees 0 bytes.
fn use_nothing(probe: &Probe) -> bool {
    let allocated = driver::allocate(&probe.stream, 0);
    let mut good = went("cuMemAllocAsync of 0 bytes", &allocated);
    let Ok(at) = allocated else { return false };
    good &= went("cuMemsetD8Async of 0 bytes", &driver::fill(&probe.stream, at, 0));
    good &= went("cuMemFreeAsync of 0 bytes", &driver::free(&probe.stream, at));
    good
}

/// Records what `work` enqueues.
fn captured<T>(
    probe: &Probe,
    flags: sys::CUgraphInstantiate_flags,
    work: impl FnOnce() -> T,
) -> Result<(T, Option<CudaGraph>)> {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    probe.stream.begin_capture(mode)?;
    let done = work();
    let graph = probe.stream.end_capture(flags);
    went("the end of the capture", &graph);
    Ok((done, graph.ok().flatten()))
}

/// Launches the graph and waits.
fn launch(probe: &Probe, name: &str, graph: &CudaGraph) -> bool {
    let launched = graph.launch().and_then(|()| probe.stream.synchronize());
    went(&format!("launch of {name}"), &launched)
}

/// Memory of 0 bytes, at once. candle asks for it.
pub(crate) fn nothing(probe: &Probe) -> Result<bool> {
    let good = use_nothing(probe);
    Ok(went("cuStreamSynchronize", &probe.stream.synchronize()) && good)
}

/// Memory of 0 bytes in a capture.
pub(crate) fn nothing_captured(probe: &Probe) -> Result<bool> {
    let (good, graph) = captured(probe, AUTO_FREE, || use_nothing(probe))?;
    let Some(graph) = graph else { return Ok(false) };
    Ok((0..2).fold(good, |good, _| launch(probe, "the graph", &graph) && good))
}

/// One graph frees what another one has allocated, and was captured before the other one's first launch.
pub(crate) fn free_in_another_graph(probe: &Probe) -> Result<bool> {
    let allocate = || {
        let at = driver::allocate(&probe.stream, BYTES)?;
        driver::fill(&probe.stream, at, BYTES).map(|()| at)
    };
    let (at, first) = captured(probe, AUTO_FREE, allocate)?;
    let (at, Some(first)) = (at?, first) else { return Ok(false) };
    let use_and_free = || {
        driver::fill(&probe.stream, at, BYTES)?;
        driver::free(&probe.stream, at)
    };
    let (freed, second) = captured(probe, AUTO_FREE, use_and_free)?;
    let mut good = went("cuMemFreeAsync of the other graph's memory", &freed);
    let Some(second) = second else { return Ok(false) };
    for _ in 0..3 {
        good &= launch(probe, "the graph that allocates", &first);
        good &= launch(probe, "the graph that frees", &second);
    }
    Ok(good)
}

/// A graph whose memory is still allocated is launched again.
pub(crate) fn relaunch(probe: &Probe) -> Result<bool> {
    let allocate = || driver::allocate(&probe.stream, BYTES);
    let (at, graph) = captured(probe, AUTO_FREE, allocate)?;
    let (at, Some(graph)) = (at?, graph) else { return Ok(false) };
    let mut good = true;
    for _ in 0..3 {
        good &= launch(probe, "a graph that frees what its last launch left", &graph);
        // The memory keeps its address, also between the launches.
        good &= went("a fill after the launch", &driver::fill(&probe.stream, at, BYTES));
    }
    let synchronized = probe.stream.synchronize();
    Ok(went("cuStreamSynchronize", &synchronized) && good)
}

/// What the nodes of recorded copies say of their memory: 1 is the host, 2 the device, 4 unified.
pub(crate) fn copy_nodes(probe: &Probe) -> Result<bool> {
    let places = [driver::allocate(&probe.stream, BYTES)?, driver::allocate(&probe.stream, BYTES)?];
    driver::fill(&probe.stream, places[1], BYTES)?;
    probe.stream.synchronize()?;
    let flags = sys::CUgraphInstantiate_flags(0);
    let (done, graph) = captured(probe, flags, || driver::copy(&probe.stream, places, BYTES))?;
    let mut good = went("cuMemcpyDtoDAsync", &done);
    good &= graph.is_some_and(|graph| say_nodes("cuMemcpyDtoDAsync", &graph));
    let copy = || driver::copy_anywhere(&probe.stream, places, BYTES);
    let (done, graph) = captured(probe, flags, copy)?;
    good &= went("cuMemcpyAsync", &done);
    good &= graph.is_some_and(|graph| say_nodes("cuMemcpyAsync", &graph));
    // What the library itself makes of them.
    let record = |what: &str, work: &dyn Fn() -> Result<()>| -> Result<Option<String>> {
        let capture = Capture::begin(&probe.device)?;
        work()?;
        let error = capture.end().err().map(|error| error.to_string());
        say(&json!({"recorded": what, "error": error}));
        Ok(error)
    };
    good &= record("a copy on the device", &|| Ok(driver::copy(&probe.stream, places, BYTES)?))?
        .is_none();
    good &= record("nothing", &|| Ok(()))?.is_none();
    let number = Tensor::ones(4, DType::F32, &probe.device)?;
    let read = record("a copy to the host", &|| {
        say(&json!({"read_in_a_capture": number.to_vec1::<f32>()?}));
        Ok(())
    })?;
    good &= read.is_some_and(|error| error.contains("asks for a number on the host"));
    Ok(good)
}

/// Prints the nodes of a graph. Returns whether the driver describes them.
fn say_nodes(call: &str, graph: &CudaGraph) -> bool {
    let (mut nodes, mut count) = ([std::ptr::null_mut(); 8], 8_usize);
    // SAFETY: the graph is alive, and there is room for `count` nodes.
    let got = unsafe {
        sys::cuGraphGetNodes(graph.cu_graph(), nodes.as_mut_ptr(), &raw mut count).result()
    };
    if !went("cuGraphGetNodes", &got) {
        return false;
    }
    nodes[..count.min(8)].iter().fold(true, |good, &node| {
        let mut kind = 0_u32;
        // SAFETY: the node is one of the graph, and an enumeration of the driver has 32 bits.
        let got = unsafe { sys::cuGraphNodeGetType(node, (&raw mut kind).cast()) }.result();
        // A wide and zeroed place, which is read as numbers: the driver may know more kinds than the
        // enumerations here.
        let mut copy = [0_u64; size_of::<sys::CUDA_MEMCPY3D>() / 8];
        // SAFETY: the place has the size and the alignment of the description.
        let described =
            unsafe { sys::cuGraphMemcpyNodeGetParams(node, copy.as_mut_ptr().cast()) }.result();
        let at = |offset: usize| {
            let word = copy[offset / 8];
            (if offset % 8 == 4 { word >> 32 } else { word & 0xffff_ffff }) as u32
        };
        say(&json!({
            "call": call, "node_type": kind, "described": described.is_ok(),
            "source_memory": at(std::mem::offset_of!(sys::CUDA_MEMCPY3D, srcMemoryType)),
            "target_memory": at(std::mem::offset_of!(sys::CUDA_MEMCPY3D, dstMemoryType)),
        }));
        good && got.is_ok() && described.is_ok()
    })
}
