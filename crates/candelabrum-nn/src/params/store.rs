//! The parameters of a model in their order, and the state that its layers share.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use candle_core::{DType, Device, Var};
use candle_nn::VarMap;

use super::blocks::{BlockPlace, ShardedBlocks};
use super::buffers::{self, Buffer};
use super::initial_values::InitialValues;
use super::param::Param;
use super::quantized::QuantizedMatrix;
use super::recompute::Recompute;
use super::tensors::tensor_bytes;
use super::weight::Weight;
use crate::kernels::product_precision::{ProductPrecision, set_product_precision};
use crate::layer_row::LayerRow;
use crate::statistics_exchange::StatisticsExchange;
use crate::{Error, Result};

/// All parameters of a model, and the state that its layers share: seed, device, training or
/// evaluation mode.
///
/// A cheap handle: clones share one store.
#[derive(Clone)]
pub struct Params(Arc<ParamStore>);

struct ParamStore {
    seed: u64,
    device: Device,
    dtype: DType,
    list: RwLock<Vec<Param>>,
    buffers: RwLock<Vec<Buffer>>,
    /// The matrices of linear layers.
    weights: RwLock<Vec<Weight>>,
    /// Matrices that are no parameters, by their names.
    constants: RwLock<Vec<(String, QuantizedMatrix)>>,
    initial_values: RwLock<Option<Arc<dyn InitialValues>>>,
    training: AtomicBool,
    noise_stream: Mutex<NoiseStream>,
    noise_draws: AtomicU64,
    recompute: RwLock<Recompute>,
    /// The number of blocks so far.
    block_count: AtomicUsize,
    sharded_blocks: ShardedBlocks,
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
        Self(Arc::new(ParamStore {
            seed,
            device: device.clone(),
            dtype,
            list: RwLock::default(),
            buffers: RwLock::default(),
            weights: RwLock::default(),
            constants: RwLock::default(),
            initial_values: RwLock::default(),
            training: AtomicBool::new(true),
            noise_stream: Mutex::new(NoiseStream::Suggested(0)),
            noise_draws: AtomicU64::new(0),
            recompute: RwLock::default(),
            block_count: AtomicUsize::new(0),
            sharded_blocks: ShardedBlocks::default(),
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

    /// Runs `work`, and undoes what other code has written to shared buffers in this time.
    pub(crate) fn keeping_shared_buffers<R>(
        &self,
        work: impl FnOnce() -> R,
    ) -> candle_core::Result<R> {
        let mut kept = Vec::new();
        for buffer in self.buffers() {
            if let Some(value) = buffer.copy_of_shared()? {
                kept.push((buffer, value));
            }
        }
        let result = work();
        kept.iter().try_for_each(|(buffer, value)| buffer.var().set(value))?;
        Ok(result)
    }

    /// Takes the initial values of parameters (not of buffers) that are created from now on from `values`. With `None`, they are drawn
    /// again.
    pub fn set_initial_values(&self, values: Option<Arc<dyn InitialValues>>) {
        let place = &self.0.initial_values;
        *place.write().unwrap_or_else(PoisonError::into_inner) = values;
    }

    pub(super) fn initial_values(&self) -> Option<Arc<dyn InitialValues>> {
        self.0.initial_values.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The matrices of all linear layers, in order of creation. LoRA finds its layers among them.
    pub fn weights(&self) -> Vec<Weight> {
        self.0.weights.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn add_weight(&self, weight: Weight) {
        self.0.weights.write().unwrap_or_else(PoisonError::into_inner).push(weight);
    }

    /// The quantised matrices and their names, in order of creation. They are no parameters: nothing trains them, ranks
    /// do not exchange them, and checkpoints do not contain them.
    pub fn constants(&self) -> Vec<(String, QuantizedMatrix)> {
        self.0.constants.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn insert_constant(&self, name: &str, matrix: &QuantizedMatrix) -> Result<()> {
        let mut constants = self.0.constants.write().unwrap_or_else(PoisonError::into_inner);
        let taken = constants.iter().any(|(other, _)| other == name) || self.get(name).is_ok();
        if taken {
            return Err(Error::DuplicateName { name: name.to_owned() });
        }
        constants.push((name.to_owned(), matrix.clone()));
        Ok(())
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

    /// The bytes of all parameters with their masters in f32, of all buffers, and of the [constants](Self::constants).
    pub fn bytes(&self) -> usize {
        let params = self.list().iter().map(Param::bytes).sum::<usize>();
        let buffers = self.buffers();
        let buffers = buffers.iter().map(|buffer| tensor_bytes(buffer.var()));
        let constants = self.constants();
        params + buffers.chain(constants.iter().map(|(_, matrix)| matrix.bytes())).sum::<usize>()
    }

    /// The number of elements in all parameters together, without [constants](Self::constants).
    pub fn element_count(&self) -> usize {
        self.list().iter().map(|param| param.element_count()).sum()
    }

    /// The number of elements in all [trainable](Self::trainable) parameters together.
    pub fn trainable_count(&self) -> usize {
        self.trainable().iter().map(|param| param.element_count()).sum()
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

    /// Chooses the [blocks](crate::layers::Blocks) that are computed again in the backward pass, from the next forward
    /// pass on.
    pub fn set_recompute(&self, blocks: Recompute) {
        *self.0.recompute.write().unwrap_or_else(PoisonError::into_inner) = blocks;
    }

    /// The blocks that are computed again.
    pub fn recompute(&self) -> Recompute {
        *self.0.recompute.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a model of these parameters has [blocks](crate::layers::Blocks).
    pub fn has_blocks(&self) -> bool {
        self.0.block_count.load(Ordering::Relaxed) > 0
    }

    /// The places of so many more blocks.
    pub(crate) fn add_blocks(&self, count: usize) -> Vec<BlockPlace> {
        let first = self.0.block_count.fetch_add(count, Ordering::Relaxed);
        let place = |number| BlockPlace::new(self.0.sharded_blocks.clone(), number);
        (first..first + count).map(place).collect()
    }

    /// Says which parameters this process keeps only a part of ([`Param::shard`]), so that the blocks that use them
    /// fetch their values.
    ///
    /// # Errors
    /// A device's error.
    pub fn note_sharded(&self, params: &[Param]) -> Result<()> {
        self.0.sharded_blocks.set(params);
        if self.recompute() == Recompute::All {
            return params.iter().try_for_each(Param::release_from_block);
        }
        // The blocks of the forward pass before did not know that operations of candle need them.
        params.iter().for_each(Param::keep_until_change);
        Ok(())
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

    /// The stream, and the number of the next seed of noise, which counts as drawn.
    pub(super) fn next_noise_draw(&self) -> (u64, u64) {
        let (NoiseStream::Chosen(stream) | NoiseStream::Suggested(stream)) = *self.noise_stream();
        (stream, self.0.noise_draws.fetch_add(1, Ordering::Relaxed))
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

    /// Adds the row of a layer's call, if rows are collected.
    pub(super) fn add_row(&self, row: impl FnOnce() -> LayerRow) {
        if let Some(rows) = self.trace().as_mut() {
            rows.push(row());
        }
    }

    fn trace(&self) -> MutexGuard<'_, Option<Vec<LayerRow>>> {
        self.0.trace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn insert(&self, name: String, var: Var, is_given: bool) -> Result<Param> {
        let mut list = self.0.list.write().unwrap_or_else(PoisonError::into_inner);
        let buffers = self.0.buffers.read().unwrap_or_else(PoisonError::into_inner);
        check_free(&list, &buffers, &name, &var)?;
        let param = Param::new(name, var, is_given);
        list.push(param.clone());
        Ok(param)
    }

    pub(super) fn insert_buffer(&self, buffer: Buffer) -> Result<Buffer> {
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
    let taken = list.iter().map(|param| (param.name(), param.id()));
    let taken =
        taken.chain(buffers.iter().map(|buffer| (buffer.name(), buffer.var().as_tensor().id())));
    for (other, variable) in taken {
        if name == other {
            return Err(Error::DuplicateName { name: name.to_owned() });
        }
        if variable == var.as_tensor().id() {
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
        f.debug_map().entries(shapes.iter().map(|p| (p.name(), p.dims()))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Init;

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
}
