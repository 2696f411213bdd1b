//! What every operation of this module stands on: [`Fused`], an operation with its own backward,
//! and [`run`], which computes it and ties its result into candle's graph.
//!
//! candle's backward pass allocates a tensor of zeros and adds to it for every gradient that an
//! operation returns. That is three passes over memory where none is needed, so the gradients of
//! these operations do not travel through candle:
//!
//! ```text
//! ys ── emit ──> token ── join ──> xs, weight, ..    what candle's graph sees; tokens are scalars
//! inbox of ys <── backward ──> inbox of xs, flat gradients of weight, ..     where numbers go
//! ```
//!
//! A result `ys` hangs on a scalar *token*. An operation whose input is the result of another one
//! ([`link`]) joins its token instead of the tensor, so candle orders the backward pass and adds up
//! scalars, while the gradients go from inbox to inbox in recycled memory ([`super::pool`]). Variables
//! with a place in the [`FlatGradients`](crate::FlatGradients) of this backward pass get theirs
//! there; any other tensor gets its gradient from candle, as from every custom op. So a network may
//! mix these operations with candle's as it likes.

mod composite;
mod link;
mod node;

use candle_core::{Result, Shape, Storage, Tensor, bail};

pub(super) use self::composite::widen;
pub use self::composite::with_composites;
pub(super) use self::link::Inbox;
use super::float::{Float, cpu_slice, for_float};
use super::pool::{Pooled, Values};
use super::profile::{self, Phase};

/// An operation with its own backward: a kernel in f32 and f64, and a composite.
pub(super) trait Fused: Send + Sync + 'static {
    /// Its name in errors and profiles.
    const NAME: &'static str;

    /// What the backward reads. What it does not read is not kept alive for it.
    fn reads(&self) -> Reads;

    /// Writes every element of `ys` from the inputs, which are contiguous; one that was left out is
    /// an empty slice. What the backward shall find in [`Backward::saved`] is returned
    /// ([`Pooled::none`] for nothing).
    ///
    /// # Errors
    /// Inputs that the caller could not check.
    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>>;

    /// Writes every element of each gradient that is wanted.
    ///
    /// # Errors
    /// None that the forward would not have found.
    fn backward<T: Float>(&self, pass: Backward<'_, T>) -> Result<()>;

    /// The same operation in candle's own differentiable operations: for devices without a kernel, and
    /// to check the kernel against. Result and gradients differ from the kernel's by rounding only;
    /// ties, NaN and infinities are PyTorch's.
    ///
    /// The inputs are contiguous, `None` for one that was left out. [`run`] gives the result its shape;
    /// here only the order of its elements counts. Parameters belong to the right of an operation:
    /// candle differentiates by the right operand first, so their gradients are complete before those
    /// of the input are computed. Where candle's own backward is wrong or missing, a composite does
    /// without that operation and says why.
    ///
    /// # Errors
    /// Those of the forward.
    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor>;
}

/// What a backward reads beside the gradient of the result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reads {
    /// Bit `i`: input number `i`.
    pub(super) inputs: u32,
    pub(super) output: bool,
}

impl Reads {
    pub(super) const NOTHING: Self = Self { inputs: 0, output: false };

    /// The inputs of these numbers.
    pub(super) const fn inputs(numbers: &[u32]) -> Self {
        let mut inputs = 0;
        let mut i = 0;
        while i < numbers.len() {
            inputs |= 1 << numbers[i];
            i += 1;
        }
        Self { inputs, output: false }
    }

    /// And the result.
    pub(super) const fn and_output(self, reads: bool) -> Self {
        Self { output: reads, ..self }
    }

    fn input(self, number: usize) -> bool {
        self.inputs >> number & 1 == 1
    }
}

/// The arguments of a backward.
pub(super) struct Backward<'a, T> {
    /// The inputs that the operation [reads](Fused::reads), the others empty.
    pub(super) inputs: &'a [&'a [T]],
    /// The result, if the operation reads it.
    pub(super) ys: &'a [T],
    /// What the forward saved.
    pub(super) saved: &'a [T],
    /// The gradient of the result; the operation may use it as scratch memory.
    pub(super) dys: &'a mut [T],
    pub(super) grads: Grads<'a, T>,
}

/// Where the gradients of the inputs go. The contents are unspecified.
pub(super) struct Grads<'a, T>(Vec<Option<&'a mut [T]>>);

impl<'a, T> Grads<'a, T> {
    /// The place for the gradient of input `number`, once; `None` where nobody wants it.
    pub(super) fn take(&mut self, number: usize) -> Option<&'a mut [T]> {
        self.0.get_mut(number).and_then(Option::take)
    }
}

/// Computes `op` of the inputs, all of one dtype, and gives its result of that `shape`: by the kernel
/// on the CPU, by the composite elsewhere and within [`with_composites`].
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
    if composite::is_wanted(device) {
        return composite::run(&op, &shape, dtype, inputs);
    }
    for_float!(dtype, F::NAME, T => {
        let mut ys = vec![T::default(); shape.elem_count()];
        let saved = profile::timed(Phase::Forward, F::NAME, shape.dims(), || {
            let tensors: Vec<Option<&Tensor>> = inputs.iter().map(Option::as_ref).collect();
            with_inputs(&tensors, F::NAME, |slices: &[&[T]]| op.forward(slices, &mut ys))
        })?;
        node::attach(op, inputs, shape, ys, saved)
    })
}

/// Calls `f` with the elements of each tensor, contiguous and on the CPU; `None` has none.
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
