//! An optimizer that trains through a store: gradients are pushed to the servers, which update the
//! parameters, and the new parameters are pulled.
//!
//! Each parameter is a key. During the backward pass a gradient leaves as soon as it is complete, by
//! the same hooks as the buckets of an all-reduce. The first layers' keys have the highest priority,
//! because the next forward pass needs them first. With [`StoreOptConfig::overlap_forward`] the pulled
//! values are awaited where the forward pass first uses the parameter ([`Param::expect`]), so they travel
//! while the next batch is prepared and earlier layers compute.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use candelabrum_dist::{
    BufferSync, Constants, OptimizerMemory, StepFigures, StepWeight, TrainableParams,
    check_consistency, synchronize_buffers,
};
use candelabrum_memory::{ElementType, FlatTensor, Location, Span, SpanMut};
use candelabrum_nn::{
    BackwardAndUpdate, BucketPlan, DistOption, FlatGradients, LossWeight, MissingGradients, Param,
    Params,
};
use candelabrum_optim::{ParamInfo, Recipe};
use candle_core::{DType, Tensor};
use parking_lot::Mutex;

use crate::codec::Compression;
use crate::config::StoreKind;
use crate::store::{KvStore, PendingPull};
use crate::values::PushValues;
use crate::{Error, Result};

/// The settings of a [`StoreOpt`].
#[derive(Clone, Debug, PartialEq, Default)]
pub struct StoreOptConfig {
    /// Whether a parameter may have no gradient in a step. Its gradient is then zero.
    pub allow_unused: bool,
    /// The treatment of buffers, for instance the running statistics of a batch normalisation, by
    /// [`StoreOpt::average_parameters`].
    pub buffers: BufferSync,
    /// The compression of gradients in a step whose `dist_option` is fp32. Other options choose the
    /// compression themselves.
    pub compression: Compression,
    /// Whether the next forward pass may begin before the new values have arrived: the first access to a parameter
    /// ([`Param::tensor`]) waits for its values. Set it for a model on the CPU that keeps no tensors of its parameters over
    /// a step: see [`DistOptConfig::overlap_forward`](candelabrum_dist::DistOptConfig::overlap_forward).
    pub overlap_forward: bool,
}

/// Trains the parameters of a model through a [`KvStore`], as [`candelabrum_dist::DistOpt`] trains
/// them through an all-reduce.
///
/// In dist_sync the servers divide the sum of the workers' gradients by their number, so the updates
/// are those of an all-reduce: the same bits, for an optimizer that treats each element alone. In
/// dist_async each gradient is an update, so a step of W workers is W updates with the learning rate of
/// one.
///
/// A step with a strategy that the store does not have, or with a loss that is not finite, is refused before
/// anything leaves. After another error the step cannot be repeated, because servers may have a part of its
/// gradients: every later step returns the same error.
pub struct StoreOpt {
    store: KvStore,
    params: Params,
    config: StoreOptConfig,
    recipe: Recipe,
    /// The parameters that are keys of the store.
    keys: usize,
    /// Made at the first step, when every parameter exists.
    gradients: Option<FlatGradients>,
    /// The parameters of [`Self::gradients`].
    trained: Option<TrainableParams>,
    /// What the losses of the coming step count. Losses before the last one are in the buckets.
    weight: StepWeight,
    /// The parameters that were frozen at the last step.
    frozen: Vec<usize>,
    constants: Constants,
    /// The first error of a step, or of values that were awaited in a forward pass.
    failure: Arc<Mutex<Option<Error>>>,
    figures: BTreeMap<String, StepFigures>,
    notes: Vec<String>,
    /// The time that this worker had waited for servers by the end of the last step.
    waited: Duration,
    steps: u64,
}

impl StoreOpt {
    /// Trains `params` by `optimizer`, which the servers run. Parameters that exist now become keys,
    /// with the first worker's values. A layer with inferred sizes creates its parameters at the first
    /// call, so run [`candelabrum_nn::Model::compile`] first, or call [`Self::synchronize`] after it.
    ///
    /// # Errors
    /// Workers with different optimizers or parameters, settings without meaning, a failure of another
    /// rank, or a passed deadline.
    pub fn new(optimizer: impl Into<Recipe>, params: &Params, store: &KvStore) -> Result<Self> {
        Self::with_config(optimizer, params, store, StoreOptConfig::default())
    }

