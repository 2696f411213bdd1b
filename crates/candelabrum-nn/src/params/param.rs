//! A parameter: a trainable tensor with a name.

use std::sync::Arc;

use candelabrum_memory::{Flat, Span, SpanMut, cuda};
use candle_core::{DType, Device, Shape, Storage, Tensor, TensorId, Var, bail};

use super::arrival::Arrival;
use super::freeze::Freeze;
use super::master::{self, Master};
use super::sharding::{Place, ShardedValues, Sharding, Shared};
use super::tensors::{VariableValues, Whole, tensor_bytes, to_flat, with_span, with_variable};
use super::together::update_together;
use crate::autograd::hooks::{self, Watch};
use crate::{Error, Result};

/// One trainable tensor and its name. A cheap handle: clones share the value.
#[derive(Clone, Debug)]
pub struct Param {
    name: Arc<str>,
    var: Var,
    watch: Watch,
    master: Master,
    arrival: Arrival,
    freeze: Freeze,
    sharding: Sharding,
    /// Whether the variable came from outside, so that a model may keep its tensor.
    is_given: bool,
}

impl Param {
    /// A parameter that nobody watches or expects values for.
    pub(super) fn new(name: String, var: Var, is_given: bool) -> Self {
        let (watch, master) = (Watch::default(), Master::default());
        let (arrival, freeze) = (Arrival::default(), Freeze::default());
        let sharding = Sharding::default();
        Self { name: name.into(), var, watch, master, arrival, freeze, sharding, is_given }
    }

    /// The full name: the layers' names and the parameter's own, joined by dots, as in
    /// `conv1.weight`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The variable by which candle differentiates.
    pub fn var(&self) -> &Var {
        self.arrive();
        &self.var
    }

    /// The variable, whose values may not be here.
    pub(crate) fn variable(&self) -> &Var {
        &self.var
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        self.var.shape()
    }

    /// The sizes of the dimensions.
    pub fn dims(&self) -> &[usize] {
        self.var.dims()
    }

    /// The number of elements.
    pub fn element_count(&self) -> usize {
        self.var.elem_count()
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.var.dtype()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.var.device()
    }

    /// The value as a tensor that is part of the graph. That of a [frozen](Self::freeze) parameter is not.
    pub fn tensor(&self) -> &Tensor {
        self.arrive();
        self.note_use();
        self.freeze.tensor(&self.var)
    }

    fn note_use(&self) {
        self.arrival.note_use();
        self.sharding.note_use();
    }

    /// Leaves the parameter out of training: no gradient of it is computed or applied. Freeze it on all ranks
    /// between the same steps.
    ///
    /// A parameter that is frozen before the first step of an optimizer costs no bytes between ranks, and the
    /// optimizer has no state for it: after [`unfreeze`](Self::unfreeze) it needs a new optimizer. One that is
    /// frozen later keeps its place in the buckets and its state, unchanged, and may be unfrozen at any time.
    ///
    /// A model that keeps a tensor of this parameter, as those of `candle_nn` do, still computes the
    /// gradient.
    pub fn freeze(&self) {
        self.freeze.set(true);
    }

    /// Undoes [`freeze`](Self::freeze).
    pub fn unfreeze(&self) {
        self.freeze.set(false);
    }

    /// Whether the parameter is [frozen](Self::freeze).
    pub fn is_frozen(&self) -> bool {
        self.freeze.is_set()
    }

    /// Whether the parameter is [frozen](Self::freeze) and has the values of the files that the model was loaded from
    /// ([`Params::set_initial_values`](crate::Params::set_initial_values)). Such a parameter is not sent to other ranks
    /// and not saved in checkpoints: every rank reads the files. A digest makes sure that they are equal.
    pub fn is_constant(&self) -> bool {
        self.freeze.is_constant()
    }

    pub(crate) fn note_pretrained(&self) {
        self.freeze.set_origin(true, false);
    }

