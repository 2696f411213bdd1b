//! What the parts of a step cost: launches, allocations, copies, waits, and the nodes of graphs.

use std::time::Instant;

use anyhow::Result;
use candelabrum_memory::cuda::{Capture, Graph, Grid, Kernels};
use serde_json::json;

use crate::driver;
use crate::probe::{Probe, say};

/// A kernel that does nothing.
const NOTHING: Kernels = Kernels {
    name: "probe_costs",
    text: "extern \"C\" __global__ void probe_costs(unsigned long long n) {}\n",
};

const COUNT: usize = 1000;
/// The kernels of a graph.
const NODES: usize = 100;
/// The bytes of an ordinary result.
const MEDIUM: usize = 64 << 10;
/// More than the cache of the largest GPUs.
const LARGE: usize = 256 << 20;

fn launch(probe: &Probe) -> Result<()> {
    Ok(probe.gpu.launch(NOTHING, "probe_costs", Grid::one_block(1), &[])?)
}

/// The microseconds of one of `count` calls, up to the end of what they enqueue: the median of five
/// measurements.
fn microseconds(probe: &Probe, count: usize, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..6 {
        probe.stream.synchronize()?;
        let start = Instant::now();
        for _ in 0..count {
            call()?;
        }
        probe.stream.synchronize()?;
        times.push(start.elapsed().as_secs_f64() * 1e6 / count as f64);
    }
    // The first one warms up.
    times.remove(0);
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// The graph of some work.
fn recorded(probe: &Probe, work: impl Fn() -> Result<()>) -> Result<Graph> {
    let capture = Capture::begin(&probe.device)?;
    for _ in 0..NODES {
        work()?;
    }
    Ok(capture.end()?)
}

/// Prints all costs in microseconds. Each line has one, so those before an error are kept.
pub(crate) fn all(probe: &Probe) -> Result<bool> {
    let stream = &probe.stream;
    let tell = |what: &str, cost: f64| say(&json!({"cost": what, "us": cost}));
    launch(probe)?;
    tell("launch of an empty kernel", microseconds(probe, COUNT, || launch(probe))?);
    let waited = microseconds(probe, COUNT, || {
        launch(probe)?;
        Ok(stream.synchronize()?)
    })?;
    tell("launch and wait", waited);
    for bytes in [512, MEDIUM] {
        let cost = microseconds(probe, COUNT, || {
            let at = driver::allocate(stream, bytes)?;
            Ok(driver::free(stream, at)?)
        })?;
        tell(&format!("cuMemAllocAsync and cuMemFreeAsync of {bytes} bytes"), cost);
    }
    let places = [driver::allocate(stream, LARGE)?, driver::allocate(stream, LARGE)?];
    for bytes in [4, 4096] {
        let cost = microseconds(probe, COUNT, || Ok(driver::fill(stream, places[0], bytes)?))?;
        tell(&format!("cuMemsetD8Async of {bytes} bytes"), cost);
    }
    let cost = microseconds(probe, COUNT, || Ok(driver::copy(stream, places, 4096)?))?;
    tell("cuMemcpyDtoDAsync of 4096 bytes", cost);
    let mut small = stream.alloc_zeros::<u8>(64)?;
    let cost = microseconds(probe, COUNT, || Ok(stream.memcpy_htod(&[1_u8; 64], &mut small)?))?;
    tell("cuMemcpyHtoDAsync of 64 bytes", cost);
    let mut host = [0_u8; 64];
    let cost = microseconds(probe, COUNT, || Ok(stream.memcpy_dtoh(&small, &mut host)?))?;
    tell("cuMemcpyDtoHAsync of 64 bytes", cost);

    driver::fill(stream, places[1], LARGE)?;
    let cost = microseconds(probe, 4, || Ok(driver::copy(stream, places, LARGE)?))?;
    tell("cuMemcpyDtoDAsync of 256 MiB", cost);
    let gigabytes = 2.0 * LARGE as f64 / 1e9 / (cost / 1e6);
    say(
        &json!({"rate": "copy on the device, read and written", "gigabytes_per_second": gigabytes}),
    );

    let graph = recorded(probe, || launch(probe))?;
    let cost = microseconds(probe, 20, || Ok(graph.launch()?))?;
    tell("node of a graph: a kernel", cost / NODES as f64);
    let graph = recorded(probe, || {
        let at = driver::allocate(stream, MEDIUM)?;
        launch(probe)?;
        Ok(driver::free(stream, at)?)
    })?;
    let cost = microseconds(probe, 20, || Ok(graph.launch()?))?;
    tell("nodes of a graph: an allocation, a kernel, a free", cost / NODES as f64);
    let graph = recorded(probe, || Ok(driver::fill(stream, places[0], 4096)?))?;
    let cost = microseconds(probe, 20, || Ok(graph.launch()?))?;
    tell("node of a graph: a fill of 4096 bytes", cost / NODES as f64);
    Ok(true)
}