    /// As [`Self::new`], with other settings.
    ///
    /// # Errors
    /// Those of [`Self::new`].
    pub fn with_config(
        optimizer: impl Into<Recipe>,
        params: &Params,
        store: &KvStore,
        config: StoreOptConfig,
    ) -> Result<Self> {
        config.compression.check()?;
        let recipe = optimizer.into();
        // With equal dropout masks on all workers, a sum would contain the same noise several times.
        params.suggest_noise_stream(store.rank() as u64);
        let divide_by = match store.config().kind {
            StoreKind::DistAsync => 1.0,
            StoreKind::Local | StoreKind::DistSync => store.num_workers() as f32,
        };
        store.set_optimizer(recipe.clone(), divide_by)?;
        let mut opt = Self {
            store: store.clone(),
            params: params.clone(),
            config,
            recipe,
            keys: 0,
            gradients: None,
            trained: None,
            weight: StepWeight::default(),
            frozen: Vec::new(),
            constants: Constants::default(),
            failure: Arc::default(),
            figures: BTreeMap::new(),
            notes: Vec::new(),
            waited: Duration::ZERO,
            steps: 0,
        };
        opt.synchronize()?;
        Ok(opt)
    }

    /// The servers' optimizer in a line, with its settings.
    pub fn describe_optimizer(&self) -> String {
        self.recipe.build().describe()
    }

    /// The memory of the model and of its gradients on this worker. The state of the optimizer is on the servers.
    pub fn memory(&self) -> OptimizerMemory {
        let mut memory = OptimizerMemory::of_params(&self.params);
        if let Some(gradients) = &self.gradients {
            gradients.each_bucket(&mut |bucket| memory.add_gradients([bucket]));
        }
        memory
    }

    /// The store.
    pub fn store(&self) -> &KvStore {
        &self.store
    }

    /// The parameters that this optimizer updates.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The settings.
    pub fn config(&self) -> &StoreOptConfig {
        &self.config
    }

