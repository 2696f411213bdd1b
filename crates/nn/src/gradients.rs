//! Flat gradients: the gradients of parameters, one after the other, in memory that is used again
//! at every step.
//!
//! candle's backward pass gives a new tensor per parameter. Here a gradient is written to its place
//! as soon as it is known, in the middle of the backward pass, by the fused operations; what candle
//! computes for other operations is added at the end. The buffers may be anybody's, the buckets of
//! an all-reduce for instance, and an [`Observer`] hears of each as soon as all of its gradients are
//! complete, while the pass goes on.
//!
//! ```
//! use candelabrum_nn::{FlatGradients, Init, Params, ops};
//! use candle_core::{Device, Tensor};
//!
//! let params = Params::new(0);
//! let weight = params.root().param("weight", (1, 2), Init::Const(1.0))?;
//! let mut gradients = FlatGradients::<Vec<f32>>::default();
//! gradients.push(vec![0.0; 2], [(&weight, 0..2)])?;
//!
//! let xs = Tensor::new(&[[3f32, 4.]], &Device::Cpu)?;
//! let loss = ops::linear(&xs, weight.tensor(), None, None)?.sum_all()?;
//! gradients.backward(&loss)?;
//! assert_eq!(gradients.buffers_mut()[0].as_deref(), Some(&[3.0, 4.0][..]));
//! # Ok::<(), candle_core::Error>(())
//! ```

use std::any::Any;
use std::cell::Cell;
use std::collections::HashMap;
use std::mem;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::backprop::GradStore;
use candle_core::{Result, Storage, Tensor, TensorId, bail};

use crate::Param;

/// Memory for gradients.
pub trait GradientBuffer: Send + 'static {
    /// Its elements; always the same number.
    ///
    /// # Errors
    /// Memory that is not there.
    fn values_mut(&mut self) -> Result<&mut [f32]>;
}

impl GradientBuffer for Vec<f32> {
    fn values_mut(&mut self) -> Result<&mut [f32]> {
        Ok(self)
    }
}

/// Is told in mid-backward which buffers are complete.
pub trait Observer<B>: 'static {
    /// All gradients of buffer `number` are there and will not change in this pass: the observer may
    /// take the buffer away.
    ///
    /// # Errors
    /// An error ends the pass.
    fn complete(&mut self, number: usize, buffer: &mut Option<B>) -> Result<()>;
}

/// Nobody watches.
impl<B> Observer<B> for () {
    fn complete(&mut self, _number: usize, _buffer: &mut Option<B>) -> Result<()> {
        Ok(())
    }
}

/// Buffers, and the places of parameters in them.
#[derive(Debug)]
pub struct FlatGradients<B> {
    /// In the order of the parameters' places, buffer by buffer.
    slots: Vec<Slot>,
    by_variable: HashMap<TensorId, usize>,
    buffers: Vec<Option<B>>,
    /// By buffer: gradients that are not complete in this pass.
    missing: Vec<usize>,
    /// Slots in the order in which their gradients were complete in the last pass.
    order: Vec<usize>,
    /// Whether a pass has shown which gradients hooks do not see whole.
    learnt: bool,
}

#[derive(Debug)]
struct Slot {
    name: Box<str>,
    variable: TensorId,
    buffer: usize,
    range: Range<usize>,
    /// Whether a gradient is there.
    holds: bool,
    /// Whether that of this pass is complete.
    complete: bool,
    /// Whether candle's own operations use the parameter too: their part comes last.
    late: bool,
}

impl<B> Default for FlatGradients<B> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            by_variable: HashMap::new(),
            buffers: Vec::new(),
            missing: Vec::new(),
            order: Vec::new(),
            learnt: false,
        }
    }
}

