//! Flat gradients: the gradients of parameters, one after the other, in memory that is reused at
//! every step.
//!
//! candle's backward pass makes a new tensor per parameter. Here an operation writes a gradient to
//! its place as soon as the gradient is known, in the middle of the backward pass. Gradients of
//! candle's own operations are added at the end. The memory of some parameters' gradients, a *bucket*, may belong to
//! another part of the program, for instance to the all-reduce of a communicator. An [`Observer`]
//! receives each bucket as soon as all gradients in it are complete, while the pass continues.
//!
//! ```
//! use candelabrum_memory::FlatTensor;
//! use candelabrum_nn::{FlatGradients, Init, Params, BucketPlan, ops};
//! use candle_core::{Device, Tensor};
//!
//! let params = Params::new(0);
//! let weight = params.root().param("weight", (1, 2), Init::Const(1.0))?;
//! let mut plan = BucketPlan::default();
//! plan.push(0, 2); // parameter 0 has two elements
//! let bucket = FlatTensor::from_slice(&[0_f32; 2]);
//! let mut gradients = FlatGradients::new(vec![weight.clone()], vec![plan], vec![bucket])?;
//!
//! let xs = Tensor::new(&[[3f32, 4.]], &Device::Cpu)?;
//! let loss = ops::linear(&xs, weight.tensor(), None, None)?.sum_all()?;
//! gradients.backward(&loss)?;
//! assert_eq!(gradients.bucket(0)?.as_slice::<f32>()?, [3.0, 4.0]);
//! # Ok::<(), candle_core::Error>(())
//! ```

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use candelabrum_memory::{FlatTensor, SpanMut};
use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, TensorId, bail};

use super::bucket_plan::BucketPlan;
use super::bucket_pool::BucketPool;
use super::missing::{self, MissingGradients};
use super::pass::{self, GradientPlace, GradientSink, MemoryKind};
use super::{fused, profile, saved, wrong_gradients};
use crate::params::{hold_blocks, with_span};
use crate::{Error, Param};

/// Receives each bucket whose gradients are complete, with its number, before the backward
/// pass ends. An error ends the pass.
pub type Observer<'a> = &'a mut dyn FnMut(usize, FlatTensor) -> Result<()>;

/// The parameters of a model in buckets, and the state of each gradient.
#[derive(Debug, Default)]
pub struct FlatGradients {
    params: Arc<[Param]>,
    plans: Arc<[BucketPlan]>,
    /// `None` for a bucket that is taken, or that has no memory because it has no gradient yet.
    buckets: Vec<Option<FlatTensor>>,
    /// The memory of buckets that have none of their own.
    pool: Option<BucketPool>,
    /// By bucket: whether the observer has received it in this pass.
    gone: Vec<bool>,
    by_variable: HashMap<TensorId, usize>,
    /// By parameter.
    states: Vec<GradientState>,
    /// By bucket: the number of gradients that are not complete in this pass.
    missing: Vec<usize>,
    /// Parameters in the order in which their gradients became complete in the last pass.
    ready_order: Vec<usize>,
    /// Whether a pass has shown which gradients have a part that candle's own operations compute.
    learnt: bool,
    /// Whether the last pass has met a loss whose weight varies.
    varying_loss: bool,
}

/// What [`FlatGradients`] know after a backward pass, apart from the numbers.
#[derive(Clone, Debug)]
pub struct PassState {
    states: Vec<GradientState>,
    ready_order: Vec<usize>,
}

/// The state of one parameter's gradient.
#[derive(Clone, Debug, Default)]
struct GradientState {
    /// The place in `plans`: the number of the bucket, and the slot in it.
    bucket: usize,
    slot: usize,
    /// Whether the bucket contains a gradient.
    holds: bool,
    /// Whether the gradient of this pass is complete.
    complete: bool,
    /// Whether candle's own operations use the parameter too. Their part is added last.
    late: bool,
    /// Whether the parameter is frozen in this pass. Its gradient is zero then, whatever the graph computes.
    frozen: bool,
}