    /// Says that the values were drawn because the files that the model is loaded from do not have them.
    pub(super) fn note_drawn(&self) {
        self.freeze.set_origin(false, true);
    }

    /// Whether the values were drawn because the model's files do not have them, and nothing has changed them since.
    pub(crate) fn is_drawn(&self) -> bool {
        self.freeze.is_drawn()
    }

    /// Says whether an adapter is merged to which this parameter belongs, or into this parameter.
    pub(crate) fn note_merged(&self, merged: bool) {
        self.freeze.set_merged(merged);
    }

    pub(crate) fn is_merged(&self) -> bool {
        self.freeze.is_merged()
    }

    /// Says that the values are about to change.
    fn note_change(&self) {
        self.watch.changed(&self.var);
        self.freeze.set_origin(false, false);
    }

    /// candle's number of the variable.
    pub(crate) fn id(&self) -> TensorId {
        self.var.as_tensor().id()
    }

    /// Says that new values are on their way. `fetch` waits for them and writes them. The next
    /// access to this parameter calls it, as [`Self::update_in_place`] calls its `update`. Until
    /// then the parameter has its old values. An error is for `fetch` to remember.
    ///
    /// A model that keeps a tensor of this parameter does not access the parameter, see
    /// [`Self::take_use`].
    pub fn expect(&self, fetch: impl FnOnce(SpanMut<'_>) + Send + 'static) {
        self.arrival.expect(Box::new(fetch));
    }

    /// Whether [`Self::tensor`] or [`Self::identity`] was called since the last call of this method or
    /// of [`Self::expect`]. A forward pass through this crate's layers calls it. A model of `candle_nn`
    /// does not, because it keeps its tensors.
    pub fn take_use(&self) -> bool {
        self.arrival.take_use()
    }

    /// What [`Self::take_use`] would return. `None` if the model may use the parameter without our knowledge.
    pub(crate) fn was_used(&self) -> Option<bool> {
        (!self.is_given).then(|| self.arrival.was_used())
    }

    /// Waits for values that are on their way.
    fn await_arrival(&self) {
        self.arrival.complete(|fetch| {
            // It fails only for a type that no optimizer updates, so that no values are expected.
            drop(self.write(fetch));
        });
    }

    /// Waits for values that are on their way, and fetches those that other processes keep.
    fn arrive(&self) {
        self.await_arrival();
        if self.sharding.place() == Place::Away
            && let Err(error) = self.gather()
        {
            // Whoever computes with it gets NaN, and the next step the failure.
            tracing::error!("the values of `{}` could not be fetched: {error}", self.name);
            let mut bad = Whole::of(&self.var);
            bad.push(&vec![f32::NAN; self.element_count()]);
            drop(bad.put(&self.var));
        }
    }

    /// Makes sure that the variable has its values, if other processes keep some of them.
    ///
    /// # Errors
    /// A failure of another process.
    pub fn gather(&self) -> Result<()> {
        if self.sharding.place() == Place::Away
            && let Some(shared) = self.sharding.shared()
        {
            shared.gather(&self.var)?;
            self.sharding.set(Place::Gathered);
        }
        Ok(())
    }

    /// From now on this process keeps a part of the values, and other processes the rest: `values` has them, and knows
    /// this parameter by `number`. With `is_kept`, the variable always has the values rounded to its type, and
    /// [`Self::put`] refreshes them. Otherwise it has them only while they are used.
    pub fn shard(&self, values: Arc<dyn ShardedValues>, number: usize, is_kept: bool) {
        self.sharding.begin(values, number, is_kept);
        self.master.forget();
    }

    /// Undoes [`Self::shard`]: this process has all values again.
    ///
    /// # Errors
    /// A failure of another process.
    pub fn unshard(&self) -> Result<()> {
        let Some(shared) = self.sharding.shared() else { return Ok(()) };
        let values = shared.read(&self.var)?;
        self.put(values.span()?)?;
        self.sharding.end();
        if master::is_half(self.var.dtype()) {
            self.master.set(values);
        }
        Ok(())
    }

    /// Whether this process keeps only a part of the values ([`Self::shard`]).
    pub fn is_sharded(&self) -> bool {
        self.sharding.place() != Place::Here
    }

    /// The number of the [block](crate::layers::Blocks) that alone has used the parameter so far, counted from 0 in the
    /// order of the creation of blocks. `None` if it was used elsewhere, or not at all.
    pub fn block(&self) -> Option<usize> {
        self.sharding.home()
    }

    /// The place of the values and what processes share of them.
    pub(super) fn sharding(&self) -> &Sharding {
        &self.sharding
    }

    /// Gives the memory of the variable back, if other processes keep some of the values ([`Self::shard`] without
    /// `is_kept`).
    ///
    /// # Errors
    /// A device's error.
    pub fn release(&self) -> Result<()> {
        Ok(self.sharding.release(&self.var)?)
    }

    /// Sets the variable to `values`, rounded to its type, and changes nothing that processes share.
    ///
    /// # Errors
    /// Another number of values, or a device's error.
    pub fn put(&self, values: Span<'_>) -> Result<()> {
        let mut whole = Whole::of(&self.var);
        match values {
            Span::Host(values) => whole.push(values),
            Span::Cuda(on_device) if self.sharding.place() != Place::Away => {
                let (storage, layout) = self.var.storage_and_layout();
                let Storage::Cuda(storage) = &*storage else {
                    return Err(candelabrum_memory::Error::OnDevice.into());
                };
                return Ok(cuda::round_all(&[(on_device, storage, layout)])?);
            }
            on_device => {
                let mut host = vec![0.0; on_device.len()];
                on_device.copy_to_slice(&mut host)?;
                whole.push(&host);
            }
        }
        whole.put(&self.var)?;
        if self.sharding.place() == Place::Away {
            self.sharding.set(Place::Gathered);
        }
        Ok(())
    }

    /// Runs `update` on the values that this process keeps, and returns its result. All other processes do the same with
    /// theirs, together. `update` gets all values in a process that keeps all.
    ///
    /// # Errors
    /// Those of [`Self::update_in_place`], and a failure of another process.
    pub fn update_own<R>(&self, update: impl FnOnce(SpanMut<'_>) -> R) -> Result<R> {
        let Some(shared) = self.sharding.shared() else { return self.update_in_place(update) };
        let result = shared.with_own(true, update)?;
        self.note_update()?;
        if shared.is_kept {
            shared.gather(&self.var)?;
        }
        Ok(result)
    }

    /// [`Self::update_own`] in a step of a distributed optimizer, at the end of which all processes have updated.
    ///
    /// # Errors
    /// Those of [`Self::update_in_place`].
    pub fn update_own_in_step<R>(&self, update: impl FnOnce(SpanMut<'_>) -> R) -> Result<R> {
        let Some(shared) = self.sharding.shared() else { return self.update_in_place(update) };
        let result = shared.with_own(false, update)?;
        self.note_update()?;
        Ok(result)
    }

    /// Says that the values that processes share have changed.
    ///
    /// # Errors
    /// Those of [`Self::release`].
    pub fn note_update(&self) -> Result<()> {
        self.note_change();
        self.release()
    }

    /// Whether the values are here only while they are used ([`Self::shard`] without `is_kept`).
    pub fn is_released(&self) -> bool {
        self.sharding.shared().is_some_and(|shared| !shared.is_kept)
    }

    /// Calls `f` with the place of the first value that this process keeps, and with these values.
    ///
    /// # Errors
    /// Those of [`Self::with_values`].
    pub fn with_own_values<R>(
        &self,
        f: impl FnOnce(usize, Span<'_>) -> candelabrum_memory::Result<R>,
    ) -> Result<R> {
        let Some(shared) = self.sharding.shared() else { return self.with_values(|all| f(0, all)) };
        let start = shared.values.own(shared.number).start;
        Ok(shared.with_own(false, |values| f(start, values.as_span()))??)
    }

    /// Makes fused operations that are created from now on report to
    /// [`FlatGradients`](crate::FlatGradients) when the gradient of this parameter is complete.
    ///
    /// # Errors
    /// Only candle's own.
    pub fn watch(&self) -> Result<()> {
        self.watch.begin(&self.var, &self.name)?;
        Ok(())
    }

    /// A copy of the values as a tensor of this step's graph. With it, the gradient of candle's own
    /// operations is known in the middle of the backward pass instead of at its end. Make one copy
    /// per step and use it wherever the step uses the parameter.
    ///
    /// # Errors
    /// On the CPU, a parameter that is neither f32 nor f64.
    pub fn identity(&self) -> Result<Tensor> {
        self.arrive();
        self.note_use();
        if self.is_frozen() {
            return Ok(self.freeze.tensor(&self.var).clone());
        }
        Ok(hooks::identity(&self.var, self.watch.begin(&self.var, &self.name)?)?)
    }

    /// Runs `update` on the values in place, without a copy and outside of the graph, and returns
    /// its result. For a parameter in f16 or bf16, `update` gets the *master*, the values in f32. The
    /// parameter is then the master rounded to nearest. From now on, a backward pass through a fused operation that used the old values
    /// is an error, if the parameter was [watched](Self::watch) when the operation ran.
    ///
    /// # Errors
    /// A parameter that is neither f32 nor f16 nor bf16.
    pub fn update_in_place<R>(&self, update: impl FnOnce(SpanMut<'_>) -> R) -> Result<R> {
        self.await_arrival();
        self.write(update)
    }

    fn write<R>(&self, update: impl FnOnce(SpanMut<'_>) -> R) -> Result<R> {
        self.note_change();
        if let Some(shared) = self.sharding.shared() {
            let mut all = shared.read(&self.var)?;
            let result = update(all.span_mut()?);
            self.write_own(&shared, &all)?;
            return Ok(result);
        }
        if master::is_half(self.var.dtype()) {
            return Ok(self.master.update(&self.var, update)?);
        }
        Ok(with_variable(&self.var, |values| match values {
            VariableValues::F32(values) => Ok(update(values)),
            VariableValues::F64(_) => bail!("a parameter in f64 cannot be updated in place"),
        })?)
    }

    /// Takes this process's share of new values. Other processes take theirs, of what they were given.
    fn write_own(&self, shared: &Shared, values: &Flat) -> Result<()> {
        let own = values.range(shared.values.own(shared.number))?;
        Ok(self.update_own(|mut place| place.copy_from(own))??)
    }

    /// [`Self::update_in_place`] for several different parameters on one GPU: `update` gets the values
    /// of all of them at once, in the order of `params`.
    ///
    /// # Errors
    /// A parameter that is neither f32 nor f16 nor bf16, or not on a GPU.
    pub fn update_together<R>(
        params: &[&Self],
        update: impl FnOnce(Vec<SpanMut<'_>>) -> R,
    ) -> Result<R> {
        for param in params {
            param.arrive();
            param.note_change();
        }
        let params: Vec<_> = params.iter().map(|param| (&param.var, &param.master)).collect();
        Ok(update_together(&params, update)?)
    }

    /// The bytes of the values that the variable has, and of the master if there is one by now.
    pub(super) fn bytes(&self) -> usize {
        let master = self.master.lock();
        let is_here = self.sharding.place() != Place::Away;
        let values = if is_here { tensor_bytes(&self.var) } else { 0 };
        values + master.as_ref().map_or(0, Flat::byte_len)
    }

    /// Calls `f` with the values that updates change: those of an f32 parameter, or the master of a
    /// parameter in f16 or bf16.
    ///
    /// # Errors
    /// A parameter of another type. The error of `f`.
    pub fn with_values<R>(
        &self,
        f: impl FnOnce(Span<'_>) -> candelabrum_memory::Result<R>,
    ) -> Result<R> {
        self.await_arrival();
        let f = |values: Span<'_>| f(values).map_err(candle_core::Error::from);
        let is_rounded = master::is_half(self.var.dtype());
        if let Some(shared) = self.sharding.shared()
            && (is_rounded || self.sharding.place() == Place::Away)
        {
            return Ok(f(shared.read(&self.var)?.span()?)?);
        }
        Ok(if master::is_half(self.var.dtype()) {
            self.master.read(&self.var, f)?
        } else {
            with_span(&self.var, f)?
        })
    }

    /// Copies `value` into the parameter.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if shape or element type differ. [`Error::Lora`] while an adapter is merged that has this
    /// parameter, or is merged into it: the weight would no longer be the sum of both.
    pub fn set(&self, value: &Tensor) -> Result<()> {
        if self.is_merged() {
            let what = format!(
                "new values of `{}` while its adapter is merged: call `LoraLayers::unmerge` before",
                self.name
            );
            return Err(Error::Lora { what });
        }
        if value.shape() != self.var.shape() || value.dtype() != self.var.dtype() {
            return Err(Error::Mismatch {
                name: self.name.to_string(),
                expected: self.var.shape().clone(),
                expected_dtype: self.var.dtype(),
                got: value.shape().clone(),
                got_dtype: value.dtype(),
            });
        }
        self.await_arrival();
        self.note_change();
        self.master.forget();
        if let Some(shared) = self.sharding.shared() {
            return self.write_own(&shared, &to_flat(value)?);
        }
        Ok(self.var.set(&value.detach())?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use candle_core::{DType, Device};

    use super::*;
    use crate::{Init, Params};

    #[test]
    fn expected_values_are_there_at_the_first_access_and_not_before() -> Result<()> {
        let params = Params::new(0);
        let param = params.root().param("w", 2, Init::ZEROS)?;
        let written = Arc::new(AtomicU64::new(0));
        let expect = |value: f32| {
            let written = Arc::clone(&written);
            param.clone().expect(move |mut values| {
                written.fetch_add(1, Ordering::Relaxed);
                values.fill(value).expect("memory of the host");
            });
        };
        let values = || param.tensor().to_vec1::<f32>();
        expect(1.0);
        assert_eq!(written.load(Ordering::Relaxed), 0);
        assert_eq!(values()?, [1.0, 1.0]);
        assert_eq!(values()?, [1.0, 1.0]);
        assert_eq!(written.load(Ordering::Relaxed), 1);
        expect(2.0);
        expect(3.0);
        let flat = param.with_values(|values| values.to_flat())?;
        assert_eq!(flat.to_vec::<f32>().map_err(candle_core::Error::from)?, [3.0, 3.0]);
        expect(4.0);
        assert_eq!(param.var().to_vec1::<f32>()?, [4.0, 4.0]);
        expect(5.0);
        param.update_in_place(|mut values| values.scale(2.0))?.map_err(candle_core::Error::from)?;
        assert_eq!((values()?, written.load(Ordering::Relaxed)), (vec![10.0, 10.0], 4));
        Ok(())
    }

    #[test]
    fn a_use_is_an_access_to_the_tensor() -> Result<()> {
        let params = Params::new(0);
        let param = params.root().param("w", 2, Init::ZEROS)?;
        assert!(!param.take_use());
        param.var();
        param.with_values(|_| Ok(()))?;
        assert!(!param.take_use());
        params.list()[0].tensor();
        assert!(param.take_use() && !param.take_use());
        Ok(())
    }

    #[test]
    fn a_value_of_another_shape_is_refused() -> Result<()> {
        let params = Params::new(0);
        let param = params.root().param("w", (2, 3), Init::ZEROS)?;
        let value = Tensor::zeros((3, 2), DType::F32, &Device::Cpu)?;
        assert!(param.set(&value).unwrap_err().to_string().contains("`w`"));
        Ok(())
    }
}
