//! The memory of a GPU, and the arithmetic of a training step on it.
//!
//! | idea | where |
//! |---|---|
//! | GPUs as devices of candle | [`open`] |
//! | bytes on a GPU, and copies to and from the host | [`CudaMemory`] |
//! | a borrowed run of f32 numbers on a GPU | [`CudaSpan`], [`CudaSpanMut`] |
//! | a borrowed run of f32, f16 or bf16 numbers on a GPU | [`CudaNumbers`], [`CudaNumbersMut`] |
//! | candle's tensors as spans | [`span`], [`span_mut`], [`numbers`] |
//! | values rounded to tensors of 16 bits | [`round_all`] |
//! | labels and indices that stay on the GPU | [`indices`], [`CudaIndices`] |
//! | a norm and a search for bad numbers whose results stay on the GPU | [`CudaNorm`], [`CudaSearch`] |
//! | the optimizer's formula as a kernel, many parameters in one launch | [`Formula`], [`JointUpdate`] |
//! | work that the GPU repeats | [`Capture`], [`Graph`] |
//! | kernels, matrix products and convolutions of operations | [`Gpu`] |
//! | memory for intermediate results | [`Scratch`], `workspace.rs` |
//! | the compilation of kernels, and the compiled kernels on disk | `compiler.rs`, `nvrtc.rs`, `kernel_cache.rs` |
//!
//! **Invariant (one stream)** All work of this module on some memory is enqueued on the stream of that
//! memory, which is the stream of candle's device. So it runs after candle's earlier work on the
//! memory and before candle's later work, without a wait on the host. Code that uses another
//! stream (NCCL's) must order the two streams by events.
//!
//! **Invariant (borrow)** The memory of a span is alive and on the stream's device as long as the span
//! lives. A span is only made by borrowing its owner. Memory that is freed afterwards is freed in
//! the order of its stream, so work that is still enqueued is safe.

mod affine;
mod blas_lt;
mod checks;
mod compiler;
mod convolution;
mod cudnn;
mod descriptor;
mod device;
mod formula;
mod gpu;
mod graph;
mod indices;
mod kernel_cache;
mod launch;
mod memory;
mod numbers;
mod nvrtc;
mod recent;
mod region;
mod rounding;
mod span;
mod tensor;
mod workspace;

use std::fmt::Display;

use cudarc::driver::DriverError;

pub use self::checks::{CudaNorm, CudaSearch};
pub use self::device::{
    allocated, device_count, forget_most_allocated, most_allocated, open, trim,
};
pub use self::formula::{JointUpdate, UpdateTable};
pub use self::gpu::{CudaMatrix, Gpu};
pub use self::graph::{Capture, Graph};
pub use self::indices::{CudaIndices, indices};
pub use self::launch::{KernelArg, LaunchGrid};
pub(crate) use self::memory::zeros;
pub use self::memory::{CudaMemory, allocate, download, upload};
pub use self::numbers::{CudaNumbers, CudaNumbersMut, numbers};
pub use self::rounding::round_all;
pub use self::span::{CudaSpan, CudaSpanMut, span, span_mut};
pub use self::workspace::Scratch;
use crate::Error;
pub use crate::kernels::{BLOCK, Formula, Kernels, SCALARS};

/// An error of the driver. An error that a kernel has caused names the last launches of the process.
pub fn cuda_error(call: &'static str, error: DriverError) -> Error {
    // A driver that is missing cannot explain its errors either.
    let text = error.error_string().ok().and_then(|text| text.to_str().ok());
    let name = format!("{:?}", error.0);
    let mut message = text.map_or(name.clone(), |text| format!("{name}: {text}"));
    message.push_str(&recent::suspects(error));
    Error::Cuda { call, message }
}

/// An error of another library of NVIDIA's in this call.
fn library_error<E: Display>(call: &'static str) -> impl Fn(E) -> Error {
    move |error| Error::Cuda { call, message: error.to_string() }
}