impl<B: GradientBuffer> FlatGradients<B> {
    /// Adds a buffer, in which each of these parameters has its range of elements. Ranges come in
    /// ascending order and do not overlap. Operations made from now on tell when the gradients of
    /// these parameters are complete ([`Param::watch`]).
    ///
    /// # Errors
    /// A range that is not as long as its parameter.
    pub fn push<'a>(
        &mut self,
        buffer: impl Into<Option<B>>,
        places: impl IntoIterator<Item = (&'a Param, Range<usize>)>,
    ) -> Result<()> {
        let number = self.buffers.len();
        self.buffers.push(buffer.into());
        for (param, range) in places {
            if range.len() != param.var().elem_count() {
                let (name, shape) = (param.name(), param.var().shape());
                bail!("gradients: elements {range:?} for `{name}` of shape {shape:?}");
            }
            param.watch()?;
            let variable = param.tensor().id();
            self.by_variable.insert(variable, self.slots.len());
            self.slots.push(Slot {
                name: param.name().into(),
                variable,
                buffer: number,
                range,
                holds: false,
                complete: false,
                late: false,
            });
        }
        self.learnt = false;
        Ok(())
    }

    /// The buffers, in the order in which they were pushed; `None` for one that was taken away.
    pub fn buffers_mut(&mut self) -> &mut [Option<B>] {
        &mut self.buffers
    }

    /// Forgets the gradients: the next ones overwrite them. Without this, they are added.
    pub fn clear(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.holds = false);
    }

    /// Whether a parameter has a gradient, by place in the order of [`Self::push`].
    pub fn holds(&self) -> impl Iterator<Item = bool> {
        self.slots.iter().map(|slot| slot.holds)
    }

    /// Writes zeros where no gradient is.
    ///
    /// # Errors
    /// A buffer that was taken away.
    pub fn zero_rest(&mut self) -> Result<()> {
        for slot in self.slots.iter_mut().filter(|slot| !slot.holds) {
            values(&mut self.buffers, slot)?.fill(0.0);
        }
        Ok(())
    }

    /// By place in the order of [`Self::push`]: the places in the order in which their gradients
    /// were complete in the last pass. Those of one pass differ from another's only where the graphs
    /// do.
    pub fn ready_order(&self) -> &[usize] {
        &self.order
    }

    /// candle's backward pass from `loss`, a scalar; every gradient of a parameter goes to its
    /// place, or is added to what is there since the last [`Self::clear`].
    ///
    /// # Errors
    /// Those of candle and of the operations; then the gradients mean nothing.
    pub fn backward(&mut self, loss: &Tensor) -> Result<()> {
        self.backward_with(loss, ()).1
    }

    /// The same, and `observer` hears of every buffer that is complete before the pass has ended:
    /// of none in the first pass, which only shows which gradients come late. Gives the observer
    /// back.
    ///
    /// # Errors
    /// The same, the observer's own, and the gradient of a parameter whose buffer has been taken.
    pub fn backward_with<O: Observer<B>>(&mut self, loss: &Tensor, observer: O) -> (O, Result<()>) {
        self.begin_pass();
        let (observer, store) = lend(self, observer, || loss.backward());
        let result = store.and_then(|store| self.add_candles(&store));
        self.learnt |= result.is_ok();
        (observer, result)
    }

    fn begin_pass(&mut self) {
        self.order.clear();
        self.missing.clear();
        self.missing.resize(self.buffers.len(), 0);
        for slot in &mut self.slots {
            slot.complete = false;
            self.missing[slot.buffer] += 1;
        }
    }

    /// Adds the gradients that candle has.
    fn add_candles(&mut self, store: &GradStore) -> Result<()> {
        for number in 0..self.slots.len() {
            let Some(gradient) = store.get_id(self.slots[number].variable) else { continue };
            let slot = &mut self.slots[number];
            slot.late = true;
            add(&mut self.buffers, slot, gradient)?;
            if !mem::replace(&mut slot.complete, true) {
                self.order.push(number);
            }
        }
        Ok(())
    }
}

/// Writes or adds `gradient` to the place of `slot`.
fn add<B: GradientBuffer>(
    buffers: &mut [Option<B>],
    slot: &mut Slot,
    gradient: &Tensor,
) -> Result<()> {
    if buffers[slot.buffer].is_none() {
        bail!(
            "a gradient of `{}` came when its buffer had gone: an operation of candle uses the \
             parameter in this step and did not in earlier ones; let buffers wait for the end of \
             the backward pass (no overlap)",
            slot.name
        );
    }
    let place = values(buffers, slot)?;
    let holds = mem::replace(&mut slot.holds, true);
    read(gradient, place, |place, gradient| {
        if holds {
            place.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
        } else {
            place.copy_from_slice(gradient);
        }
    })
}