    /// The number of steps that this worker has taken.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Continues as after `steps` steps of this worker.
    pub fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
    }

    /// Sets all parameters to the store's values, after [`KvStore::load_optimizer_states`]. All workers call it
    /// together.
    ///
    /// # Errors
    /// A failure of another rank, or a passed deadline.
    pub fn pull_parameters(&mut self) -> Result<()> {
        self.pull_all()
    }

    /// Makes parameters that are not keys yet keys with the first worker's values, then sets all
    /// parameters to the store's values and all buffers to the first worker's. All workers call it
    /// together.
    ///
    /// # Errors
    /// Those of [`Self::new`], and a parameter that is neither f32 nor f16 nor bf16.
    pub fn synchronize(&mut self) -> Result<()> {
        let params = self.params.list();
        for param in &params {
            if !matches!(param.var().dtype(), DType::F32 | DType::F16 | DType::BF16) {
                let (name, dtype) = (param.name().to_owned(), format!("{:?}", param.var().dtype()));
                return Err(candelabrum_dist::Error::ParameterType { name, dtype }.into());
            }
            param.watch().map_err(from_nn)?;
            param.forget_use();
        }
        let new = params[self.keys..]
            .iter()
            .map(|param| (param.name().into(), param.var().as_detached_tensor()));
        self.store.init_all(new)?;
        self.keys = params.len();
        self.pull_all()?;
        Ok(synchronize_buffers(&self.params, &**self.store.workers(), BufferSync::Broadcast)?)
    }

    /// Sets all parameters to the store's values now.
    fn pull_all(&mut self) -> Result<()> {
        let params = self.params.list();
        let pulls = params
            .iter()
            .enumerate()
            .map(|(number, param)| self.store.pull(param.name(), priority(number)));
        let pulls = pulls.collect::<Result<Vec<_>>>()?;
        for (param, pull) in params.iter().zip(pulls) {
            param.update_in_place(|values| write(pull, values)).map_err(from_nn)??;
        }
        Ok(())
    }

    /// Makes the parameters of all workers those that the store has now: call it before an evaluation,
    /// before a checkpoint and at the end, on all workers. No worker goes on before all have them.
    /// Buffers are treated as [`StoreOptConfig::buffers`] says.
    ///
    /// # Errors
    /// The error of an earlier step, a failure of another rank, or a passed deadline.
    pub fn average_parameters(&mut self) -> Result<()> {
        self.params.list().iter().try_for_each(Param::gather).map_err(from_nn)?;
        self.check_failure()?;
        if self.store.config().kind == StoreKind::DistAsync {
            self.store.barrier()?;
            self.pull_all()?;
            self.store.barrier()?;
        }
        let workers = &**self.store.workers();
        Ok(synchronize_buffers(&self.params, workers, self.config.buffers)?)
    }

    /// Returns an error if no step could use this strategy.
    ///
    /// # Errors
    /// A strategy that a store does not have, or a `spars` out of range.
    pub fn check(&self, option: DistOption, spars: f32) -> Result<()> {
        Self::check_option(option, spars)
    }

    /// [`Self::check`] before there is a store.
    ///
    /// # Errors
    /// Those of [`Self::check`].
    pub fn check_option(option: DistOption, spars: f32) -> Result<()> {
        compression(option, spars, Compression::None).map(drop)
    }

    /// The cost so far of a strategy's steps.
    pub fn figures(&self, option: DistOption) -> StepFigures {
        self.figures.get(&option.to_string()).copied().unwrap_or_default()
    }

    /// The Euclidean norm of what compression has not sent yet.
    pub fn residual_norm(&self) -> f64 {
        self.store.residual_norm()
    }

    /// The notes for the user since the last call.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Sets the total weight of all losses of this worker's next step: see
    /// [`DistOpt::begin_step`](candelabrum_dist::DistOpt::begin_step). In dist_async workers exchange no weights.
    pub fn begin_step(&mut self, weight: f64) {
        let workers = self.store.workers();
        if self.is_averaged() && workers.world_size() > 1 {
            self.weight.begin(weight, workers);
        }
    }

    /// Whether an update is made of the gradients of all workers.
    fn is_averaged(&self) -> bool {
        self.store.config().kind != StoreKind::DistAsync
    }

    /// Adds the gradients of `loss` to those of the next step, without communication. Divide each of `k` losses by
    /// `k`. Where they differ in what they count, give each its [weight](candelabrum_nn::weighted).
    ///
    /// # Errors
    /// The error of an earlier step, an error of the backward pass, or a loss that is not finite.
    pub fn accumulate(&mut self, loss: &Tensor) -> Result<()> {
        self.check_failure()?;
        let result = self.accumulate_now(loss);
        result.inspect_err(|error| self.fail(error))
    }

    fn accumulate_now(&mut self, loss: &Tensor) -> Result<()> {
        self.check_loss(loss)?;
        let is_first = !self.weight.has_losses();
        let weight = LossWeight::from_loss(loss);
        let share = self.weight.add(weight.as_ref())?;
        let gradients = self.bound()?;
        if is_first {
            gradients.clear();
        }
        gradients.backward(&StepWeight::scaled(loss, share)?)?;
        check_weight(gradients, weight.as_ref())
    }

    /// The share of a step's last loss, and the factor of the gradients before it. `None` if nothing counts in the
    /// step.
    fn share(&mut self, weight: Option<&LossWeight>) -> Result<Option<(f64, f64)>> {
        let share = self.weight.add(weight)?;
        let factor = if self.is_averaged() {
            self.weight.check()?;
            let workers = self.store.workers();
            let total = self.weight.total(workers, false)?;
            if total.sum == 0.0 {
                self.weight = StepWeight::default();
                return Ok(None);
            }
            self.weight.finish(workers, total)
        } else {
            self.weight.finish_alone()
        };
        Ok(Some((share * factor, factor)))
    }

    fn check_failure(&self) -> Result<()> {
        self.failure.lock().clone().map_or(Ok(()), Err)
    }

    fn fail(&self, error: &Error) {
        self.failure.lock().get_or_insert_with(|| error.clone());
    }

    fn check_loss(&self, loss: &Tensor) -> Result<()> {
        let value = loss.detach().to_dtype(DType::F32)?.to_scalar::<f32>()?;
        if value.is_finite() {
            return Ok(());
        }
        let everyone = self.store.workers();
        Err(Error::Loss { rank: everyone.ranks()[everyone.rank()] })
    }

    /// The digest of what the model has from its files and nothing trains: [`Constants::sha256`].
    ///
    /// # Errors
    /// Values that cannot be read.
    pub fn constants_sha256(&mut self) -> Result<Option<String>> {
        Ok(self.constants.sha256(&self.params)?)
    }

    /// Compares the parameters that have been frozen since the last step: a worker that pushes no gradient of one
    /// would make the others wait. Parameters that were frozen at the first step have no bucket.
    fn agree_on_frozen(&mut self) -> Result<()> {
        let Some(trained) = &self.trained else { return Ok(()) };
        trained.check(&self.params)?;
        let frozen = trained.frozen();
        if frozen == self.frozen {
            return Ok(());
        }
        let names = frozen.iter().map(|number| trained.params()[*number].name());
        let names = names.collect::<Vec<_>>().join(", ");
        if self.is_averaged() {
            let facts = [("the frozen parameters".to_owned(), names)];
            check_consistency(&**self.store.workers(), &facts)?;
        }
        self.frozen = frozen;
        Ok(())
    }

    /// The buckets, one per parameter.
    fn bound(&mut self) -> Result<&mut FlatGradients> {
        if self.params.len() > self.keys {
            self.synchronize()?;
        }
        if self.gradients.is_none() {
            let trained = TrainableParams::from_params(&self.params)?;
            let params = Arc::clone(trained.params());
            let infos: Vec<(&str, Vec<usize>)> =
                params.iter().map(|param| (param.name(), param.var().dims().to_vec())).collect();
            let infos: Vec<_> =
                infos.iter().map(|(name, dims)| ParamInfo::on_host(name, dims)).collect();
            self.recipe.check(&infos)?;
            let (mut plans, mut buckets) = (Vec::new(), Vec::new());
            for (number, param) in params.iter().enumerate() {
                let mut plan = BucketPlan::default();
                let (var, len) = (param.var(), param.var().elem_count());
                plan.push(number, len);
                plans.push(plan);
                let location = Location::from_device(var.device());
                buckets.push(FlatTensor::zeros_on(&location, ElementType::F32, len)?);
            }
            self.gradients = Some(FlatGradients::new(params, plans, buckets)?);
            self.trained = Some(trained);
        }
        self.gradients.as_mut().ok_or_else(|| candelabrum_dist::Error::NoParameters.into())
    }

    fn step(&mut self, loss: &Tensor, option: DistOption, compression: Compression) -> Result<()> {
        let before = self.store.traffic();
        let (allow_unused, accumulated) = (self.config.allow_unused, self.weight.has_losses());
        // Also in a step that is left out: what is frozen later has a bucket on every worker or on none.
        self.bound()?;
        let weight = LossWeight::from_loss(loss);
        let Some((share, factor)) = self.share(weight.as_ref())? else {
            let step = self.steps;
            self.notes.push(format!(
                "step {step} was left out: nothing counts in its global batch (are all rows ignored?)"
            ));
            self.params.keep_buffers();
            self.steps += 1;
            *self.figures.entry(option.to_string()).or_default() +=
                StepFigures { steps: 1, skipped: 1, ..StepFigures::default() };
            return Ok(());
        };
        let needs_weight = accumulated || self.is_averaged() && self.store.num_workers() > 1;
        self.agree_on_frozen()?;
        let store = self.store.clone();
        let gradients = self.bound()?;
        if !accumulated {
            gradients.clear();
        } else if factor as f32 != 1.0 {
            for (_, bucket) in gradients.buckets() {
                bucket.span_mut()?.scale(factor as f32)?;
            }
        }
        let loss = &StepWeight::scaled(loss, share)?;
        let start = Instant::now();
        let params = Arc::clone(gradients.params());
        let mut sender = Sender::new(store, Arc::clone(&params), compression);
        let mut take = |index, bucket| Ok(sender.take(index, bucket)?);
        let passed = gradients.observed_backward(loss, Some(&mut take));
        let early = sender.taken.len() as u64;
        for (index, bucket) in sender.taken.drain(..) {
            gradients.put(index, bucket);
        }
        passed?;
        if needs_weight {
            check_weight(gradients, weight.as_ref())?;
        }
        let backward = start.elapsed().saturating_sub(sender.spent);
        if allow_unused {
            gradients.zero_rest()?;
        } else if let Some(MissingGradients { names, why }) = gradients.missing(loss) {
            return Err(Error::NoGradient { names, why });
        }
        for index in 0..params.len() {
            if sender.pulls[index].is_none() && !params[index].is_frozen() {
                sender.push(index, gradients.bucket(index)?)?;
            }
        }
        let mut received = Ok(());
        for (param, pull) in params.iter().zip(sender.pulls) {
            let Some(pull) = pull.filter(|_| received.is_ok()) else { continue };
            if self.config.overlap_forward && param.device().is_cpu() && !param.is_given() {
                let (failure, mut pull) = (Arc::clone(&self.failure), Some(pull));
                let fetch = move |values: SpanMut<'_>| {
                    if let Some(Err(error)) = pull.take().map(|pull| write(pull, values)) {
                        failure.lock().get_or_insert(error);
                    }
                    // After any failure the values are no longer those of one model.
                    Ok(failure.lock().clone().map_or(Ok(()), Err)?)
                };
                param.expect(fetch).map_err(from_nn)?;
            } else {
                let written = param.update_in_place(|values| write(pull, values)).map_err(from_nn);
                received = written.and_then(|written| written);
            }
        }
        received.inspect_err(|error| {
            // Some parameters have new values and others have not.
            params.iter().for_each(|param| param.lose(error.clone()));
        })?;
        self.params.keep_buffers();
        self.steps += 1;
        let (traffic, waited) = (self.store.traffic() - before, self.store.waited());
        *self.figures.entry(option.to_string()).or_default() += StepFigures {
            steps: 1,
            buckets: params.len() as u64,
            early_buckets: early,
            bytes_sent: traffic.bytes_sent,
            bytes_received: traffic.bytes_received,
            backward,
            compress: sender.spent,
            communication: traffic.busy,
            exposed: waited - std::mem::replace(&mut self.waited, waited),
            ..StepFigures::default()
        };
        Ok(())
    }
}

