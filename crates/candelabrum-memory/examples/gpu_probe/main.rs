//! Asks a GPU and CUDA's libraries what their documentation leaves open and this project relies on.
//!
//! ```text
//! gpu_probe                       # prints the names of the contracts, a line each
//! gpu_probe CONTRACT [KERNELS]    # asks one; KERNELS is a folder of compiled kernels
//! ```
//!
//! Each contract is asked in a process of its own, since an error of CUDA spoils the whole process
//! (`scripts/cuda/check/run.py` does so). Each answer is a line of JSON, and the last line says
//! whether the contract holds. The exit code is 0 if so, and 1 otherwise.
#![expect(clippy::print_stdout, reason = "its result is what it prints")]

mod captures;
mod convolutions;
mod costs;
mod driver;
mod epilogues;
mod modules;
mod numbers;
mod probe;
mod products;
mod repeats;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use candelabrum_memory::ElementType;
use candelabrum_memory::cuda::{self, Gpu};
use cudarc::driver::sys;
use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context as LayerContext, SubscriberExt};

use crate::probe::{Probe, TYPES, say};

/// Asks something. Returns whether it is as this project needs it.
type Contract = Box<dyn Fn(&Probe) -> Result<bool>>;

/// All contracts, the most telling ones first.
fn contracts() -> Vec<(String, Contract)> {
    let mut all: Vec<(String, Contract)> = Vec::new();
    let mut add = |name: &str, contract: Contract| all.push((name.to_owned(), contract));
    add("device", Box::new(device));
    add("nothing allocated", Box::new(captures::nothing));
    add("nothing captured", Box::new(captures::nothing_captured));
    add("free in another graph", Box::new(captures::free_in_another_graph));
    add("relaunch", Box::new(captures::relaunch));
    add("copy nodes", Box::new(captures::copy_nodes));
    add("kernel cache", Box::new(modules::cache));
    add("own kernels", Box::new(modules::own));
    add("candle's kernels", Box::new(modules::candles));
    for (name, element) in TYPES {
        add(&format!("product {name}"), Box::new(move |probe| products::places(probe, element)));
        add(&format!("epilogue {name}"), Box::new(move |probe| epilogues::all(probe, element)));
    }
    add("product tf32", Box::new(products::tf32));
    let precisions = TYPES.map(|(name, element)| (name, element, false));
    for (name, element, tf32) in precisions.into_iter().chain([("tf32", ElementType::F32, true)]) {
        // A wrong address ends the process' use of the GPU, so each place has its own process.
        for offset in [0, 16, 8, 4] {
            let ask = move |probe: &Probe| convolutions::all(probe, element, tf32, offset);
            add(&format!("convolution {name} +{offset}"), Box::new(ask));
        }
    }
    add("same bits", Box::new(repeats::same_bits));
    add("costs", Box::new(costs::all));
    all
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let contracts = contracts();
    let Some(wanted) = words.next() else {
        contracts.iter().for_each(|(name, _)| println!("{name}"));
        return ExitCode::SUCCESS;
    };
    let answer = ask(&contracts, &wanted, words.next().map(PathBuf::from));
    let holds = matches!(answer, Ok(true));
    let error = answer.err().map(|error| format!("{error:#}"));
    say(&json!({"contract": wanted, "holds": holds, "error": error}));
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn ask(contracts: &[(String, Contract)], wanted: &str, kernels: Option<PathBuf>) -> Result<bool> {
    let (_, contract) = contracts
        .iter()
        .find(|(name, _)| name == wanted)
        .with_context(|| format!("there is no contract `{wanted}`"))?;
    let subscriber = tracing_subscriber::registry().with(Print);
    tracing::subscriber::set_global_default(subscriber)?;
    let device = cuda::open(0)?;
    let gpu = Gpu::of(&device).context("the device is no GPU")?;
    let stream = device.as_cuda_device()?.cuda_stream();
    contract(&Probe { device, gpu, stream, kernels })
}

/// Prints what the library tells its log: the algorithms of cuDNN, for instance.
struct Print;

impl<S: Subscriber> Layer<S> for Print {
    fn on_event(&self, event: &Event<'_>, _: LayerContext<'_, S>) {
        event.record(&mut Message);
    }
}

struct Message;

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            say(&json!({"log": format!("{value:?}")}));
        }
    }
}

/// What the GPU is.
fn device(probe: &Probe) -> Result<bool> {
    use sys::CUdevice_attribute as Attribute;
    let context = probe.stream.context();
    let attribute = |attribute| context.attribute(attribute);
    say(&json!({
        "name": context.name()?,
        "major": attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        "minor": attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        "multiprocessors": attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        "l2_bytes": attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        "memory_pools": attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)?,
        "compute_mode": attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)?,
    }));
    Ok(true)
}