fn values<'a, B: GradientBuffer>(
    buffers: &'a mut [Option<B>],
    slot: &Slot,
) -> Result<&'a mut [f32]> {
    let Some(buffer) = &mut buffers[slot.buffer] else {
        bail!("gradients: buffer {} is not there", slot.buffer)
    };
    let values = buffer.values_mut()?;
    let len = values.len();
    match values.get_mut(slot.range.clone()) {
        Some(values) => Ok(values),
        None => bail!("gradients: elements {:?} of a buffer of {len}", slot.range),
    }
}

/// Calls `f` with `place` and the elements of an f32 tensor, as many.
fn read(tensor: &Tensor, place: &mut [f32], f: impl FnOnce(&mut [f32], &[f32])) -> Result<()> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else { bail!("gradients: one is not on the CPU") };
    let start = layout.start_offset();
    let found = storage.as_slice::<f32>()?.get(start..start + tensor.elem_count());
    match found.filter(|gradient| gradient.len() == place.len()) {
        Some(gradient) => f(place, gradient),
        None => bail!("gradients: one of {:?} for {} elements", tensor.shape(), place.len()),
    }
    Ok(())
}

/// The place of a variable's gradient.
#[derive(Debug)]
pub(crate) struct Place<'a, T> {
    pub(crate) values: &'a mut [T],
    /// Whether a gradient is there, to be added to.
    pub(crate) holds: bool,
}

/// [`FlatGradients`] of any buffer, and who observes them.
trait Sink {
    fn places(&mut self, variables: &[Option<TensorId>]) -> Vec<Option<Place<'_, f32>>>;
    fn accept(&mut self, variable: TensorId, gradient: &Tensor) -> Result<bool>;
    fn complete(&mut self, variable: TensorId) -> Result<()>;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

thread_local! {
    /// Those of the backward pass that this thread is in.
    static CURRENT: Cell<Option<Box<dyn Sink>>> = const { Cell::new(None) };
    /// The number of that pass; 0 outside of [`FlatGradients::backward`].
    static PASS: Cell<u64> = const { Cell::new(0) };
}

static PASSES: AtomicU64 = AtomicU64::new(1);

/// The backward pass that this thread is in: what an earlier one that failed has left behind is
/// known by another number.
pub(crate) fn pass() -> u64 {
    PASS.get()
}

/// Runs `pass` while this thread's operations have `gradients` and `observer`, which come back even
/// if one of them panics.
fn lend<B: GradientBuffer, O: Observer<B>, R>(
    gradients: &mut FlatGradients<B>,
    observer: O,
    pass: impl FnOnce() -> R,
) -> (O, R) {
    let mut observer = Some(observer);
    let result = {
        let _lent = Lent::new(gradients, &mut observer);
        pass()
    };
    (observer.expect("it was lent for the time of the pass"), result)
}

/// What is lent.
struct Lent<'a, B: GradientBuffer, O: Observer<B>> {
    gradients: &'a mut FlatGradients<B>,
    observer: &'a mut Option<O>,
    sink_before: Option<Box<dyn Sink>>,
    pass_before: u64,
}

/// What operations write into.
struct Pass<B, O> {
    gradients: FlatGradients<B>,
    observer: Option<O>,
}

impl<'a, B: GradientBuffer, O: Observer<B>> Lent<'a, B, O> {
    fn new(gradients: &'a mut FlatGradients<B>, observer: &'a mut Option<O>) -> Self {
        let pass = Pass { gradients: mem::take(gradients), observer: observer.take() };
        let sink_before = CURRENT.replace(Some(Box::new(pass)));
        let pass_before = PASS.replace(PASSES.fetch_add(1, Ordering::Relaxed));
        Self { gradients, observer, sink_before, pass_before }
    }
}

impl<B: GradientBuffer, O: Observer<B>> Drop for Lent<'_, B, O> {
    fn drop(&mut self) {
        PASS.set(self.pass_before);
        let lent = CURRENT.replace(self.sink_before.take());
        if let Some(Ok(own)) = lent.map(|lent| lent.into_any().downcast::<Pass<B, O>>()) {
            *self.gradients = own.gradients;
            *self.observer = own.observer;
        }
    }
}

