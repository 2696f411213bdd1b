//! The basis of every operation of this module: [`FusedOp`], an operation with its own backward, and
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
//! from inbox to inbox in recycled memory ([`crate::kernels::scratch`]). The gradients of variables with a
//! place in the [`FlatGradients`](crate::FlatGradients) of this backward pass are written there.
//! Any other tensor gets its gradient from candle, as from every custom operation. So a network may
//! mix these operations with candle's in any way.
//!
//! Where candle has no operation in the graph at all, the pass does without candle's ([`walk`]).
//!
//! candle's views of a result (`narrow`, `transpose`, `permute`, `reshape`) share its memory, and the
//! layout of a view says which elements it has ([`super::view`]). An operation on a view therefore
//! joins the result's token too, and writes the gradient to the view's places in the result's inbox.
//! candle never sees the view in the backward pass. The first gradients that arrive need not be added
//! to zeros: an inbox knows which places have been written ([`inbox`]).

mod block_end;
mod composite;
mod elements;
mod gpu;
mod inbox;
mod leaf;
mod link;
mod node;
mod on_gpu;
mod operation;
mod recompute;
mod untyped;
mod walk;

use candle_core::{DType, Result, Shape, Storage, Tensor, WithDType, bail};

pub(crate) use self::block_end::end_block;
pub(crate) use self::composite::widen;
pub use self::composite::with_composites;
use self::elements::with_inputs;
pub(crate) use self::inbox::GradientInbox;
use self::link::GradientTarget;
pub(crate) use self::on_gpu::{GpuBackward, GpuForward, GpuKernels};
pub(crate) use self::operation::{Backward, BackwardReads, FusedOp, InputGradients};
pub use self::recompute::recompute;
pub(crate) use self::recompute::recompute_at;
use self::untyped::{Operation, TypedKernels};
pub(crate) use self::walk::{backward, has_fused_operations_only};
use super::profile::{self, ProfilePhase};
use super::recomputing::{self, Unread};
use crate::kernels::float::for_float;
use crate::kernels::scratch::{Poolable, Pooled};
use crate::kernels::unspecified::unspecified;
use crate::params::is_half;

/// Computes `op` of the inputs, all of one dtype, and returns the result of this `shape`. The
/// kernel computes it on the CPU and, if the operation has one for the dtype, on a GPU. The composite
/// computes it otherwise and within [`with_composites`].
pub(crate) fn run<F: FusedOp>(
    op: F,
    shape: impl Into<Shape>,
    inputs: &[Option<&Tensor>],
) -> Result<Tensor> {
    run_operation(Box::new(op), shape.into(), inputs)
}

fn run_operation(
    op: Box<dyn Operation>,
    shape: Shape,
    inputs: &[Option<&Tensor>],
) -> Result<Tensor> {
    let name = op.name();
    let Some(first) = inputs.iter().copied().flatten().next() else { bail!("{name}: no input") };
    let (dtype, device) = (first.dtype(), first.device());
    if let Some(other) = inputs.iter().flatten().find(|other| other.dtype() != dtype) {
        bail!("{name}: inputs of dtype {dtype:?} and {:?}", other.dtype());
    }
    let connected = || -> Result<Vec<Option<Tensor>>> {
        inputs.iter().map(|tensor| tensor.map(Tensor::contiguous).transpose()).collect()
    };
    let unread = recomputing::begin_operation();
    if let Some(gpu) = gpu::wanted(&*op, dtype, device) {
        return gpu::run(op, shape, dtype, connected()?, &gpu, unread);
    }
    if composite::is_wanted(dtype, device) {
        return composite::run(&*op, &shape, dtype, connected()?);
    }
    if is_half(dtype) {
        return run_wide(op, shape, dtype, &connected()?);
    }
    for_float!(dtype, name, T => {
        let targets = inputs.iter().map(|input| GradientTarget::new(*input)).collect();
        let contiguous = |input: &Option<&Tensor>| input.map(elements::contiguous::<T>).transpose();
        let inputs = inputs.iter().map(contiguous).collect::<Result<Vec<_>>>()?;
        let mut ys = unspecified(shape.elem_count());
        let saved = match unread {
            Some(Unread::All) => Pooled::none(),
            _ => profile::timed(ProfilePhase::Forward, name, shape.dims(), || {
                let tensors: Vec<Option<&Tensor>> = inputs.iter().map(Option::as_ref).collect();
                let mut forward = || {
                    with_inputs(&tensors, name, |slices: &[&[T]]| T::forward(&*op, slices, &mut ys))
                };
                match unread {
                    Some(_) => recomputing::with_result_unread(forward),
                    None => forward(),
                }
            })?,
        };
        let (ys, saved) = (Storage::Cpu(T::to_cpu_storage_owned(ys)), T::into_values(saved));
        node::attach(op, targets, inputs, shape, ys, saved)
    })
}

/// Computes `op` of inputs in f16 or bf16 by its kernel in f32, and rounds the result.
fn run_wide(
    op: Box<dyn Operation>,
    shape: Shape,
    dtype: DType,
    inputs: &[Option<Tensor>],
) -> Result<Tensor> {
    let wide = |input: &Option<Tensor>| input.as_ref().map(widen).transpose();
    let inputs: Vec<Option<Tensor>> = inputs.iter().map(wide).collect::<Result<_>>()?;
    let inputs: Vec<Option<&Tensor>> = inputs.iter().map(Option::as_ref).collect();
    run_operation(op, shape, &inputs)?.to_dtype(dtype)
}
