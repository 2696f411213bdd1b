//! An operation with its own backward.

use candle_core::{Result, Tensor};

use super::on_gpu::GpuKernels;
use crate::autograd::view::StridedView;
use crate::kernels::float::Float;
use crate::kernels::scratch::Pooled;

/// An operation with its own backward: a kernel in f32, and in f64 with the feature `f64`, and a composite.
pub(crate) trait FusedOp: Send + Sync + 'static {
    /// The operation's name in errors and profiles.
    const NAME: &'static str;

    /// The tensors that the backward reads. Other tensors are not kept alive for it.
    const READS: BackwardReads = BackwardReads::NOTHING;

    /// [`NAME`](Self::NAME), unless one type has several operations.
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// [`READS`](Self::READS), unless it depends on more than the type.
    fn reads(&self) -> BackwardReads {
        Self::READS
    }

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

    /// For an operation whose result is a view of input 0: the view. If the input is another
    /// operation's result, the gradient is then written to its places among the gradients of other
    /// views, and [`Self::backward`] is not called, which would write zeros around it.
    fn view(&self) -> Option<&StridedView> {
        None
    }

    /// The input whose gradient [`Self::backward`] leaves in `dys`, if there is one. If this input is another
    /// operation's result, `dys` itself becomes the gradient, and the backward gets no place for a copy.
    fn passes_gradient_to(&self) -> Option<usize> {
        None
    }

    /// The kernels of the operation on a GPU, in f32, f16 and bf16. `None` if it has none: then a GPU
    /// computes the composite.
    fn on_gpu(&self) -> Option<&dyn GpuKernels> {
        None
    }

    /// The operation in candle's own differentiable operations, for devices without a kernel and to
    /// check the kernel. Of finite numbers, result and gradients differ from the kernel's by rounding
    /// only, and ties are PyTorch's in both.
    ///
    /// The composite also gives PyTorch's results of NaN and infinities, unless the operation says
    /// otherwise. A kernel need not: the documentation of [`ops`](crate::ops) says what holds for kernels.
    ///
    /// The inputs are contiguous, and an omitted input is `None`. [`run`](super::run) gives the result its
    /// shape, so only the order of the elements matters here. For a result without elements the composite is not
    /// called, because candle's kernels on a GPU refuse to work on nothing, unless the operation
    /// [has effects](Self::has_effects). Parameters should be right operands:
    /// candle differentiates by the right operand first, so the gradients of parameters are
    /// complete before those of the input are computed. If candle's own backward of an operation is
    /// wrong or missing, a composite avoids the operation and states the reason.
    ///
    /// # Errors
    /// Those of the forward.
    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor>;

    /// Whether the composite does more than to compute its result: an exchange with other replicas, for instance.
    fn has_effects(&self) -> bool {
        false
    }
}

/// The tensors that a backward reads beside the gradient of the result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackwardReads {
    /// Bit `i`: input number `i`.
    pub(crate) inputs: u32,
    pub(crate) output: bool,
}

impl BackwardReads {
    pub(crate) const NOTHING: Self = Self { inputs: 0, output: false };

    /// The inputs with these numbers.
    pub(crate) const fn inputs(numbers: &[u32]) -> Self {
        let mut inputs = 0;
        let mut i = 0;
        while i < numbers.len() {
            inputs |= 1 << numbers[i];
            i += 1;
        }
        Self { inputs, output: false }
    }

    /// Of inputs 0 and 1, the factors of a product: the gradient of one needs the other, which is kept in memory for
    /// it.
    pub(crate) fn of_factors(left: &Tensor, right: &Tensor) -> Self {
        let inputs = u32::from(right.track_op()) | u32::from(left.track_op()) << 1;
        Self { inputs, output: false }
    }

    /// And the result, if `reads`.
    pub(crate) const fn and_output(self, reads: bool) -> Self {
        Self { output: reads, ..self }
    }

    pub(super) fn input(self, number: usize) -> bool {
        number < 32 && self.inputs >> number & 1 == 1
    }
}

/// The arguments of a backward.
pub(crate) struct Backward<'a, T> {
    /// The inputs that the operation [reads](FusedOp::reads). Other inputs are empty.
    pub(crate) inputs: &'a [&'a [T]],
    /// The result, if the operation reads it.
    pub(crate) ys: &'a [T],
    /// The values that the forward saved.
    pub(crate) saved: &'a [T],
    /// The gradient of the result. The operation may use it as scratch memory.
    pub(crate) dys: &'a mut [T],
    /// Whether `dys` is [passed](FusedOp::passes_gradient_to) to an input, which then has no place in `grads`.
    pub(crate) is_passed: bool,
    pub(crate) grads: InputGradients<'a, T>,
}

/// The places of the inputs' gradients. Their contents are unspecified.
pub(crate) struct InputGradients<'a, T>(pub(super) Vec<Option<&'a mut [T]>>);

impl<'a, T> InputGradients<'a, T> {
    /// The places of the gradients of the inputs of an operation inside another one.
    pub(crate) fn new(places: impl IntoIterator<Item = Option<&'a mut [T]>>) -> Self {
        Self(places.into_iter().collect())
    }

    /// The place for the gradient of input `number`, at the first call. `None` if the gradient is
    /// not needed.
    pub(crate) fn take(&mut self, number: usize) -> Option<&'a mut [T]> {
        self.0.get_mut(number).and_then(Option::take)
    }
}
