//! Composites: the switch between kernels and composites, and the code that all composites share.
//!
//! A *composite* computes an operation by candle's own differentiable operations. It runs on every
//! device and in every floating-point type that these operations support. It needs more memory and
//! time than a kernel, and its results differ from the kernel's by rounding only. Composites
//! replace kernels on devices without kernels, and tests compare kernels with composites.

use std::cell::Cell;

use candle_core::{DType, Device, Error, Result, Shape, Tensor, bail};

use super::untyped::Operation;
use crate::autograd::hooks;
use crate::autograd::profile::{self, ProfilePhase};
use crate::f64_kernels;
use crate::kernels::thread_switch::with_switch;
use crate::params::is_half;

thread_local! {
    static COMPOSITES: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` and computes every operation of [`ops`](crate::ops) that this thread calls in `f` by
/// candle's own differentiable operations instead of a kernel. A model's forward pass must run in
/// `f`. Its backward pass may run anywhere, because it follows the graph of the forward pass.
///
/// Results and gradients equal the kernels' up to rounding. So you can check a kernel that seems to
/// be wrong, and test a model for a device without kernels on the CPU. Replicas that exchange
/// statistics ([`StatisticsExchange`](crate::StatisticsExchange)) must all use composites or all
/// use kernels, because composites and kernels exchange different sums in the backward pass.
///
/// ```
/// use candelabrum_nn::ops::{gelu, with_composites};
/// use candle_core::{Device, Tensor};
///
/// let xs = Tensor::new(&[-1f64, 0., 2.], &Device::Cpu)?;
/// let by_kernel = gelu(&xs)?.to_vec1::<f64>()?;
/// let by_candle = with_composites(|| gelu(&xs))?.to_vec1::<f64>()?;
/// for (kernel, candle) in by_kernel.iter().zip(&by_candle) {
///     assert!((kernel - candle).abs() < 1e-12);
/// }
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn with_composites<R>(f: impl FnOnce() -> R) -> R {
    with_switch(&COMPOSITES, f)
}

/// Whether an operation of this dtype on `device` uses its composite.
pub(super) fn is_wanted(dtype: DType, device: &Device) -> bool {
    let has_kernel = dtype != DType::F64 || f64_kernels::AVAILABLE;
    are_forced() || !device.is_cpu() || !has_kernel
}

/// Whether this thread is in [`with_composites`].
pub(super) fn are_forced() -> bool {
    COMPOSITES.get()
}

/// Computes `op` of contiguous inputs by its composite.
pub(super) fn run(
    op: &dyn Operation,
    shape: &Shape,
    dtype: DType,
    inputs: Vec<Option<Tensor>>,
) -> Result<Tensor> {
    if !dtype.is_float() {
        return Err(Error::UnsupportedDTypeForOp(dtype, op.name()).bt());
    }
    // Through the identity, the gradient of a watched parameter is reported in the middle of the
    // pass.
    let inputs: Vec<Option<Tensor>> = inputs
        .into_iter()
        .map(|input| input.map(hooks::identity_if_watched).transpose())
        .collect::<Result<_>>()?;
    if shape.elem_count() == 0 && !op.has_effects() {
        return empty(shape, inputs.iter().flatten());
    }
    let ys =
        profile::timed(ProfilePhase::Forward, op.name(), shape.dims(), || op.composite(&inputs))?;
    if ys.elem_count() == 0 {
        return empty(shape, inputs.iter().flatten().chain([&ys]));
    }
    if ys.dtype() != dtype {
        bail!("{}: a composite in {:?} instead of {dtype:?}, this is a bug", op.name(), ys.dtype());
    }
    if ys.shape() == shape { Ok(ys) } else { ys.reshape(shape) }
}

/// A result without elements, from which every input gets zeros as its gradient. candle's binary
/// operations return their left operand if there are no elements, so the right operand would get no
/// gradient.
fn empty<'a>(shape: &Shape, inputs: impl IntoIterator<Item = &'a Tensor>) -> Result<Tensor> {
    let sums = inputs.into_iter().map(Tensor::sum_all).collect::<Result<Vec<_>>>()?;
    Tensor::stack(&sums, 0)?.sum_all()?.broadcast_as(shape)
}

/// Converts f16 and bf16 to f32, in which PyTorch computes sums and exponentials of these types too.
/// Other types stay as they are.
pub(crate) fn widen(xs: &Tensor) -> Result<Tensor> {
    if !is_half(xs.dtype()) {
        return Ok(xs.clone());
    }
    // Through the identity, the gradient of a watched parameter is reported in the middle of the
    // pass.
    hooks::identity_if_watched(xs.clone())?.to_dtype(DType::F32)
}
