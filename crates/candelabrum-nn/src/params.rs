//! The parameters of a model: named, ordered, seeded.
//!
//! Invariants: Names are unique. Parameters are in the order of their creation, which is the same
//! on all ranks that run the same program. Initial values depend on the seed and on the name, and
//! on nothing else.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use candelabrum_memory::{Span, SpanMut};
use candle_core::{DType, Device, Shape, Tensor, TensorId, Var, bail};
use candle_nn::VarMap;

use crate::arrival::Arrival;
use crate::buffers;
use crate::freeze::Freeze;
use crate::hooks::{self, Watch};
use crate::master::{self, Master};
use crate::ops::{ProductPrecision, set_product_precision};
use crate::tensors::{Values, with_span, with_variable};
use crate::together::update_together;
use crate::{Buffer, Error, Init, LayerRow, Result, StatisticsExchange, seed};

/// One trainable tensor and its name. A cheap handle: clones share the value.
#[derive(Clone, Debug)]
pub struct Param {
    name: Arc<str>,
    var: Var,
    watch: Watch,
    master: Master,
    arrival: Arrival,
    freeze: Freeze,
    /// Whether the variable came from outside, so that a model may keep its tensor.
    is_given: bool,
}

impl Param {
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

    /// The value as a tensor that is part of the graph. That of a [frozen](Self::freeze) parameter is not.
    pub fn tensor(&self) -> &Tensor {
        self.arrive();
        self.arrival.note_use();
        self.freeze.tensor(&self.var)
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

    /// candle's number of the variable.
    pub(crate) fn variable(&self) -> TensorId {
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
    fn arrive(&self) {
        self.arrival.complete(|fetch| {
            // It fails only for a type that no optimizer updates, so that no values are expected.
            drop(self.write(fetch));
        });
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
        self.arrival.note_use();
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
        self.arrive();
        self.write(update)
    }

    fn write<R>(&self, update: impl FnOnce(SpanMut<'_>) -> R) -> Result<R> {
        self.watch.changed(&self.var);
        if master::is_half(self.var.dtype()) {
            return Ok(self.master.update(&self.var, update)?);
        }
        Ok(with_variable(&self.var, |values| match values {
            Values::F32(values) => Ok(update(values)),
            Values::F64(_) => bail!("a parameter in f64 cannot be updated in place"),
        })?)
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
            param.watch.changed(&param.var);
        }
        let params: Vec<_> = params.iter().map(|param| (&param.var, &param.master)).collect();
        Ok(update_together(&params, update)?)
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
        self.arrive();
        let f = |values: Span<'_>| f(values).map_err(candle_core::Error::from);
        Ok(if master::is_half(self.var.dtype()) {
            self.master.read(&self.var, f)?
        } else {
            with_span(&self.var, f)?
        })
    }

    /// Copies `value` into the parameter.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if shape or element type differ.
    pub fn set(&self, value: &Tensor) -> Result<()> {
        if value.shape() != self.var.shape() || value.dtype() != self.var.dtype() {
            return Err(Error::Mismatch {
                name: self.name.to_string(),
                expected: self.var.shape().clone(),
                expected_dtype: self.var.dtype(),
                got: value.shape().clone(),
                got_dtype: value.dtype(),
            });
        }
        self.arrive();
        self.watch.changed(&self.var);
        self.master.forget();
        Ok(self.var.set(&value.detach())?)
    }
}

/// All parameters of a model, and the state that its layers share: seed, device, training or
/// evaluation mode.
///
/// A cheap handle: clones share one store.
#[derive(Clone)]
pub struct Params(Arc<Store>);

struct Store {
    seed: u64,
    device: Device,
    dtype: DType,
    list: RwLock<Vec<Param>>,
    buffers: RwLock<Vec<Buffer>>,
    training: AtomicBool,
    noise_stream: Mutex<NoiseStream>,
    noise_draws: AtomicU64,
    trace: Mutex<Option<Vec<LayerRow>>>,
    statistics_exchange: RwLock<Option<Arc<dyn StatisticsExchange>>>,
    /// Whether a layer has an exchange of its own.
    has_own_exchange: AtomicBool,
}

/// The stream from which noise is drawn, and whether the user chose it.
#[derive(Clone, Copy)]
enum NoiseStream {
    Chosen(u64),
    Suggested(u64),
}

impl Params {
    /// An empty store of f32 parameters on the CPU whose initial values come from `seed`.
    pub fn new(seed: u64) -> Self {
        Self::on(seed, DType::F32, &Device::Cpu)
    }

    /// An empty store of f32 parameters on the CPU, for a training whose products have this precision.
    ///
    /// The precision is not a property of the store: this function [sets](set_product_precision) it for all
    /// products of f32 numbers of this process, whatever their parameters are, until it is set again.
    pub fn with_product_precision(seed: u64, precision: ProductPrecision) -> Self {
        set_product_precision(precision);
        Self::new(seed)
    }

    /// An empty store for `device` and `dtype`.
    pub fn on(seed: u64, dtype: DType, device: &Device) -> Self {
        Self(Arc::new(Store {
            seed,
            device: device.clone(),
            dtype,
            list: RwLock::default(),
            buffers: RwLock::default(),
            training: AtomicBool::new(true),
            noise_stream: Mutex::new(NoiseStream::Suggested(0)),
            noise_draws: AtomicU64::new(0),
            trace: Mutex::default(),
            statistics_exchange: RwLock::default(),
            has_own_exchange: AtomicBool::new(false),
        }))
    }

    /// The variables of a candle `VarMap`, sorted by name.
    ///
    /// The order of `VarMap::all_vars` differs between processes. The order by name is the same on
    /// every rank. Build the model first: the store does not see variables that the map gets later.
    ///
    /// Variables called `running_mean` and `running_var`, below any path, are the statistics of
    /// `candle_nn`'s `BatchNorm`. They become [buffers](Self::buffers): no optimizer updates them and no
    /// weight decay pulls at them, and checkpoints contain them. They share the layer's memory. For other
    /// state that is not trained, see [`Self::from_varmap_with`].
    ///
    /// docs/porting.md shows a whole program, and which layers of `candle_nn` need another one in their
    /// place: some have no backward pass, and the gradient of `max_pool2d` is wrong. A training step
    /// refuses these.
    ///
    /// # Errors
    /// [`Error::SharedVariable`] if the map has one variable under two names.
    pub fn from_varmap(varmap: &VarMap) -> Result<Self> {
        Self::from_varmap_with(varmap, |_| false)
    }

    /// [`Self::from_varmap`], where the variables whose names `is_buffer` selects are buffers, too.
    ///
    /// ```
    /// use candelabrum_nn::Params;
    /// use candle_core::{DType, Device};
    /// use candle_nn::{Init, VarBuilder, VarMap, batch_norm};
    ///
    /// let varmap = VarMap::new();
    /// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    /// let norm = batch_norm(8, 1e-5, vb.pp("norm"))?;
    /// let angles = vb.get_with_hints((4, 8), "angles", Init::Const(0.5))?;
    ///
    /// let params = Params::from_varmap_with(&varmap, |name| name == "angles")?;
    /// let names: Vec<_> = params.buffers().iter().map(|buffer| buffer.name().to_owned()).collect();
    /// assert_eq!(names, ["angles", "norm.running_mean", "norm.running_var"]);
    /// assert_eq!(params.len(), 2); // norm.bias and norm.weight
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Self::from_varmap`], and [`Error::BufferType`].
    pub fn from_varmap_with(varmap: &VarMap, is_buffer: impl Fn(&str) -> bool) -> Result<Self> {
        let mut named: Vec<(String, Var)> = {
            let data = varmap.data().lock().unwrap_or_else(PoisonError::into_inner);
            data.iter().map(|(name, var)| (name.clone(), var.clone())).collect()
        };
        named.sort_by(|a, b| a.0.cmp(&b.0));
        let is_buffer = |name: &str| is_running_statistic(name) || is_buffer(name);
        let (buffers, vars): (Vec<_>, Vec<_>) =
            named.into_iter().partition(|(name, _)| is_buffer(name));
        let params = Self::from_vars(vars)?;
        for (name, var) in buffers {
            params.add_buffer(name, var)?;
        }
        Ok(params)
    }

    /// The given variables as parameters, in the given order, which must be the same on all ranks. The
    /// variables of a map have another order in every process: sort them by name. The store has the element
    /// type and the device of the first variable, or f32 on the CPU if there is none.
    ///
    /// State that is not trained does not belong to `vars`: see [`Self::add_buffer`].
    ///
    /// # Errors
    /// [`Error::DuplicateName`]. [`Error::SharedVariable`] if one variable has two names.
    pub fn from_vars(vars: impl IntoIterator<Item = (impl Into<String>, Var)>) -> Result<Self> {
        let mut vars = vars.into_iter().peekable();
        let params = match vars.peek() {
            Some((_, first)) => Self::on(0, first.dtype(), first.device()),
            None => Self::new(0),
        };
        for (name, var) in vars {
            params.insert(name.into(), var, true)?;
        }
        Ok(params)
    }

    /// Adds a variable of the model as a buffer: state that is not trained, for instance a running mean. The
    /// model may change the variable in its forward pass. If the step then fails, the variable gets the
    /// value that it had after the last step, or after the last
    /// `DistOpt::synchronize` or [`Self::load_weights`]. Call the former after you have changed a variable
    /// by hand.
    ///
    /// # Errors
    /// [`Error::DuplicateName`]. [`Error::SharedVariable`] if the variable is in the store already.
    /// [`Error::BufferType`] for a variable that does not have a floating-point type.
    pub fn add_buffer(&self, name: impl Into<String>, var: Var) -> Result<Buffer> {
        let (name, dtype) = (name.into(), var.dtype());
        if !dtype.is_float() {
            return Err(Error::BufferType { name, dtype });
        }
        self.insert_buffer(Buffer::shared(name.into(), var))
    }

    /// The scope in which a model creates its layers.
    pub fn root(&self) -> Scope {
        Scope { params: self.clone(), path: String::new() }
    }

    /// All parameters, in order.
    pub fn list(&self) -> Vec<Param> {
        self.0.list.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The parameters that are not [frozen](Param::freeze), in order.
    pub fn trainable(&self) -> Vec<Param> {
        self.list().into_iter().filter(|param| !param.is_frozen()).collect()
    }

    /// [Freezes](Param::freeze) all parameters that `choose` selects by their names, and returns their number.
    /// The model must have created them: see [`Model::compile`](crate::Model::compile).
    pub fn freeze(&self, choose: impl Fn(&str) -> bool) -> usize {
        let chosen = self.list().into_iter().filter(|param| choose(param.name()));
        chosen.map(|param| param.freeze()).count()
    }

    /// All buffers (state that is not trained) in order of creation. Ranks that train together do
    /// not average buffers: each rank has the statistics of its own batches.
    pub fn buffers(&self) -> Vec<Buffer> {
        self.0.buffers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes the changes of buffers permanent, after a successful training step.
    pub fn keep_buffers(&self) {
        self.buffers().iter().for_each(Buffer::keep);
    }

    /// Copies the buffers for [`Self::restore_buffers`], which otherwise happens at their first
    /// change. For a step that changes them without the host's knowledge.
    ///
    /// # Errors
    /// Only candle's own.
    pub fn remember_buffers(&self) -> Result<()> {
        Ok(buffers::remember(&self.buffers())?)
    }

    /// Undoes the changes of buffers since the last [`Self::keep_buffers`], after a failed training
    /// step: its batch must leave no trace in running statistics.
    ///
    /// # Errors
    /// Only candle's own.
    pub fn restore_buffers(&self) -> Result<()> {
        self.buffers().iter().try_for_each(Buffer::restore)
    }

    /// The parameter called `name`.
    ///
    /// # Errors
    /// [`Error::UnknownName`], which lists the existing names.
    pub fn get(&self, name: &str) -> Result<Param> {
        let list = self.list();
        list.iter().find(|param| param.name() == name).cloned().ok_or_else(|| Error::UnknownName {
            name: name.to_owned(),
            known: list.iter().map(Param::name).collect::<Vec<_>>().join(", "),
        })
    }

    /// The number of parameters.
    pub fn len(&self) -> usize {
        self.0.list.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether there are no parameters. Layers create theirs at the first call.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of elements in all parameters together.
    pub fn element_count(&self) -> usize {
        self.list().iter().map(|param| param.var().elem_count()).sum()
    }

    /// The device of the parameters.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The element type of new parameters.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// The run's seed.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// Switches layers whose modes differ, as dropout's do, to training.
    pub fn train(&self) {
        self.0.training.store(true, Ordering::Relaxed);
    }

    /// Switches layers whose modes differ to evaluation.
    pub fn eval(&self) {
        self.0.training.store(false, Ordering::Relaxed);
    }

    /// Whether layers are in training mode.
    pub fn is_training(&self) -> bool {
        self.0.training.load(Ordering::Relaxed)
    }

    /// Runs `work` with layers in training or evaluation mode, and restores the previous mode
    /// afterwards.
    pub fn in_mode<R>(&self, training: bool, work: impl FnOnce() -> R) -> R {
        let before = self.0.training.swap(training, Ordering::Relaxed);
        let result = work();
        self.0.training.store(before, Ordering::Relaxed);
        result
    }

    /// Chooses the stream from which noise (dropout masks) is drawn. Initial values do not depend
    /// on it.
    ///
    /// Each data-parallel replica needs its own stream, because otherwise all replicas would drop
    /// the same units. The distributed optimizer sets the stream to the rank's number, unless this
    /// method was called before. Tensor-parallel ranks compute parts of *one* replica on the same
    /// activations, so they need a common stream: call this method with the number of the replica.
    pub fn set_noise_stream(&self, stream: u64) {
        *self.noise_stream() = NoiseStream::Chosen(stream);
    }

    /// Sets the stream unless [`Self::set_noise_stream`] has chosen one. For libraries.
    pub fn suggest_noise_stream(&self, stream: u64) {
        let mut own = self.noise_stream();
        if let NoiseStream::Suggested(_) = *own {
            *own = NoiseStream::Suggested(stream);
        }
    }

    /// The number of seeds of noise (dropout masks) that were drawn so far. With the seed and the
    /// [stream](Self::set_noise_stream) it determines the next ones.
    pub fn noise_draws(&self) -> u64 {
        self.0.noise_draws.load(Ordering::Relaxed)
    }

    /// Continues as after `draws` seeds of noise.
    pub fn set_noise_draws(&self, draws: u64) {
        self.0.noise_draws.store(draws, Ordering::Relaxed);
    }

    fn noise_stream(&self) -> MutexGuard<'_, NoiseStream> {
        self.0.noise_stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From the next forward pass in training on, lets the normalisations of this store use the
    /// statistics of all replicas' batches together, as PyTorch's `convert_sync_batchnorm`. With
    /// `None`, every replica uses its own statistics again.
    pub fn set_statistics_exchange(&self, exchange: Option<Arc<dyn StatisticsExchange>>) {
        let place = &self.0.statistics_exchange;
        *place.write().unwrap_or_else(PoisonError::into_inner) = exchange;
    }

    /// The exchange by which replicas share the statistics of their batches. `None`: each replica
    /// uses its own.
    pub fn statistics_exchange(&self) -> Option<Arc<dyn StatisticsExchange>> {
        self.0.statistics_exchange.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a normalisation of this store exchanges statistics with other replicas: by
    /// [`Self::statistics_exchange`], or by an exchange of its own, which is known from its first call on.
    pub fn exchanges_statistics(&self) -> bool {
        self.0.has_own_exchange.load(Ordering::Relaxed) || self.statistics_exchange().is_some()
    }

    /// Says that a layer has an exchange of its own.
    pub(crate) fn note_own_exchange(&self) {
        self.0.has_own_exchange.store(true, Ordering::Relaxed);
    }

    /// Starts to collect one row per layer call, for [`crate::Model::compile`].
    pub(crate) fn start_trace(&self) {
        *self.trace() = Some(Vec::new());
    }

    /// The rows since [`Self::start_trace`].
    pub(crate) fn take_trace(&self) -> Vec<LayerRow> {
        self.trace().take().unwrap_or_default()
    }

    fn trace(&self) -> MutexGuard<'_, Option<Vec<LayerRow>>> {
        self.0.trace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, name: String, var: Var, is_given: bool) -> Result<Param> {
        let mut list = self.0.list.write().unwrap_or_else(PoisonError::into_inner);
        let buffers = self.0.buffers.read().unwrap_or_else(PoisonError::into_inner);
        check_free(&list, &buffers, &name, &var)?;
        let (watch, master) = (Watch::default(), Master::default());
        let (arrival, freeze) = (Arrival::default(), Freeze::default());
        let name = name.into();
        let param = Param { name, var, watch, master, arrival, freeze, is_given };
        list.push(param.clone());
        Ok(param)
    }

    fn insert_buffer(&self, buffer: Buffer) -> Result<Buffer> {
        // Both locks are taken in the order of `insert`.
        let list = self.0.list.read().unwrap_or_else(PoisonError::into_inner);
        let mut buffers = self.0.buffers.write().unwrap_or_else(PoisonError::into_inner);
        check_free(&list, &buffers, buffer.name(), buffer.var())?;
        buffers.push(buffer.clone());
        Ok(buffer)
    }
}

/// Returns an error if a parameter or buffer has this name, or is this variable.
fn check_free(list: &[Param], buffers: &[Buffer], name: &str, var: &Var) -> Result<()> {
    let taken = list.iter().map(|param| (param.name(), &param.var));
    let taken = taken.chain(buffers.iter().map(|buffer| (buffer.name(), buffer.var())));
    for (other, variable) in taken {
        if name == other {
            return Err(Error::DuplicateName { name: name.to_owned() });
        }
        if variable.id() == var.id() {
            return Err(Error::SharedVariable { first: other.to_owned(), second: name.to_owned() });
        }
    }
    Ok(())
}

/// Whether a variable of this name is a statistic of `candle_nn`'s `BatchNorm`, the only layer there with
/// variables that are not trained.
pub(crate) fn is_running_statistic(name: &str) -> bool {
    matches!(name.rsplit('.').next(), Some("running_mean" | "running_var"))
}

impl fmt::Debug for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shapes = self.list();
        f.debug_map().entries(shapes.iter().map(|p| (p.name(), p.var().shape().dims()))).finish()
    }
}

/// A path into a [`Params`] store, under which a layer creates its parameters.
#[derive(Clone, Debug)]
pub struct Scope {
    params: Params,
    path: String,
}

impl Scope {
    /// The scope `name` below this one, as in candle's `VarBuilder::pp`.
    #[must_use]
    pub fn pp(&self, name: impl fmt::Display) -> Self {
        Self { params: self.params.clone(), path: self.join(&name.to_string()) }
    }

    /// The path so far, joined by dots. Empty at the root.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The store behind the scope.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Creates the parameter `name` of this scope.
    ///
    /// # Errors
    /// [`Error::DuplicateName`] if this name exists already.
    pub fn param(&self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Param> {
        let name = self.join(name);
        let var = self.initial(&name, &shape.into(), self.params.dtype(), init)?;
        self.params.insert(name, var, false)
    }

    /// Creates the buffer `name` of this scope: state that is not trained. Beside parameters in f16
    /// and bf16 it is in f32, because it has no master.
    ///
    /// # Errors
    /// [`Error::DuplicateName`] if a buffer or a parameter has this name.
    pub fn buffer(&self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Buffer> {
        let name = self.join(name);
        let dtype = self.params.dtype();
        let dtype = if master::is_half(dtype) { DType::F32 } else { dtype };
        let var = self.initial(&name, &shape.into(), dtype, init)?;
        self.params.insert_buffer(Buffer::new(name.into(), var))
    }

    fn initial(&self, name: &str, shape: &Shape, dtype: DType, init: Init) -> Result<Var> {
        let store = &self.params.0;
        let mut rng = seed::rng(seed::derive(store.seed, name));
        Ok(Var::from_tensor(&init.tensor(shape, dtype, &store.device, &mut rng)?)?)
    }

    /// Whether layers are in training mode.
    pub fn is_training(&self) -> bool {
        self.params.is_training()
    }

    /// See [`Self::noise_seed`].
    pub(crate) fn next_noise_seed(&self) -> u64 {
        let store = &self.params.0;
        let (NoiseStream::Chosen(stream) | NoiseStream::Suggested(stream)) =
            *self.params.noise_stream();
        let stream = seed::nth(store.seed, stream);
        let draw = store.noise_draws.fetch_add(1, Ordering::Relaxed);
        seed::nth(seed::derive(stream, &self.path), draw)
    }

    /// Adds the layer of this scope with its `output` to the summary, if one is being made.
    pub fn trace(&self, kind: &str, output: &Tensor) {
        self.trace_dims(kind, output.dims());
    }

    /// [`trace`](Self::trace) for an output of which no tensor exists.
    pub(crate) fn trace_dims(&self, kind: &str, dims: &[usize]) {
        if let Some(rows) = self.params.trace().as_mut() {
            rows.push(LayerRow {
                name: self.path.clone(),
                kind: kind.to_owned(),
                output: dims.to_vec(),
            });
        }
    }

    fn join(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_creation_and_values_depend_on_the_name_alone() -> Result<()> {
        let init = Init::Normal { std: 1.0 };
        let forward = Params::new(3);
        let a = forward.root().pp("a").param("weight", 4, init)?;
        let b = forward.root().pp("b").param("weight", 4, init)?;
        let backward = Params::new(3);
        backward.root().pp("b").param("weight", 4, init)?;
        let a2 = backward.root().pp("a").param("weight", 4, init)?;
        let names = |p: &Params| p.list().iter().map(|p| p.name().to_owned()).collect::<Vec<_>>();
        assert_eq!(names(&forward), ["a.weight", "b.weight"]);
        assert_eq!(names(&backward), ["b.weight", "a.weight"]);
        assert_eq!(a.tensor().to_vec1::<f32>()?, a2.tensor().to_vec1::<f32>()?);
        assert_ne!(a.tensor().to_vec1::<f32>()?, b.tensor().to_vec1::<f32>()?);
        Ok(())
    }

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
    fn a_name_can_be_taken_once() -> Result<()> {
        let params = Params::new(0);
        params.root().pp("fc").param("weight", 2, Init::ZEROS)?;
        let error = params.root().pp("fc").param("weight", 2, Init::ZEROS).unwrap_err();
        assert!(error.to_string().contains("`fc.weight`"), "{error}");
        Ok(())
    }

    #[test]
    fn a_varmap_is_sorted_by_name() -> Result<()> {
        let varmap = VarMap::new();
        for name in ["z", "a", "m", "b", "y"] {
            varmap.get(2, name, candle_nn::Init::Const(0.0), DType::F32, &Device::Cpu)?;
        }
        let params = Params::from_varmap(&varmap)?;
        let names: Vec<String> = params.list().iter().map(|p| p.name().to_owned()).collect();
        assert_eq!(names, ["a", "b", "m", "y", "z"]);
        Ok(())
    }

    #[test]
    fn noise_differs_by_call_by_stream_and_by_scope() {
        let params = Params::new(0);
        let scope = params.root().pp("drop");
        let first = scope.noise_seed();
        assert_ne!(first, scope.noise_seed());
        let other = Params::new(0);
        other.set_noise_stream(1);
        assert_ne!(first, other.root().pp("drop").noise_seed());
        let same = Params::new(0);
        assert_eq!(first, same.root().pp("drop").noise_seed());
    }

    #[test]
    fn a_chosen_noise_stream_stays_and_a_suggested_one_is_replaced() {
        let draw = |prepare: &dyn Fn(&Params)| {
            let params = Params::new(0);
            prepare(&params);
            params.root().pp("drop").noise_seed()
        };
        let chosen = draw(&|params| params.set_noise_stream(3));
        assert_eq!(draw(&|params| params.suggest_noise_stream(3)), chosen);
        let suggest_later = |params: &Params| {
            params.set_noise_stream(3);
            params.suggest_noise_stream(5);
        };
        assert_eq!(draw(&suggest_later), chosen);
        let choose_later = |params: &Params| {
            params.suggest_noise_stream(5);
            params.set_noise_stream(3);
        };
        assert_eq!(draw(&choose_later), chosen);
        assert_ne!(draw(&|params| params.suggest_noise_stream(5)), chosen);
    }

    #[test]
    fn variables_give_the_store_their_element_type() -> Result<()> {
        let var = Var::zeros((2, 3), DType::F64, &Device::Cpu)?;
        let params = Params::from_vars([("weight", var)])?;
        assert_eq!(params.dtype(), DType::F64);
        let tensor = params.var_builder().get((2, 3), "weight")?;
        assert_eq!(tensor.dtype(), DType::F64);

        let varmap = VarMap::new();
        varmap.get(2, "bias", candle_nn::Init::Const(0.0), DType::F64, &Device::Cpu)?;
        let params = Params::from_varmap(&varmap)?;
        assert_eq!(params.var_builder().get(2, "bias")?.dtype(), DType::F64);
        assert_eq!(Params::from_vars(Vec::<(String, Var)>::new())?.dtype(), DType::F32);
        Ok(())
    }

    #[test]
    fn a_mode_ends_with_the_work_that_it_is_for() {
        let params = Params::new(0);
        for training in [true, false] {
            if training {
                params.train();
            } else {
                params.eval();
            }
            for during in [true, false] {
                params.in_mode(during, || assert_eq!(params.is_training(), during));
                assert_eq!(params.is_training(), training);
            }
        }
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
