//! What every contract is asked with, and how it answers.

use std::path::PathBuf;
use std::sync::Arc;

use candelabrum_memory::ElementType;
use candelabrum_memory::cuda::Gpu;
use candle_core::Device;
use cudarc::driver::CudaStream;
use serde_json::Value;

/// What every contract is asked with.
pub(crate) struct Probe {
    pub(crate) device: Device,
    pub(crate) gpu: Gpu,
    pub(crate) stream: Arc<CudaStream>,
    /// The folder of compiled kernels.
    pub(crate) kernels: Option<PathBuf>,
}

/// The names of the types of numbers in contracts.
pub(crate) const TYPES: [(&str, ElementType); 3] =
    [("f32", ElementType::F32), ("f16", ElementType::F16), ("bf16", ElementType::Bf16)];

/// Prints a line.
pub(crate) fn say(answer: &Value) {
    println!("{answer}");
}
