//! A parameter: a trainable tensor with a name.

use std::io::{Write, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use candelabrum_memory::{FlatTensor, Span, SpanMut, cuda};
use candle_core::{DType, Device, Shape, Storage, Tensor, TensorId, Var, bail};

use super::arrival::Arrival;
use super::freeze::Freeze;
use super::master::{self, Master};
use super::sharding::{Residency, Sharded, ShardedValues, Sharding};
use super::tensors::{
    VariableValues, WholeValues, tensor_bytes, to_flat, with_span, with_variable,
};
use super::together::update_together;
use super::uses::ParamUses;
use crate::autograd::hooks::{self, ParamWatch};
use crate::{Error, Result};

/// One trainable tensor and its name. A cheap handle: clones share the value.
#[derive(Clone, Debug)]
pub struct Param {
    name: Arc<str>,
    var: Var,
    watch: ParamWatch,
    master: Master,
    arrival: Arrival,
    freeze: Freeze,
    sharding: Sharding,
    uses: ParamUses,
    /// Whether the user knows that the values could not be fetched.
    is_told: Arc<AtomicBool>,
    is_given: bool,
}

impl Param {
    /// A parameter that nobody watches or expects values for.
    pub(super) fn new(name: String, var: Var, is_given: bool) -> Self {
        let (watch, master) = (ParamWatch::default(), Master::default());
        let (arrival, freeze) = (Arrival::default(), Freeze::default());
        let (sharding, uses, is_told) = Default::default();
        let name = name.into();
        Self { name, var, watch, master, arrival, freeze, sharding, uses, is_told, is_given }
    }

    /// The full name: the layers' names and the parameter's own, joined by dots, as in
    /// `conv1.weight`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the variable came from outside ([`Params::from_varmap`](crate::Params::from_varmap),
    /// [`Params::from_vars`](crate::Params::from_vars)), so that a model may keep tensors of it.
    pub fn is_given(&self) -> bool {
        self.is_given
    }

    /// The variable by which candle differentiates. Where its values should have come from another process and have not,
    /// they are NaN, and standard error says why.
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

    /// The value as a tensor that is part of the graph. That of a [frozen](Self::freeze) parameter is not. It is NaN
    /// where [`Self::var`] is.
    pub fn tensor(&self) -> &Tensor {
        self.arrive();
        self.uses.note();
        self.freeze.tensor(&self.var)
    }

    /// Leaves the parameter out of training: no gradient of it is computed or applied. Freeze it on all ranks
    /// between the same steps.
    ///
    /// A parameter that is frozen before the first step of an optimizer costs no bytes between ranks, unless they keep shards
    /// of it, and the
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
    /// then a variable on the CPU has no values: an operation on a tensor of it that was kept is an error.
    ///
    /// Where `fetch` fails, every access that can returns its error, until the parameter is [set](Self::set) or other
    /// values are expected.
    ///
    /// # Errors
    /// Only candle's own.
    pub fn expect(
        &self,
        fetch: impl FnMut(SpanMut<'_>) -> candle_core::Result<()> + Send + 'static,
    ) -> Result<()> {
        Ok(self.arrival.expect(&self.var, Box::new(fetch))?)
    }

    /// Lets every access fail that can, by `error`, until the parameter is [set](Self::set) or new values are
    /// [expected](Self::expect): what it has is of no use after an exchange that has failed.
    pub fn lose(&self, error: impl Into<candle_core::Error> + Clone + Send + 'static) {
        // Only candle fails here, and then the caller's own error is the one to return.
        drop(self.expect(move |_| Err(error.clone().into())));
    }

    /// Whether [`Self::tensor`] or [`Self::identity`] was called since [`Self::forget_use`]. `None` if the model may use the
    /// parameter without our knowledge.
    pub(crate) fn was_used(&self) -> Option<bool> {
        (!self.is_given).then(|| self.uses.is_used())
    }

    /// Says that the uses so far belong to no step: where a step leaves the parameter without a gradient, its error says
    /// whether the step has used the parameter.
    pub fn forget_use(&self) {
        self.uses.forget();
    }

    /// Waits for values that are on their way.
    fn await_arrival(&self) -> Result<()> {
        self.arrival.complete(&self.var, |fetch| Ok(self.write(fetch)??))
    }

    /// [`Self::gather`] for an access that cannot return an error.
    fn arrive(&self) {
        let Err(error) = self.gather() else { return };
        if !self.is_told.swap(true, Ordering::Relaxed) {
            // candle adds a backtrace, if the user has asked for such.
            let why = error.to_string();
            let why = why.lines().next().unwrap_or_default();
            tell(&format!(
                "error: the values of the parameter `{}` have not come, so they are NaN: {why}",
                self.name
            ));
        }
        let mut bad = WholeValues::from_var(&self.var);
        bad.push(&vec![f32::NAN; self.element_count()]);
        drop(bad.put(&self.var));
    }

    /// Makes sure that the variable has its values: waits for those that are on their way, and fetches those that other
    /// processes keep.
    ///
    /// # Errors
    /// A failure of another process.
    pub fn gather(&self) -> Result<()> {
        self.await_arrival()?;
        if self.sharding.place() == Residency::Away
            && let Some(sharded) = self.sharding.sharded()
        {
            sharded.gather(&self.var)?;
            self.sharding.set(Residency::Gathered);
        }
        Ok(())
    }

    /// From now on this process keeps a part of the values, and other processes the rest: `values` has them, and knows
    /// this parameter by `number`. With `is_kept`, the variable always has the values rounded to its type, and
    /// [`Self::put`] refreshes them. Otherwise it has them only while they are used, from the next pass of its block or
    /// change of its values on.
    pub fn shard(&self, values: Arc<dyn ShardedValues>, number: usize, is_kept: bool) {
        self.sharding.begin(values, number, is_kept);
        self.master.forget();
    }

    /// Undoes [`Self::shard`]: this process has all values again.
    ///
    /// # Errors
    /// A failure of another process.
    pub fn unshard(&self) -> Result<()> {
        let Some(sharded) = self.sharding.sharded() else { return Ok(()) };
        let values = sharded.read(&self.var)?;
        self.put(values.span()?)?;
        self.sharding.end();
        if master::is_half(self.var.dtype()) {
            self.master.set(values);
        }
        Ok(())
    }

    /// Lets the values stay until they change.
    pub(super) fn keep_until_change(&self) {
        self.uses.note_elsewhere();
    }

    /// Whether this process keeps only a part of the values ([`Self::shard`]).
    pub fn is_sharded(&self) -> bool {
        self.sharding.place() != Residency::Here
    }

    /// The number of the only [block](crate::layers::Blocks) that has used the parameter so far, counted from 0 in the
    /// order of the creation of blocks. Uses outside of blocks do not count.
    pub fn block(&self) -> Option<usize> {
        self.uses.block()
    }

    /// The place of the values and what is divided among processes.
    pub(super) fn sharding(&self) -> &Sharding {
        &self.sharding
    }

    /// Gives the memory of the variable back after the values have changed, if other processes keep some of them
    /// ([`Self::shard`] without `is_kept`).
    ///
    /// # Errors
    /// A device's error.
    pub fn release(&self) -> Result<()> {
        self.uses.note_change();
        Ok(self.sharding.release(&self.var)?)
    }

    /// [`Self::release`] after a pass through the parameter's block, unless somebody else may need the values before they
    /// change.
    pub(super) fn release_from_block(&self) -> Result<()> {
        if self.uses.is_elsewhere() { Ok(()) } else { self.release() }
    }

    /// Sets the variable to `values`, rounded to its type, and changes nothing that is divided among processes.
    ///
    /// # Errors
    /// Another number of values, or a device's error.
    pub fn put(&self, values: Span<'_>) -> Result<()> {
        let mut whole = WholeValues::from_var(&self.var);
        match values {
            Span::Host(values) => whole.push(values),
            Span::Cuda(on_device) if self.sharding.place() != Residency::Away => {
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
        if self.sharding.place() == Residency::Away {
            self.sharding.set(Residency::Gathered);
        }
        Ok(())
    }

    /// Runs `update` on the values that this process keeps, and returns its result. All other processes do the same with
    /// theirs, together. `update` gets all values in a process that keeps all.
    ///
    /// # Errors
    /// Those of [`Self::update_in_place`], and a failure of another process.
    pub fn update_own<R>(&self, update: impl FnOnce(SpanMut<'_>) -> R) -> Result<R> {
        let Some(sharded) = self.sharding.sharded() else { return self.update_in_place(update) };
        let result = sharded.with_own(true, update)?;
        self.note_update()?;
        if sharded.is_kept {
            sharded.gather(&self.var)?;
        }
        Ok(result)
    }

    /// [`Self::update_own`] in a step of a distributed optimizer, at the end of which all processes have updated.
    ///
    /// # Errors
    /// Those of [`Self::update_in_place`].
    pub fn update_own_in_step<R>(&self, update: impl FnOnce(SpanMut<'_>) -> R) -> Result<R> {
        let Some(sharded) = self.sharding.sharded() else { return self.update_in_place(update) };
        let result = sharded.with_own(false, update)?;
        self.note_update()?;
        Ok(result)
    }

    /// Says that the divided values have changed.
    ///
    /// # Errors
    /// Those of [`Self::release`].
    pub fn note_update(&self) -> Result<()> {
        self.note_change();
        self.release()
    }

    /// Whether the values are here only while they are used ([`Self::shard`] without `is_kept`).
    pub fn is_released(&self) -> bool {
        self.sharding.sharded().is_some_and(|sharded| !sharded.is_kept)
    }

    /// Calls `f` with the place of the first value that this process keeps, and with these values.
    ///
    /// # Errors
    /// Those of [`Self::with_values`].
    pub fn with_own_values<R>(
        &self,
        f: impl FnOnce(usize, Span<'_>) -> candelabrum_memory::Result<R>,
    ) -> Result<R> {
        let Some(sharded) = self.sharding.sharded() else {
            return self.with_values(|all| f(0, all));
        };
        let start = sharded.values.own(sharded.number).start;
        Ok(sharded.with_own(false, |values| f(start, values.as_span()))??)
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
    /// On the CPU, a parameter that is neither f32 nor f64. Those of [`Self::gather`].
    pub fn identity(&self) -> Result<Tensor> {
        self.gather()?;
        self.uses.note();
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
    /// A parameter that is neither f32 nor f16 nor bf16. A failure of another process that should have sent values.
    pub fn update_in_place<R>(&self, update: impl FnOnce(SpanMut<'_>) -> R) -> Result<R> {
        self.await_arrival()?;
        self.write(update)
    }

    fn write<R>(&self, update: impl FnOnce(SpanMut<'_>) -> R) -> Result<R> {
        self.note_change();
        if let Some(sharded) = self.sharding.sharded() {
            let mut all = sharded.read(&self.var)?;
            let result = update(all.span_mut()?);
            self.write_own(&sharded, &all)?;
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

    /// Takes this process's shard of new values. Other processes take theirs, of what they were given.
    fn write_own(&self, sharded: &Sharded, values: &FlatTensor) -> Result<()> {
        let own = values.range(sharded.values.own(sharded.number))?;
        Ok(self.update_own(|mut place| place.copy_from(own))??)
    }

    /// [`Self::update_in_place`] for several different parameters on one GPU: `update` gets the values
    /// of all of them at once, in the order of `params`.
    ///
    /// # Errors
    /// A parameter that is neither f32 nor f16 nor bf16, or not on a GPU. Those of [`Self::gather`].
    pub fn update_together<R>(
        params: &[&Self],
        update: impl FnOnce(Vec<SpanMut<'_>>) -> R,
    ) -> Result<R> {
        for param in params {
            param.gather()?;
            param.note_change();
        }
        let params: Vec<_> = params.iter().map(|param| (&param.var, &param.master)).collect();
        Ok(update_together(&params, update)?)
    }

    /// The bytes of the values that the variable has, and of the master if there is one by now.
    pub(super) fn bytes(&self) -> usize {
        let master = self.master.lock();
        let is_here = self.sharding.place() != Residency::Away;
        let values = if is_here { tensor_bytes(&self.var) } else { 0 };
        values + master.as_ref().map_or(0, FlatTensor::byte_len)
    }

    /// Calls `f` with the values that updates change: those of an f32 parameter, or the master of a
    /// parameter in f16 or bf16.
    ///
    /// # Errors
    /// A parameter of another type. A failure of another process that should have sent values. The error of `f`.
    pub fn with_values<R>(
        &self,
        f: impl FnOnce(Span<'_>) -> candelabrum_memory::Result<R>,
    ) -> Result<R> {
        self.await_arrival()?;
        let f = |values: Span<'_>| f(values).map_err(candle_core::Error::from);
        let is_rounded = master::is_half(self.var.dtype());
        let Some(sharded) = self.sharding.sharded() else {
            return Ok(match is_rounded {
                true => self.master.read(&self.var, f)?,
                false => with_span(&self.var, f)?,
            });
        };
        let (mut f, mut read) = (Some(f), None);
        if !is_rounded && self.sharding.place() != Residency::Away {
            // Another thread may give the memory back first.
            drop(with_span(&self.var, |values| {
                read = f.take().map(|f| f(values));
                Ok::<_, candle_core::Error>(())
            }));
        }
        match (read, f) {
            (None, Some(f)) => Ok(f(sharded.read(&self.var)?.span()?)?),
            (read, _) => Ok(read.unwrap_or_else(|| bail!("values were not given"))?),
        }
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
        if self.await_arrival().is_err() {
            // The values that have not come are not needed any more.
            self.arrival.cancel(&self.var)?;
        }
        self.note_change();
        self.master.forget();
        if let Some(sharded) = self.sharding.sharded() {
            return self.write_own(&sharded, &to_flat(value)?);
        }
        Ok(self.var.set(&value.detach())?)
    }
}

/// Whoever asked for the values cannot get an error.
fn tell(message: &str) {
    // Without standard error nobody listens.
    drop(writeln!(stderr(), "{message}"));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

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
                Ok(values.fill(value)?)
            })
        };
        let values = || param.tensor().to_vec1::<f32>();
        expect(1.0)?;
        assert_eq!(written.load(Ordering::Relaxed), 0);
        assert_eq!(values()?, [1.0, 1.0]);
        assert_eq!(values()?, [1.0, 1.0]);
        assert_eq!(written.load(Ordering::Relaxed), 1);
        expect(2.0)?;
        expect(3.0)?;
        let flat = param.with_values(|values| values.to_flat())?;
        assert_eq!(flat.to_vec::<f32>().map_err(candle_core::Error::from)?, [3.0, 3.0]);
        expect(4.0)?;
        assert_eq!(param.var().to_vec1::<f32>()?, [4.0, 4.0]);
        expect(5.0)?;
        param.update_in_place(|mut values| values.scale(2.0))?.map_err(candle_core::Error::from)?;
        assert_eq!((values()?, written.load(Ordering::Relaxed)), (vec![10.0, 10.0], 4));
        Ok(())
    }

    #[test]
    fn a_kept_tensor_has_no_old_values_while_new_ones_are_expected() -> Result<()> {
        for dtype in [DType::F32, DType::BF16] {
            let params = Params::on(0, dtype, &Device::Cpu);
            let param = params.root().param("w", (2, 2), Init::Const(1.0))?;
            let kept = param.tensor().clone();
            param.expect(|mut values| Ok(values.fill(2.0)?))?;
            assert!(kept.matmul(&kept).is_err() && kept.sum_all().is_err());
            assert!((&kept + 1.0).is_err() && kept.t()?.contiguous().is_err());
            param.gather()?;
            assert_eq!(kept.to_dtype(DType::F32)?.to_vec2::<f32>()?, [[2.0; 2]; 2]);
        }
        Ok(())
    }

    #[test]
    fn values_that_do_not_come_are_an_error_or_nan_until_they_are_set() -> Result<()> {
        let params = Params::new(0);
        let param = params.root().param("w", 2, Init::ZEROS)?;
        param.expect(|_| Err(candle_core::Error::Msg("lost".to_owned())))?;
        let folder = tempfile::tempdir().expect("a folder");
        let check = |result: Result<()>| {
            let error = result.expect_err("the values have not come").to_string();
            assert!(error.contains("lost"), "{error}");
        };
        for _ in 0..2 {
            check(param.gather());
            check(param.with_values(|_| Ok(())));
            check(param.with_own_values(|_, _| Ok(())));
            check(param.update_in_place(|_| ()));
            check(param.update_own(|_| ()));
            check(param.identity().map(drop));
            check(params.save_weights(folder.path().join("file")));
            assert!(param.tensor().to_vec1::<f32>()?.iter().all(|value| value.is_nan()));
            assert!(param.var().to_vec1::<f32>()?.iter().all(|value| value.is_nan()));
        }
        param.set(&Tensor::new(&[3_f32, 4.0], &Device::Cpu)?)?;
        assert_eq!(param.tensor().to_vec1::<f32>()?, [3.0, 4.0]);
        param.gather()
    }

    #[test]
    fn a_use_is_an_access_to_the_tensor() -> Result<()> {
        let params = Params::new(0);
        let param = params.root().param("w", 2, Init::ZEROS)?;
        param.var();
        param.with_values(|_| Ok(()))?;
        assert_eq!(param.was_used(), Some(false));
        params.list()[0].tensor();
        assert_eq!(param.was_used(), Some(true));
        param.forget_use();
        assert_eq!(param.was_used(), Some(false));
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
