//! Replaces `cuda` in builds without it. There is no memory on a GPU, so no value of these types
//! exists. The files have the names of those that they replace.

mod checks;
mod formula;
mod gpu;
mod graph;
mod launch;
mod memory;

pub use self::checks::{CudaNorm, CudaSearch};
pub use self::formula::{JointUpdate, UpdateTable};
pub use self::gpu::{Gpu, Matrix, Scratch};
pub use self::graph::{Capture, Graph};
pub use self::launch::{Arg, Grid};
pub(crate) use self::memory::zeros;
pub use self::memory::{
    CudaIndices, CudaMemory, CudaNumbers, CudaNumbersMut, CudaSpan, CudaSpanMut, indices, numbers,
    round_all, span, span_mut,
};
use candle_core::Device;

pub use crate::kernels::{BLOCK, Formula, Kernels, SCALARS};
use crate::{Error, Result};

/// Opens no device.
///
/// # Errors
/// [`Error::NotCompiled`].
pub fn open(ordinal: usize) -> Result<Device> {
    Err(Error::NotCompiled { what: format!("GPU {ordinal}"), feature: "cuda" })
}

/// Frees no memory.
///
/// # Errors
/// [`Error::NotCompiled`].
pub fn trim(_device: &Device) -> Result<()> {
    Err(not_compiled())
}

fn not_compiled() -> Error {
    Error::NotCompiled { what: "a buffer on a GPU".to_owned(), feature: "cuda" }
}