impl BackwardAndUpdate for StoreOpt {
    type Error = Error;

    fn backward_and_update_with(
        &mut self,
        loss: &Tensor,
        dist_option: DistOption,
        spars: f32,
    ) -> Result<()> {
        self.check_failure()?;
        // A step that is refused before anything leaves may be repeated.
        let checked = compression(dist_option, spars, self.config.compression)
            .and_then(|compression| self.check_loss(loss).map(|()| compression));
        let result = checked.and_then(|compression| {
            let result = self.step(loss, dist_option, compression);
            result.inspect_err(|error| self.fail(error))
        });
        // The failed batch leaves no trace in running statistics.
        result.inspect_err(|_| drop(self.params.restore_buffers()))
    }
}

impl fmt::Debug for StoreOpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreOpt({} keys of {:?})", self.keys, self.store)
    }
}

/// Pushes the gradients of one step.
struct Sender {
    store: KvStore,
    params: Arc<[Param]>,
    compression: Compression,
    /// By parameter.
    pulls: Vec<Option<PendingPull>>,
    /// Buckets that left the backward pass early.
    taken: Vec<(usize, FlatTensor)>,
    /// Time in pushes.
    spent: Duration,
}

impl Sender {
    fn new(store: KvStore, params: Arc<[Param]>, compression: Compression) -> Self {
        let pulls = params.iter().map(|_| None).collect();
        Self { store, params, compression, pulls, taken: Vec::new(), spent: Duration::ZERO }
    }

