//! The basis of every operation of this module: [`Fused`], an operation with its own backward, and
//! [`run`], which computes it and adds its result to candle's graph.
//!
//! For every gradient that an operation returns, candle's backward pass allocates a tensor of zeros
//! and adds the gradient to it. These three passes over memory are not necessary, so the gradients
//! of fused operations do not travel through candle:
//!
//! ```text
//! ys ── emit ──> token ── join ──> xs, weight, ..    what candle's graph sees; tokens are scalars
//! inbox of ys <── backward ──> inbox of xs, flat gradients of weight, ..     where numbers go
//! ```
//!
//! In candle's graph each result `ys` is represented by a scalar, its *token*. If the input of an
//! operation is the result of another one ([`link`]), the operation joins the token instead of the
//! tensor. So candle orders the backward pass and adds up scalars, while the gradients are written
//! from inbox to inbox in recycled memory ([`super::pool`]). The gradients of variables with a
//! place in the [`FlatGradients`](crate::FlatGradients) of this backward pass are written there.
//! Any other tensor gets its gradient from candle, as from every custom operation. So a network may
//! mix these operations with candle's in any way.

mod composite;
mod gpu;
mod link;
mod node;

use candle_core::{DType, Result, Shape, Storage, Tensor, WithDType, bail};

pub(crate) use self::composite::widen;
pub use self::composite::with_composites;
pub(super) use self::gpu::{GpuBackward, OnGpu};
pub(super) use self::link::Inbox;
use super::float::{Float, cpu_slice, for_float};
use super::pool::{Poolable, Pooled, Values};
use super::profile::{self, Phase};
use crate::hooks;
use crate::master::is_half;

/// An operation with its own backward: a kernel in f32 and f64, and a composite.
pub(super) trait Fused: Send + Sync + 'static {
    /// The operation's name in errors and profiles.
    const NAME: &'static str;

    /// The tensors that the backward reads. Other tensors are not kept alive for it.
    fn reads(&self) -> Reads;

    /// Writes every element of `ys` from the inputs. The inputs are contiguous, and an omitted
    /// input is an empty slice. Returns the values for [`Backward::saved`], or [`Pooled::none`].
    ///
    /// # Errors
    /// Inputs that the caller could not check.
    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>>;

    /// Writes every element of each wanted gradient.
    ///
    /// # Errors
    /// Only errors that the forward would have found.
    fn backward<T: Float>(&self, pass: Backward<'_, T>) -> Result<()>;

    /// The kernels of the operation on a GPU, in f32, f16 and bf16. `None` if it has none: then a GPU
    /// computes the composite.
    fn on_gpu(&self) -> Option<&dyn OnGpu> {
        None
    }

    /// The operation in candle's own differentiable operations, for devices without a kernel and to
    /// check the kernel. Result and gradients differ from the kernel's by rounding only. Ties, NaN
    /// and infinities give PyTorch's results.
    ///
    /// The inputs are contiguous, and an omitted input is `None`. [`run`] gives the result its
    /// shape, so only the order of the elements matters here. Parameters should be right operands:
    /// candle differentiates by the right operand first, so the gradients of parameters are
    /// complete before those of the input are computed. If candle's own backward of an operation is
    /// wrong or missing, a composite avoids the operation and states the reason.
    ///
    /// # Errors
    /// Those of the forward.
    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor>;
}

/// The tensors that a backward reads beside the gradient of the result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reads {
    /// Bit `i`: input number `i`.
    pub(super) inputs: u32,
    pub(super) output: bool,
}

impl Reads {
    pub(super) const NOTHING: Self = Self { inputs: 0, output: false };

    /// The inputs with these numbers.
    pub(super) const fn inputs(numbers: &[u32]) -> Self {
        let mut inputs = 0;
        let mut i = 0;
        while i < numbers.len() {
            inputs |= 1 << numbers[i];
            i += 1;
        }
        Self { inputs, output: false }
    }

    /// And the result, if `reads`.
    pub(super) const fn and_output(self, reads: bool) -> Self {
        Self { output: reads, ..self }
    }

    fn input(self, number: usize) -> bool {
        self.inputs >> number & 1 == 1
    }
}

