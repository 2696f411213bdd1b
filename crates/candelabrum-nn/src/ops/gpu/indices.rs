//! Labels and indices as arguments of kernels.

use candelabrum_memory::cuda::{self, CudaIndices};
use candle_core::{Result, Storage, Tensor, bail};

/// Calls `f` with the elements of a contiguous tensor of type u8, u32 or i64 on a GPU.
pub(in crate::ops) fn with_indices<R>(
    tensor: &Tensor,
    f: impl FnOnce(CudaIndices<'_>) -> Result<R>,
) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cuda(storage) => f(cuda::indices(storage, layout)?),
        _ => bail!("indices on the host for a kernel on the GPU, this is a bug"),
    }
}