impl FlatGradients {
    /// Gradients of `params` by these plans, one for each bucket. Operations created from now
    /// on report when the gradients of these parameters are complete ([`Param::watch`]).
    ///
    /// # Errors
    /// A parameter that is in no bucket or in two, or a slot or a bucket of the wrong length.
    pub fn new(
        params: impl Into<Arc<[Param]>>,
        plans: impl Into<Arc<[BucketPlan]>>,
        buckets: Vec<FlatTensor>,
    ) -> Result<Self> {
        let (params, plans) = (params.into(), plans.into());
        let lens = plans.iter().zip(&buckets).map(|(plan, bucket)| (plan.len, bucket.len()));
        if let Some((number, (len, _))) =
            lens.enumerate().find(|(_, (expected, len))| expected != len)
        {
            bail!("gradients: bucket {number} of {len} elements has another length")
        }
        if plans.len() != buckets.len() {
            bail!("gradients: {} buckets for {} plans", buckets.len(), plans.len())
        }
        let buckets = buckets.into_iter().map(Some).collect();
        Self::build(params, plans, buckets, None)
    }

    /// As [`Self::new`], with buckets that have memory of `pool` from their first gradient until they are taken, or
    /// received by an [`Observer`]. The one who takes a bucket gives its memory back to the pool.
    ///
    /// # Errors
    /// Those of [`Self::new`].
    pub fn lent(
        params: impl Into<Arc<[Param]>>,
        plans: impl Into<Arc<[BucketPlan]>>,
        pool: BucketPool,
    ) -> Result<Self> {
        let plans = plans.into();
        let buckets = plans.iter().map(|_| None).collect();
        Self::build(params.into(), plans, buckets, Some(pool))
    }

    fn build(
        params: Arc<[Param]>,
        plans: Arc<[BucketPlan]>,
        buckets: Vec<Option<FlatTensor>>,
        pool: Option<BucketPool>,
    ) -> Result<Self> {
        let mut states: Vec<Option<GradientState>> = vec![None; params.len()];
        for (number, plan) in plans.iter().enumerate() {
            for (slot, place) in plan.slots.iter().enumerate() {
                let Some(param) = params.get(place.param) else {
                    bail!("gradients: bucket {number} holds parameter number {}", place.param)
                };
                if place.range.len() != param.element_count() || place.range.end > plan.len {
                    let (name, shape, range) = (param.name(), param.shape(), &place.range);
                    bail!("gradients: elements {range:?} for `{name}` of shape {shape:?}")
                }
                let state = GradientState { bucket: number, slot, ..GradientState::default() };
                if states[place.param].replace(state).is_some() {
                    bail!("gradients: `{}` is in two places", param.name())
                }
            }
        }
        params.iter().try_for_each(Param::watch)?;
        let mut by_variable = HashMap::new();
        for (i, param) in params.iter().enumerate() {
            if let Some(other) = by_variable.insert(param.id(), i) {
                let (first, second) = (params[other].name().to_owned(), param.name().to_owned());
                return Err(Error::SharedVariable { first, second }.into());
            }
        }
        let Some(states) = states.into_iter().collect() else {
            bail!("gradients: a parameter is in no bucket")
        };
        let gone = vec![false; plans.len()];
        Ok(Self { params, plans, buckets, pool, gone, by_variable, states, ..Self::default() })
    }

    /// The pool of [`Self::lent`].
    pub fn pool(&self) -> Option<&BucketPool> {
        self.pool.as_ref()
    }

