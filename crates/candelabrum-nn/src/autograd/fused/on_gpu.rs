//! The kernels of a fused operation on a GPU.

use candelabrum_memory::FlatTensor;
use candelabrum_memory::cuda::{CudaNumbers, CudaNumbersMut, Gpu};
use candle_core::Result;

/// The kernels of an operation on a GPU.
pub(crate) trait GpuKernels {
    /// Writes every element of the result. Returns the numbers for [`GpuBackward::saved`].
    ///
    /// # Errors
    /// Those of the device.
    fn forward(&self, pass: GpuForward<'_>) -> Result<Option<FlatTensor>>;

    /// Writes every element of each wanted gradient.
    ///
    /// # Errors
    /// Those of the device.
    fn backward(&self, pass: GpuBackward<'_>) -> Result<()>;

    /// Whether the backward can write the gradient of this input in f32, whatever type the numbers
    /// have. The gradient of a parameter then goes to its place without being rounded.
    fn has_wide_gradient(&self, _input: usize) -> bool {
        false
    }
}

/// The arguments of a forward on a GPU.
pub(crate) struct GpuForward<'a> {
    pub(crate) gpu: &'a Gpu,
    /// The inputs, which are contiguous. An omitted input is `None`.
    pub(crate) inputs: &'a [Option<CudaNumbers<'a>>],
    /// The place of the result.
    pub(crate) ys: CudaNumbersMut<'a>,
}

/// The arguments of a backward on a GPU, as [`Backward`](super::operation::Backward).
pub(crate) struct GpuBackward<'a> {
    pub(crate) gpu: &'a Gpu,
    /// The inputs that the operation [reads](super::operation::FusedOp::reads). Other inputs are `None`.
    pub(crate) inputs: &'a [Option<CudaNumbers<'a>>],
    /// The result, if the operation reads it.
    pub(crate) ys: Option<CudaNumbers<'a>>,
    /// The numbers that the forward returned.
    pub(crate) saved: Option<CudaNumbers<'a>>,
    /// The gradient of the result. The operation may use it as scratch memory.
    pub(crate) dys: CudaNumbersMut<'a>,
    /// The places of the inputs' gradients, `None` if a gradient is not needed. Their contents are
    /// unspecified. Their type is that of the result, or also f32 where
    /// [`GpuKernels::has_wide_gradient`].
    pub(crate) grads: Vec<Option<CudaNumbersMut<'a>>>,
}
