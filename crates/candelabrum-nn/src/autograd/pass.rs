//! The backward pass of the current thread, for the operations of the graph.
//!
//! candle calls the backward function of an operation with tensors only. So an operation finds the
//! memory for gradients (the [`GradientSink`]) through its thread: the sink is set during a pass, and every
//! operation that is differentiated in this time writes into it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use candelabrum_memory::SpanMut;
use candelabrum_memory::cuda::CudaSpanMut;
use candle_core::{DType, Result, Tensor, TensorId};
use scoped_tls_hkt::scoped_thread_local;

use crate::kernels::float::Float;
use crate::kernels::thread_switch::with_switch;

/// Memory for the gradients of variables.
pub(crate) trait GradientSink {
    /// The places of the variables in the memory of this `kind`, which count as written afterwards.
    /// `None` stands for a variable without such a place, and for the second occurrence of a
    /// variable.
    fn places(
        &mut self,
        variables: &[Option<TensorId>],
        kind: MemoryKind,
    ) -> Vec<Option<GradientPlace<SpanMut<'_>>>>;
    /// Stores the gradient of a variable. `false` if the variable has no place.
    fn accept(&mut self, variable: TensorId, gradient: &Tensor) -> Result<bool>;
    /// Reports that all operations that use the variable and take its token have computed its
    /// gradient.
    fn complete(&mut self, variable: TensorId) -> Result<()>;
}

/// The kind of memory of gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    Host,
    Gpu,
}

/// The place of a variable's gradient. `V` borrows its numbers.
#[derive(Debug)]
pub(crate) struct GradientPlace<V> {
    pub(crate) values: V,
    /// Whether the place contains a gradient, to which the new one is added.
    pub(crate) holds: bool,
}

impl<'a> GradientPlace<SpanMut<'a>> {
    fn on_host<T: Float>(self) -> Option<GradientPlace<&'a mut [T]>> {
        match self.values {
            SpanMut::Host(values) => {
                Some(GradientPlace { values: T::of_f32s(values)?, holds: self.holds })
            }
            SpanMut::Cuda(_) => None,
        }
    }

    fn on_gpu(self) -> Option<GradientPlace<CudaSpanMut<'a>>> {
        match self.values {
            SpanMut::Cuda(values) => Some(GradientPlace { values, holds: self.holds }),
            SpanMut::Host(_) => None,
        }
    }
}

scoped_thread_local! {
    /// The memory for the gradients of the pass. It appears unset while an operation writes into it.
    static mut SINK: for<'a> &'a mut (dyn GradientSink + 'a)
}

thread_local! {
    /// The number of the pass. 0 outside of a pass.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    /// Whether this is the pass through a block that was computed again, inside the pass of the whole graph.
    static IN_BLOCK: Cell<bool> = const { Cell::new(false) };
    /// Whether the pass has met a loss whose weight varies.
    static VARYING_LOSS: Cell<bool> = const { Cell::new(false) };
}

static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// The number of the backward pass of this thread. By the number, leftovers of an earlier failed
/// pass are recognised.
pub(crate) fn number() -> u64 {
    NUMBER.get()
}

/// Runs `pass` while the operations of this thread write into `sink`. Returns its result, and whether it has
/// met a loss whose [weight](crate::LossWeight) varies.
pub(crate) fn run<R>(sink: &mut dyn GradientSink, pass: impl FnOnce() -> R) -> (R, bool) {
    let _outer = OuterPass {
        number: NUMBER.replace(NUMBERS.fetch_add(1, Ordering::Relaxed)),
        varying_loss: VARYING_LOSS.replace(false),
    };
    let result = SINK.set(sink, pass);
    (result, VARYING_LOSS.get())
}

/// Notes that the backward pass of this thread has met a loss that may leave rows of its batch out.
pub(crate) fn note_varying_loss() {
    VARYING_LOSS.set(true);
}

/// The enclosing pass, which is restored when this one ends, also by a panic.
struct OuterPass {
    number: u64,
    varying_loss: bool,
}

impl Drop for OuterPass {
    fn drop(&mut self) {
        NUMBER.set(self.number);
        VARYING_LOSS.set(self.varying_loss);
    }
}

/// Calls `f` with this thread's sink. While an operation writes into the sink, `f` gets `None`: a
/// thread that waits for other threads may begin another backward pass in this time, and that pass
/// must not find the sink.
fn with_sink<R>(f: impl FnOnce(Option<&mut dyn GradientSink>) -> R) -> R {
    if SINK.is_set() { SINK.with(|sink| f(Some(sink))) } else { f(None) }
}

/// Calls `f` with the [places](GradientSink::places) of the variables in host memory. Those of other types than f32
/// have none, because only f32 parameters are trained there.
pub(crate) fn with_places<T: Float, R>(
    variables: &[Option<TensorId>],
    f: impl FnOnce(Vec<Option<GradientPlace<&mut [T]>>>) -> R,
) -> R {
    with_sink(|sink| match sink {
        Some(sink) if T::DTYPE == DType::F32 => {
            let places = sink.places(variables, MemoryKind::Host).into_iter();
            f(places.map(|place| place.and_then(GradientPlace::on_host)).collect())
        }
        _ => f(variables.iter().map(|_| None).collect()),
    })
}

/// Calls `f` with the [places](GradientSink::places) of the variables on a GPU.
pub(crate) fn with_gpu_places<R>(
    variables: &[Option<TensorId>],
    f: impl FnOnce(Vec<Option<GradientPlace<CudaSpanMut<'_>>>>) -> R,
) -> R {
    with_sink(|sink| match sink {
        Some(sink) => {
            let places = sink.places(variables, MemoryKind::Gpu).into_iter();
            f(places.map(|place| place.and_then(GradientPlace::on_gpu)).collect())
        }
        None => f(variables.iter().map(|_| None).collect()),
    })
}

/// See [`GradientSink::accept`].
pub(crate) fn accept(variable: TensorId, gradient: &Tensor) -> Result<bool> {
    with_sink(|sink| sink.map_or(Ok(false), |sink| sink.accept(variable, gradient)))
}

/// Runs the pass through a block that was computed again, as a part of this thread's pass. A gradient is not complete
/// at its end, because operations outside of the block may use the parameter: the outer pass reports it.
pub(crate) fn in_block<R>(pass: impl FnOnce() -> R) -> R {
    with_switch(&IN_BLOCK, pass)
}

/// See [`GradientSink::complete`].
pub(crate) fn complete(variable: TensorId) -> Result<()> {
    if IN_BLOCK.get() {
        return Ok(());
    }
    with_sink(|sink| sink.map_or(Ok(()), |sink| sink.complete(variable)))
}