    fn take(&mut self, index: usize, bucket: FlatTensor) -> Result<()> {
        let pushed = self.push(index, &bucket);
        self.taken.push((index, bucket));
        pushed
    }

    /// Pushes a gradient, and asks for the updated parameter.
    fn push(&mut self, index: usize, bucket: &FlatTensor) -> Result<()> {
        let start = Instant::now();
        let copy = if bucket.is_on_device() { Some(bucket.to_host()?) } else { None };
        let values = PushValues::Slice(copy.as_ref().unwrap_or(bucket).as_slice()?);
        let name = self.params[index].name();
        let pull = self.store.pushpull_with(name, values, priority(index), self.compression)?;
        self.pulls[index] = Some(pull);
        self.spent += start.elapsed();
        Ok(())
    }
}

/// Returns an error if a part of the loss counts rows, and the loss does not say how many.
fn check_weight(gradients: &FlatGradients, weight: Option<&LossWeight>) -> Result<()> {
    if gradients.met_varying_loss() && !weight.is_some_and(LossWeight::varies) {
        return Err(candelabrum_dist::Error::UnknownWeight.into());
    }
    Ok(())
}

/// The first parameters are needed first.
fn priority(number: usize) -> i32 {
    i32::try_from(number).map_or(i32::MIN, |number| -number)
}

/// The compression of a strategy's gradients.
fn compression(option: DistOption, spars: f32, config: Compression) -> Result<Compression> {
    let own = match option {
        DistOption::Fp32 => config,
        DistOption::Fp16 => Compression::Fp16,
        DistOption::Bf16 => Compression::Bf16,
        DistOption::SparseTopK => Compression::TopK { share: spars },
        DistOption::SparseThreshold => Compression::Threshold { magnitude: spars },
        other => {
            return Err(Error::Setting {
                setting: "the dist option",
                value: other.to_string(),
                range: "a store has fp32, fp16, bf16, sparseTopK and sparseThreshold: servers have \
                        the only parameters, so there is nothing to average",
            });
        }
    };
    own.check()?;
    Ok(own)
}

fn write(pull: PendingPull, values: SpanMut<'_>) -> Result<()> {
    match values {
        SpanMut::Host(values) => pull.wait_into(values),
        mut values => {
            let mut copy = vec![0.0; values.len()];
            pull.wait_into(&mut copy)?;
            Ok(values.copy_from(Span::Host(&copy))?)
        }
    }
}

fn from_nn(error: candelabrum_nn::Error) -> Error {
    candle_core::Error::from(error).into()
}