/// The sink, taken out while an operation writes into it: a thread that waits for others may begin
/// another backward pass meanwhile, which shall not find it.
struct InUse(Option<Box<dyn Sink>>);

impl Drop for InUse {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Calls `f` with the places of the variables, which are then taken for written. `None` stands for
/// a variable without a place, and for one that is named a second time.
pub(crate) fn with_places<R>(
    variables: &[Option<TensorId>],
    f: impl FnOnce(Vec<Option<Place<'_, f32>>>) -> R,
) -> R {
    let mut sink = InUse(CURRENT.take());
    match &mut sink.0 {
        Some(sink) => f(sink.places(variables)),
        None => f(variables.iter().map(|_| None).collect()),
    }
}

/// Takes the gradient of a variable, where it has a place.
pub(crate) fn accept(variable: TensorId, gradient: &Tensor) -> Result<bool> {
    let mut sink = InUse(CURRENT.take());
    sink.0.as_mut().map_or(Ok(false), |sink| sink.accept(variable, gradient))
}

/// Every operation that uses the variable and is known by its token has given its gradient.
pub(crate) fn complete(variable: TensorId) -> Result<()> {
    let mut sink = InUse(CURRENT.take());
    sink.0.as_mut().map_or(Ok(()), |sink| sink.complete(variable))
}

impl<B: GradientBuffer, O: Observer<B>> Sink for Pass<B, O> {
    fn places(&mut self, variables: &[Option<TensorId>]) -> Vec<Option<Place<'_, f32>>> {
        self.gradients.places(variables)
    }

    fn accept(&mut self, variable: TensorId, gradient: &Tensor) -> Result<bool> {
        let FlatGradients { slots, by_variable, buffers, .. } = &mut self.gradients;
        let Some(&number) = by_variable.get(&variable) else { return Ok(false) };
        add(buffers, &mut slots[number], gradient)?;
        Ok(true)
    }

    fn complete(&mut self, variable: TensorId) -> Result<()> {
        let gradients = &mut self.gradients;
        let Some(&number) = gradients.by_variable.get(&variable) else { return Ok(()) };
        let slot = &mut gradients.slots[number];
        if mem::replace(&mut slot.complete, true) {
            return Ok(());
        }
        gradients.order.push(number);
        let buffer = slot.buffer;
        if slot.late || !gradients.learnt {
            return Ok(());
        }
        gradients.missing[buffer] -= 1;
        match &mut self.observer {
            Some(observer) if gradients.missing[buffer] == 0 => {
                observer.complete(buffer, &mut gradients.buffers[buffer])
            }
            _ => Ok(()),
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl<B: GradientBuffer> FlatGradients<B> {
    fn places(&mut self, variables: &[Option<TensorId>]) -> Vec<Option<Place<'_, f32>>> {
        let mut places: Vec<Option<Place<'_, f32>>> = variables.iter().map(|_| None).collect();
        // Which of the arguments each slot belongs to, in the order in which the slots lie.
        let slot = |(argument, variable): (usize, &Option<TensorId>)| {
            Some((*self.by_variable.get(&(*variable)?)?, argument))
        };
        let mut wanted: Vec<(usize, usize)> =
            variables.iter().enumerate().filter_map(slot).collect();
        wanted.sort_unstable();
        wanted.dedup_by_key(|(slot, _)| *slot);
        let mut wanted = wanted.into_iter().peekable();
        for (number, buffer) in self.buffers.iter_mut().enumerate() {
            let Some(Ok(mut rest)) = buffer.as_mut().map(B::values_mut) else { continue };
            let mut start = 0;
            while let Some((slot, argument)) =
                wanted.next_if(|(slot, _)| self.slots[*slot].buffer == number)
            {
                let Slot { range, holds, .. } = &mut self.slots[slot];
                let skipped = range.start.checked_sub(start);
                let Some((_, tail)) = skipped.and_then(|n| rest.split_at_mut_checked(n)) else {
                    break;
                };
                let Some((values, tail)) = tail.split_at_mut_checked(range.len()) else { break };
                places[argument] = Some(Place { values, holds: mem::replace(holds, true) });
                (rest, start) = (tail, range.end);
            }
        }
        places
    }
}