    /// Lends memory to a bucket that has none, unless it has been received in this pass.
    fn lend(&mut self, number: usize) -> Result<()> {
        let Self { pool: Some(pool), buckets, plans, states, gone, .. } = self else {
            return Ok(());
        };
        if buckets[number].is_some() || gone[number] {
            return Ok(());
        }
        let mut bucket = pool.lend(plans[number].len).map_err(candle_core::Error::from)?;
        for slot in plans[number].slots.iter().filter(|slot| states[slot.param].frozen) {
            bucket.range_mut(slot.range.clone())?.fill(0.0)?;
        }
        buckets[number] = Some(bucket);
        Ok(())
    }

    /// The parameters.
    pub fn params(&self) -> &Arc<[Param]> {
        &self.params
    }

    /// The plans of the buckets.
    pub fn plans(&self) -> &Arc<[BucketPlan]> {
        &self.plans
    }

    /// A bucket.
    ///
    /// # Errors
    /// A taken bucket.
    pub fn bucket(&mut self, number: usize) -> Result<&mut FlatTensor> {
        match self.buckets.get_mut(number).and_then(Option::as_mut) {
            Some(bucket) => Ok(bucket),
            None => bail!("gradients: bucket {number} is not there"),
        }
    }

    /// A bucket that is not taken.
    pub fn any(&self) -> Option<&FlatTensor> {
        self.buckets.iter().flatten().next()
    }

    /// Calls `f` with all buckets that are not taken, and with the memory that is not lent now.
    pub fn each_bucket(&self, f: &mut dyn FnMut(&FlatTensor)) {
        self.buckets.iter().flatten().for_each(&mut *f);
        if let Some(pool) = &self.pool {
            pool.each_spare(f);
        }
    }

    /// All buckets that are not taken, to borrow at the same time.
    pub fn buckets(&mut self) -> impl Iterator<Item = (usize, &mut FlatTensor)> {
        let buckets = self.buckets.iter_mut().enumerate();
        buckets.filter_map(|(number, bucket)| Some((number, bucket.as_mut()?)))
    }

    /// Takes a bucket. A [lent](Self::lent) one that has no gradient is zero.
    ///
    /// # Errors
    /// A bucket that is taken already, or too little memory.
    pub fn take(&mut self, number: usize) -> Result<FlatTensor> {
        if let Some(bucket) = self.buckets.get_mut(number).and_then(Option::take) {
            return Ok(bucket);
        }
        if number < self.plans.len() {
            self.lend(number)?;
        }
        let Some(mut bucket) = self.buckets.get_mut(number).and_then(Option::take) else {
            bail!("gradients: bucket {number} is not there")
        };
        bucket.span_mut()?.fill(0.0)?;
        Ok(bucket)
    }

    /// Takes the buckets of `other`, which has the same plans and memory of its own, with the gradients in them.
    ///
    /// # Errors
    /// Buckets by other plans, or a taken one.
    pub fn take_buckets(&mut self, other: &mut Self) -> Result<()> {
        if self.plans != other.plans {
            bail!("gradients: the buckets of other plans")
        }
        for (to, from) in self.states.iter_mut().zip(&other.states) {
            to.holds = from.holds;
        }
        for number in 0..self.plans.len() {
            self.buckets[number] = Some(other.take(number)?);
        }
        Ok(())
    }

    /// Puts a bucket back.
    pub fn put(&mut self, number: usize, bucket: FlatTensor) {
        if let Some(place) = self.buckets.get_mut(number) {
            *place = Some(bucket);
        }
    }

    /// Discards the gradients: new ones overwrite them. Without this call, new gradients are added.
    pub fn clear(&mut self) {
        self.states.iter_mut().for_each(|state| state.holds = false);
    }

    /// Copies the gradients of `other`, which has the same parameters, perhaps in other buckets.
    ///
    /// # Errors
    /// A taken bucket, or one in another kind of memory.
    pub fn take_over(&mut self, other: &Self) -> Result<()> {
        for (to, from) in self.states.iter_mut().zip(&other.states) {
            to.holds = from.holds;
            let places = (&other.buckets[from.bucket], &mut self.buckets[to.bucket]);
            let (Some(source), Some(place)) = places else {
                bail!("gradients: bucket {} is not there", to.bucket)
            };
            let from = other.plans[from.bucket].slots[from.slot].range.clone();
            let to = self.plans[to.bucket].slots[to.slot].range.clone();
            place.range_mut(to)?.copy_from(source.range(from)?)?;
        }
        Ok(())
    }