/// The arguments of a backward.
pub(super) struct Backward<'a, T> {
    /// The inputs that the operation [reads](Fused::reads). Other inputs are empty.
    pub(super) inputs: &'a [&'a [T]],
    /// The result, if the operation reads it.
    pub(super) ys: &'a [T],
    /// The values that the forward saved.
    pub(super) saved: &'a [T],
    /// The gradient of the result. The operation may use it as scratch memory.
    pub(super) dys: &'a mut [T],
    pub(super) grads: Grads<'a, T>,
}

/// The places of the inputs' gradients. Their contents are unspecified.
pub(super) struct Grads<'a, T>(Vec<Option<&'a mut [T]>>);

impl<'a, T> Grads<'a, T> {
    /// The place for the gradient of input `number`, at the first call. `None` if the gradient is
    /// not needed.
    pub(super) fn take(&mut self, number: usize) -> Option<&'a mut [T]> {
        self.0.get_mut(number).and_then(Option::take)
    }
}

/// Computes `op` of the inputs, all of one dtype, and returns the result of this `shape`. The
/// kernel computes it on the CPU and, if the operation has one for the dtype, on a GPU. The composite
/// computes it otherwise and within [`with_composites`].
pub(super) fn run<F: Fused>(
    op: F,
    shape: impl Into<Shape>,
    inputs: &[Option<&Tensor>],
) -> Result<Tensor> {
    let shape = shape.into();
    let contiguous = |tensor: &Option<&Tensor>| tensor.map(Tensor::contiguous).transpose();
    let inputs = inputs.iter().map(contiguous).collect::<Result<Vec<_>>>()?;
    let Some(first) = inputs.iter().flatten().next() else { bail!("{}: no input", F::NAME) };
    let (dtype, device) = (first.dtype(), first.device());
    if let Some(other) = inputs.iter().flatten().find(|other| other.dtype() != dtype) {
        bail!("{}: inputs of dtype {dtype:?} and {:?}", F::NAME, other.dtype());
    }
    if let Some(gpu) = gpu::wanted(&op, dtype, device) {
        return gpu::run(op, shape, dtype, inputs, &gpu);
    }
    if composite::is_wanted(device) {
        return composite::run(&op, &shape, dtype, inputs);
    }
    if is_half(dtype) {
        return run_wide(op, shape, dtype, inputs);
    }
    for_float!(dtype, F::NAME, T => {
        let mut ys = vec![T::default(); shape.elem_count()];
        let saved = profile::timed(Phase::Forward, F::NAME, shape.dims(), || {
            let tensors: Vec<Option<&Tensor>> = inputs.iter().map(Option::as_ref).collect();
            with_inputs(&tensors, F::NAME, |slices: &[&[T]]| op.forward(slices, &mut ys))
        })?;
        let (ys, saved) = (Storage::Cpu(T::to_cpu_storage_owned(ys)), T::into_values(saved));
        node::attach(op, inputs, shape, ys, saved)
    })
}

/// Computes `op` of inputs in f16 or bf16 by its kernel in f32, and rounds the result.
fn run_wide<F: Fused>(
    op: F,
    shape: Shape,
    dtype: DType,
    inputs: Vec<Option<Tensor>>,
) -> Result<Tensor> {
    // Through the identity, the gradient of a watched parameter is reported in the middle of the
    // pass.
    let wide = |input: Tensor| hooks::identity_if_watched(input)?.to_dtype(DType::F32);
    let inputs: Vec<Option<Tensor>> =
        inputs.into_iter().map(|input| input.map(wide).transpose()).collect::<Result<_>>()?;
    let inputs: Vec<Option<&Tensor>> = inputs.iter().map(Option::as_ref).collect();
    run(op, shape, &inputs)?.to_dtype(dtype)
}

/// Calls `f` with the elements of each tensor, contiguous and on the CPU. `None` becomes an empty
/// slice.
fn with_inputs<T: Float, R>(
    tensors: &[Option<&Tensor>],
    op: &'static str,
    f: impl FnOnce(&[&[T]]) -> Result<R>,
) -> Result<R> {
    let guards: Vec<_> =
        tensors.iter().map(|tensor| tensor.map(Tensor::storage_and_layout)).collect();
    let mut slices: Vec<&[T]> = Vec::with_capacity(guards.len());
    for guard in &guards {
        slices.push(match guard {
            None => &[],
            Some((storage, layout)) => match &**storage {
                Storage::Cpu(storage) => cpu_slice(storage, layout, op)?,
                _ => bail!("{op}: one input is on the CPU, another is not"),
            },
        });
    }
    f(&slices)
}