    /// The parameters that have no gradient, in the model's order. Frozen ones need none.
    pub fn without_gradient(&self) -> impl Iterator<Item = &Param> {
        let states = self.states.iter().zip(&*self.params);
        states.filter(|(state, _)| !state.holds).map(|(_, param)| param)
    }

    /// The parameters that have no gradient after the backward pass of `loss`, with the causes that are
    /// possible and their remedies. `None` if each has one. What is used from now on is used by a later pass.
    pub fn missing(&self, loss: &Tensor) -> Option<MissingGradients> {
        let missing = missing::explain(&self.params, |param| self.states[param].holds, loss);
        self.params.iter().for_each(Param::forget_use);
        missing
    }

    /// Writes zeros to the places without a gradient.
    ///
    /// # Errors
    /// A taken bucket.
    pub fn zero_rest(&mut self) -> Result<()> {
        for state in self.states.iter().filter(|state| !state.holds) {
            let range = self.plans[state.bucket].slots[state.slot].range.clone();
            match &mut self.buckets[state.bucket] {
                Some(bucket) => bucket.range_mut(range)?.fill(0.0)?,
                // It is zero when it is taken.
                None if self.pool.is_some() => {}
                None => bail!("gradients: bucket {} is not there", state.bucket),
            }
        }
        Ok(())
    }

    /// The parameters in the order in which their gradients were complete in the last pass. Two passes
    /// over the same graph give the same order.
    pub fn ready_order(&self) -> &[usize] {
        &self.ready_order
    }

    /// Whether the last pass has met a loss of this crate that may leave rows of its batch out, so that its
    /// [weight](crate::LossWeight) varies.
    pub fn met_varying_loss(&self) -> bool {
        self.varying_loss
    }

    /// The state after the last pass, for [`Self::set_pass_state`].
    pub fn pass_state(&self) -> PassState {
        PassState { states: self.states.clone(), ready_order: self.ready_order.clone() }
    }

    /// Sets the state that a pass over the same graph has left, after a replay of that pass has
    /// written the numbers.
    pub fn set_pass_state(&mut self, state: &PassState) {
        self.states.clone_from(&state.states);
        self.ready_order.clone_from(&state.ready_order);
    }

    /// Runs candle's backward pass from `loss`, a scalar. Every gradient of a parameter is written
    /// to its place, or added to the gradient that has been there since the last [`Self::clear`].
    ///
    /// # Errors
    /// Those of candle and of the operations. After an error the gradients are meaningless. In the first
    /// pass, [`Error::WrongGradient`] inside candle's own.
    pub fn backward(&mut self, loss: &Tensor) -> Result<()> {
        self.observed_backward(loss, None)
    }

    /// [`Self::backward`], where the `observer` receives every bucket that is complete before the pass
    /// ends. In the first pass of a graph with operations of candle it receives none: that pass only shows which
    /// gradients candle computes itself.
    ///
    /// # Errors
    /// Those of [`Self::backward`], the observer's own, and the gradient of a parameter whose
    /// bucket has been taken.
    pub fn observed_backward(
        &mut self,
        loss: &Tensor,
        observer: Option<Observer<'_>>,
    ) -> Result<()> {
        if !self.learnt {
            wrong_gradients::refuse(loss)?;
            // Then no gradient has a part that comes later.
            self.learnt = fused::has_fused_operations_only(loss);
        }
        saved::measure_beside(loss, self.params.iter().map(|param| param.variable().as_tensor()));
        self.begin_pass()?;
        let mut pass = PassSink { gradients: self, observer };
        let (store, varying) = pass::run(&mut pass, || hold_blocks(|| differentiate(loss)));
        self.varying_loss = varying;
        let result = store.map_err(no_backward).and_then(|store| self.add_candles(&store));
        self.gone.fill(false);
        self.learnt |= result.is_ok();
        result
    }

    fn begin_pass(&mut self) -> Result<()> {
        self.ready_order.clear();
        self.missing.clear();
        self.missing.extend(self.plans.iter().map(|plan| plan.slots.len()));
        for (state, param) in self.states.iter_mut().zip(&*self.params) {
            (state.complete, state.frozen) = (false, param.is_frozen());
            if state.frozen {
                self.missing[state.bucket] -= 1;
                state.holds = true;
                let range = self.plans[state.bucket].slots[state.slot].range.clone();
                if let Some(bucket) = &mut self.buckets[state.bucket] {
                    bucket.range_mut(range)?.fill(0.0)?;
                }
            }
        }
        Ok(())
    }

    /// Adds the gradients that candle computed.
    fn add_candles(&mut self, store: &GradStore) -> Result<()> {
        let plans = Arc::clone(&self.plans);
        for slot in plans.iter().flat_map(|plan| &plan.slots) {
            let variable = self.params[slot.param].id();
            let Some(gradient) = store.get_id(variable) else { continue };
            if self.states[slot.param].frozen {
                continue;
            }
            self.states[slot.param].late = true;
            self.add(slot.param, gradient)?;
            if !mem::replace(&mut self.states[slot.param].complete, true) {
                self.ready_order.push(slot.param);
            }
        }
        Ok(())
    }

    /// Writes `gradient` to the place of a parameter, or adds it to the gradient in that place.
    fn add(&mut self, param: usize, gradient: &Tensor) -> Result<()> {
        self.lend(self.states[param].bucket)?;
        let state = &mut self.states[param];
        let Some(bucket) = &mut self.buckets[state.bucket] else {
            bail!(
                "a gradient of `{}` came when its bucket had gone: an operation of candle uses the \
                 parameter in this step and did not in earlier ones; let buckets wait for the end \
                 of the backward pass (no overlap)",
                self.params[param].name()
            )
        };
        let range = self.plans[state.bucket].slots[state.slot].range.clone();
        let mut place = bucket.range_mut(range)?;
        let holds = mem::replace(&mut state.holds, true);
        with_span(
            gradient,
            |gradient| {
                if holds { place.add(gradient) } else { place.copy_from(gradient) }
            },
        )?;
        Ok(())
    }
}

/// The backward pass through the fused operations alone, or candle's where the graph has other operations.
fn differentiate(loss: &Tensor) -> Result<GradStore> {
    match fused::backward(loss)? {
        Some(store) => Ok(store),
        None => profile::backward(loss),
    }
}

/// Parts of candle's errors for operations that it does not differentiate, and what to take instead.
const NO_BACKWARD: [(&str, &str); 4] = [
    ("maxpool2d", "`candelabrum::nn::ops::max_pool2d` takes any window"),
    ("avgpool2d", "`candelabrum::nn::ops::avg_pool2d` takes any window"),
    (
        "conv-transpose1d",
        "`conv_transpose2d` of rows has one: `xs.unsqueeze(2)`, `kernel.unsqueeze(2)`",
    ),
    ("upsample_bilinear2d", "`upsample_nearest2d` has one"),
];

/// The error of a backward pass, with what to take instead of an operation that has none.
fn no_backward(error: candle_core::Error) -> candle_core::Error {
    let text = error.to_string();
    let found =
        NO_BACKWARD.iter().find(|(part, _)| text.contains("not support") && text.contains(part));
    match found {
        Some(&(_, instead)) => Error::NoBackward { message: text, instead }.into(),
        None => error,
    }
}

/// The sink of a backward pass.
struct PassSink<'g, 'o> {
    gradients: &'g mut FlatGradients,
    observer: Option<Observer<'o>>,
}

fn kind_of(bucket: &FlatTensor) -> MemoryKind {
    if bucket.is_on_device() { MemoryKind::Gpu } else { MemoryKind::Host }
}

impl GradientSink for PassSink<'_, '_> {
    fn places(
        &mut self,
        variables: &[Option<TensorId>],
        kind: MemoryKind,
    ) -> Vec<Option<GradientPlace<SpanMut<'_>>>> {
        let of_variable = |variable: &Option<TensorId>| {
            let gradients = &*self.gradients;
            let state = &gradients.states[*gradients.by_variable.get(&(*variable)?)?];
            (!state.frozen && gradients.pool.is_some()).then_some(state.bucket)
        };
        let numbers: Vec<usize> = variables.iter().filter_map(of_variable).collect();
        for number in numbers {
            // A bucket without memory has no places, and the gradient that then comes as a tensor says why.
            drop(self.gradients.lend(number));
        }
        let FlatGradients { plans, buckets, by_variable, states, .. } = &mut *self.gradients;
        let mut places: Vec<Option<GradientPlace<SpanMut<'_>>>> =
            variables.iter().map(|_| None).collect();
        // Bucket, slot and argument of each variable, in the order of their places in memory.
        let mut wanted: Vec<(usize, usize, usize)> = variables
            .iter()
            .enumerate()
            .filter_map(|(argument, variable)| {
                let state = &states[*by_variable.get(&(*variable)?)?];
                (!state.frozen).then_some((state.bucket, state.slot, argument))
            })
            .collect();
        wanted.sort_unstable();
        wanted.dedup_by_key(|(number, slot, _)| (*number, *slot));
        let mut wanted = wanted.into_iter().peekable();
        for (number, bucket) in buckets.iter_mut().enumerate() {
            if wanted.peek().is_none_or(|(next, ..)| *next != number) {
                continue;
            }
            // A bucket that is taken, or in another kind of memory, has no places.
            let bucket = bucket.as_mut().filter(|bucket| kind_of(bucket) == kind);
            let mut rest = bucket.and_then(|bucket| bucket.span_mut().ok());
            let mut start = 0;
            while let Some((_, slot, argument)) = wanted.next_if(|(of, ..)| *of == number) {
                let slot = &plans[number].slots[slot];
                let Some(values) = rest.take() else { continue };
                let (_, tail) = values.split_at(slot.range.start - start);
                let (values, tail) = tail.split_at(slot.range.len());
                let holds = mem::replace(&mut states[slot.param].holds, true);
                places[argument] = Some(GradientPlace { values, holds });
                (rest, start) = (Some(tail), slot.range.end);
            }
        }
        places
    }

    fn accept(&mut self, variable: TensorId, gradient: &Tensor) -> Result<bool> {
        let Some(&param) = self.gradients.by_variable.get(&variable) else { return Ok(false) };
        if !self.gradients.states[param].frozen {
            self.gradients.add(param, gradient)?;
        }
        Ok(true)
    }

    fn complete(&mut self, variable: TensorId) -> Result<()> {
        let FlatGradients {
            buckets, gone, by_variable, states, missing, ready_order, learnt, ..
        } = &mut *self.gradients;
        let Some(&param) = by_variable.get(&variable) else { return Ok(()) };
        let state = &mut states[param];
        if state.frozen || mem::replace(&mut state.complete, true) {
            return Ok(());
        }
        ready_order.push(param);
        if state.late || !*learnt {
            return Ok(());
        }
        missing[state.bucket] -= 1;
        let is_complete = missing[state.bucket] == 0;
        match &mut self.observer {
            Some(observer) if is_complete => match buckets[state.bucket].take() {
                Some(bucket) => {
                    gone[state.bucket] = true;
                    observer(state.bucket, bucket)
                }
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }
}
