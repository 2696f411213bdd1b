//! The distributed optimizer. It wraps an optimizer, and a strategy makes all ranks agree on every
//! update.
//!
//! | idea | where |
//! |---|---|
//! | one step of any strategy | `step.rs` |
//! | buckets that leave during the backward pass | `bucket_exchange.rs` |
//! | the report of one rank's failure to all ranks | `step_failure.rs` |
//! | updates that can be undone | `undo_log.rs` |
//! | who updates a bucket, and a server's part in steps | `placement.rs`, `server_call.rs`, `served_model.rs` |
//! | the shard of each rank in the optimizer's state and in the averages | `shard.rs`, `sharded_step.rs`, `own_averages.rs`, `averages.rs` |
//! | values of parameters that are divided among ranks, and new values that arrive late | `param_shards.rs`, `arriving.rs` |
//! | ranks that run out of batches | `join.rs` |
//! | how much each loss counts | `../step_weight.rs` |
//! | the factor of the loss | `loss_scale.rs` |
//! | parameters and states that become the same on all ranks | `replicas.rs` |
//! | the passes of a step as CUDA graphs | `recording.rs`, `replay.rs`, `step_graph.rs` |
//! | SINGA's methods under their names | `singa.rs` |
//! | the parameters in buckets | `bucket_sets.rs` |
//! | the strategies used so far, and their state | `used.rs`, `dist_opt_state.rs`, `state.rs` |
//! | the cost of steps, and the memory | `figures.rs`, `memory.rs` |

mod arriving;
mod averages;
mod bucket_exchange;
mod bucket_sets;
mod config;
mod context;
mod dist_opt_state;
mod figures;
mod join;
mod loss_scale;
mod memory;
mod own_averages;
mod param_shards;
mod placement;
mod recording;
mod replay;
mod replicas;
mod served_model;
mod server_call;
mod shard;
mod sharded_step;
mod singa;
mod state;
mod step;
mod step_end;
mod step_failure;
mod step_graph;
mod step_request;
#[cfg(test)]
mod tests;
mod undo_log;
mod used;

pub use config::{DistOptConfig, OnOverflow, Shard};
pub use dist_opt_state::DistOptState;
pub use figures::StepFigures;
pub use loss_scale::LossScale;
pub use memory::OptimizerMemory;
pub use placement::{NewValues, RoundServers, ServerMessages, Servers, UpdateServers};
pub use served_model::StepServer;
pub use state::{OptimizerVector, StrategyState};
pub use step_graph::StepGraph;

use std::path::Path;
use std::sync::Arc;

use candelabrum_memory::Location;
use candelabrum_nn::{BackwardAndUpdate, DistOption, LossWeight, Param, Params};
use candelabrum_optim::{Optimizer, ParamInfo, Recipe};
use candle_core::{DType, Device, Shape, Tensor};

use self::bucket_exchange::BucketExchange;
use self::bucket_sets::{BucketSet, BucketSets, GradientLocation};
use self::context::StepContext;
use self::dist_opt_state::RankDrift;
use self::loss_scale::LossScaler;
use self::placement::{Placement, StepRanks};
use self::recording::RecordingStage;
use self::server_call::ServerCall;
use self::step::{MicroBatch, Step};
use self::step_end::StepEnd;
use self::step_request::StepRequest;
use self::undo_log::UndoLog;
use self::used::{ExchangeKind, UsedStrategies};
use crate::buffers::{BufferSync, synchronize_buffers};
use crate::comm::{Collective, CommStats, Group, Payload, Pending, ReduceOp};
use crate::consistency::{check_consistency, digest, parameter_facts};
use crate::strategy::{self, StrategyConfig, Subject};
use crate::{Constants, Error, Result, StepWeight, TotalWeight, TrainableParams};

/// SINGA's `DistOpt`: wraps an optimizer, so that all ranks make the same update. By default this
/// is the update by the average of all ranks' gradients, and all models stay equal, bit for bit.
/// Another strategy may let the models differ between averages.
///
/// The ranks are those of a world or of any group, for instance the replicas of a model whose
/// layers are split over other ranks.
#[derive(Debug)]
pub struct DistOpt {
    optimizer: Box<dyn Optimizer>,
    params: Params,
    ranks: StepRanks,
    placement: Placement,
    config: DistOptConfig,
    /// The number of parameters that have been set to rank 0's values.
    synchronized: usize,
    constants: Constants,
    /// Created at the first step, when every parameter exists.
    layouts: Option<BucketSets>,

    /// The strategies used so far.
    used: UsedStrategies,
    /// The last request on which all ranks have agreed.
    agreed: Option<StepRequest>,
    /// The state that differs between the ranks, because of the strategies used so far.
    drift: RankDrift,
    /// Memory for updates that may have to be undone.
    undo_log: UndoLog,
    /// The buckets that contain accumulated gradients of a later step.
    accumulated: Option<GradientLocation>,
    /// What the losses of the coming step count.
    weight: StepWeight,
    /// A failure of this rank since the last step. The next step reports it to the other ranks.
    failure: Option<Error>,
    /// The factor of the loss.
    scaler: LossScaler,
    notes: Vec<String>,
    /// The step that is being recorded.
    stage: Option<RecordingStage>,
    /// All-reduces whose result [`Self::wait`] has not returned yet.
    started: Vec<(Shape, Device, Pending)>,
}

/// A rank's last micro-batch of a step.
#[derive(Clone, Copy, Debug)]
struct WeightedBatch<'a> {
    batch: MicroBatch<'a>,
    /// What its loss counts among this rank's losses.
    share: f64,
    /// Whether its loss says that its weight varies.
    varies: bool,
}

/// What all ranks make of a request.
enum Agreement {
    /// The index of the requested strategy, and the exchange of its buckets.
    Possible(usize, ExchangeKind),
    /// Every rank gets this error, and the next request may be another one.
    Refused(Error),
}

impl DistOpt {
    /// Wraps `optimizer` for the parameters in `params`, and sets all parameters that exist to rank
    /// 0's values. `ranks` are the ranks that train together: a [`World`](crate::World), or a
    /// [`Group`]. A layer with inferred sizes creates its parameters at the first call, so run
    /// [`candelabrum_nn::Model::compile`] first. From now on each rank draws different noise
    /// (dropout masks), unless [`Params::set_noise_stream`] has chosen a stream.
    ///
    /// # Errors
    /// [`Error::Inconsistent`] if the ranks differ in version, optimizer or parameters.
    /// [`Error::ParameterType`] for a parameter that is neither f32 nor f16 nor bf16. A failure of another rank or a
    /// passed deadline.
    pub fn new(
        optimizer: impl Optimizer + 'static,
        params: &Params,
        ranks: impl Into<Group>,
    ) -> Result<Self> {
        Self::with_config(optimizer, params, ranks, DistOptConfig::default())
    }

    /// As [`Self::new`], with other settings.
    ///
    /// # Errors
    /// As for [`Self::new`], and settings that [`DistOptConfig::check`] refuses.
    pub fn with_config(
        optimizer: impl Optimizer + 'static,
        params: &Params,
        ranks: impl Into<Group>,
        config: DistOptConfig,
    ) -> Result<Self> {
        config.check()?;
        let ranks = StepRanks::new(ranks.into(), config.shard);
        let placement = match config.shard {
            Shard::None => Placement::EveryRank,
            _ => Placement::Owners,
        };
        let mut opt = Self::from_parts(Box::new(optimizer), params, ranks, placement, config);
        opt.synchronize()?;
        Ok(opt)
    }

    /// Trains through `servers`, which update the parameters by `optimizer`. With [`Servers::Rounds`] all steps have the
    /// bits of steps without servers. With [`Servers::AtOnce`] each worker takes its steps alone: W workers make W updates,
    /// each with the learning rate of one worker.
    ///
    /// # Errors
    /// As for [`Self::with_config`], and settings that servers cannot serve.
    pub fn with_servers(
        optimizer: impl Into<Recipe>,
        params: &Params,
        servers: Servers,
        config: DistOptConfig,
    ) -> Result<Self> {
        config.check()?;
        let recipe = optimizer.into();
        let (mut placement, ranks) = Placement::on_servers(servers, &recipe, &config)?;
        placement.tell(|| {
            let config = Box::new(config.clone());
            ServerCall::Create { recipe: recipe.clone(), config }
        })?;
        let mut opt = Self::from_parts(recipe.build(), params, ranks, placement, config);
        opt.synchronize()?;
        Ok(opt)
    }

    fn from_parts(
        optimizer: Box<dyn Optimizer>,
        params: &Params,
        ranks: StepRanks,
        placement: Placement,
        config: DistOptConfig,
    ) -> Self {
        // With equal dropout masks on all replicas, the average would contain the same noise N
        // times.
        params.suggest_noise_stream(ranks.workers.rank() as u64);
        let scaler = LossScaler::new(config.loss_scale);
        Self {
            optimizer,
            params: params.clone(),
            ranks,
            placement,
            config,
            synchronized: 0,
            constants: Constants::default(),
            layouts: None,
            used: UsedStrategies::default(),
            agreed: None,
            drift: RankDrift::Nothing,
            undo_log: UndoLog::default(),
            accumulated: None,
            weight: StepWeight::default(),
            failure: None,
            scaler,
            notes: Vec::new(),
            stage: None,
            started: Vec::new(),
        }
    }

    /// The parameters that this optimizer updates.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The ranks that train together: those that compute gradients.
    pub fn group(&self) -> &Group {
        &self.ranks.workers
    }

    /// Whether all ranks take their steps together. With [`Servers::AtOnce`] they do not.
    pub fn is_in_step(&self) -> bool {
        self.placement.is_in_step()
    }

    /// Whether ranks may have different parameters or states at present.
    pub fn may_differ(&self) -> bool {
        !self.is_in_step() || self.drift != RankDrift::Nothing
    }

    /// Whether ranks keep [shards](Shard).
    pub fn has_shards(&self) -> bool {
        matches!(self.placement, Placement::Owners) && self.ranks.replica.world_size() > 1
    }

    /// Whether ranks of a step own shards: all of them, or servers.
    fn is_divided(&self) -> bool {
        self.has_shards() || self.ranks.has_servers()
    }

    /// Whether this rank's [shards](Shard) belong into a checkpoint. Where hosts have copies of them
    /// ([`Communicator::replica`](crate::Communicator::replica)), those of the first rank's host do.
    pub fn saves_shards(&self) -> bool {
        let StepRanks { all, replica, .. } = &self.ranks;
        all.ranks().first().is_none_or(|first| replica.ranks().contains(first))
    }

    /// Bytes and time of this rank's communication with the ranks that train together.
    pub fn traffic(&self) -> CommStats {
        match &self.placement {
            Placement::AtOnce(servers) => servers.traffic(),
            _ => self.ranks.traffic(),
        }
    }

    /// The wrapped optimizer. It knows its learning rate and how many steps it has taken.
    pub fn optimizer(&self) -> &dyn Optimizer {
        &*self.optimizer
    }

    /// The learning rate of the next step, as the user has written it: 0.01, and not 0.009999999776. `None` with
    /// [`Servers::AtOnce`], whose updates are not the steps of one rank.
    pub fn learning_rate(&self) -> Option<f64> {
        let rate = self.optimizer.learning_rate();
        self.is_in_step().then(|| rate.to_string().parse().unwrap_or_else(|_| f64::from(rate)))
    }

    /// The factor of the learning rate beside its schedule.
    pub fn rate_factor(&self) -> f64 {
        self.optimizer.rate_factor()
    }

    /// Sets the factor of all learning rates from the next step on, the same on all ranks. It belongs to
    /// [`Self::state`].
    ///
    /// # Errors
    /// Those of [`Optimizer::set_rate_factor`].
    pub fn set_rate_factor(&mut self, factor: f64) -> Result<()> {
        self.check_rate("the factor of the learning rate", factor != 1.0, factor)?;
        self.optimizer.set_rate_factor(factor)?;
        self.placement.tell(|| ServerCall::SetRateFactor(factor))
    }

    /// Sets the learning rate itself from the next step on, in place of the schedule, the same on all ranks; `None`
    /// gives it back to the schedule. It does not belong to [`Self::state`].
    ///
    /// # Errors
    /// Those of [`Optimizer::set_rate`].
    pub fn set_rate(&mut self, rate: Option<f64>) -> Result<()> {
        self.check_rate("the learning rate", rate.is_some(), rate.unwrap_or_default())?;
        self.optimizer.set_rate(rate)?;
        self.placement.tell(|| ServerCall::SetRate(rate))
    }

    /// Refuses another learning rate than the schedule's where servers update at once: they are at another update each time.
    fn check_rate(&self, setting: &'static str, is_set: bool, rate: f64) -> Result<()> {
        if self.is_in_step() || !is_set {
            return Ok(());
        }
        let range = "that of the schedule where each gradient is an update";
        Err(Error::Setting { setting, value: rate.to_string(), range })
    }

    /// The settings.
    pub fn config(&self) -> &DistOptConfig {
        &self.config
    }

    /// Returns an error if no step could use this strategy.
    ///
    /// # Errors
    /// As for [`strategy::check`].
    pub fn check(&self, option: DistOption, spars: f32) -> Result<()> {
        self.check_with(option, spars, &self.config.strategy)
    }

    fn check_with(&self, option: DistOption, spars: f32, config: &StrategyConfig) -> Result<()> {
        strategy::check(option, spars, config)?;
        if option == DistOption::OneBit && self.config.uneven {
            let (setting, value) = ("uneven", "true".to_owned());
            let range = "false with 1bit, which has no code for a gradient of zero";
            return Err(Error::Setting { setting, value, range });
        }
        if option == DistOption::PartialUpdate {
            return self.check_subject(Subject::Parameters);
        }
        Ok(())
    }

    /// Refuses an average of parameters where ranks have shards of the state, because each rank would update with a
    /// part of its own gradients, and where states cannot be averaged.
    fn check_subject(&self, subject: Subject) -> Result<()> {
        if subject == Subject::Gradients {
            return Ok(());
        }
        if !self.optimizer.has_numeric_state() {
            let what = format!(
                "a strategy that averages parameters with {}, whose state is no numbers in f32, which could be averaged",
                self.optimizer.describe()
            );
            return Err(Error::Unsupported { what });
        }
        self.placement.check_average_of_parameters()
    }

    /// Returns an error if no rank could [join](Self::join) the steps of the others: without `uneven`, or
    /// because a normalisation of the model exchanges statistics in every forward pass, in which a rank
    /// without a batch takes no part. With `uneven`, the first step checks it, too.
    ///
    /// # Errors
    /// [`Error::Setting`] and [`Error::UnevenStatistics`].
    pub fn check_uneven(&self) -> Result<()> {
        if !self.config.uneven {
            let (setting, value) = ("uneven", "false".to_owned());
            return Err(Error::Setting { setting, value, range: "true on every rank to join" });
        }
        if self.ranks.workers.world_size() > 1 && self.params.exchanges_statistics() {
            return Err(Error::UnevenStatistics);
        }
        Ok(())
    }

    /// The cost so far of a strategy's steps.
    pub fn figures(&self, option: DistOption) -> StepFigures {
        let mut sum = StepFigures::default();
        for used in self.used.iter().filter(|used| used.option == option) {
            sum += used.figures;
        }
        sum
    }

    /// The Euclidean norm of the residuals, the values that this rank's strategies have not sent
    /// yet. It is 0 without error feedback. For residuals on a GPU it waits for the GPU, and is NaN if
    /// the GPU has failed. The next step returns that error.
    pub fn residual_norm(&self) -> f64 {
        let norms =
            self.used.iter().filter_map(|used| used.with_error_feedback(|m| m.residual_norm()));
        norms.fold(0.0, |sum, norm| sum + norm.unwrap_or(f64::NAN).powi(2)).sqrt()
    }

    /// The notes for the user since the last call, for instance that a sparse exchange became
    /// dense.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Sets the total weight of all losses of this rank's next step, before the forward pass, so that
    /// the ranks exchange the sum while they compute. Without this call, they exchange it when the loss is
    /// known, and only if its weight [varies](LossWeight::varies) or [`DistOptConfig::uneven`] is set. All
    /// ranks call it, or none.
    pub fn begin_step(&mut self, weight: f64) {
        let group = &self.ranks.all;
        if group.world_size() == 1 || self.weight.has_begun() {
            // A rank whose forward pass has failed begins the same step again.
            return;
        }
        self.weight.begin(weight, group);
        if let Err(error) = self.placement.tell(|| ServerCall::BeginStep) {
            self.failure.get_or_insert(error);
        }
    }

    /// Adds the gradients of `loss` to the gradients of the next step, without communication. This
    /// is PyTorch's `no_sync`. The next step exchanges the sum, so divide each of `k` losses by `k`
    /// to train as on one batch of all their examples: `(&loss / k)?` of a loss that counts as much in each
    /// micro-batch. Where micro-batches differ in what their losses count, give the loss its
    /// [weight](candelabrum_nn::weighted) after the division. Ranks may call it different numbers of
    /// times. After an error the accumulated gradients are lost, and the next step of this rank fails on
    /// all ranks with the same error.
    ///
    /// # Errors
    /// An error of the backward pass, or parameters that the loss does not depend on.
    pub fn accumulate(&mut self, loss: &Tensor) -> Result<()> {
        if self.stage.is_some() {
            let what = "an accumulation in a step that is recorded".to_owned();
            return Err(Error::Unsupported { what });
        }
        // An error of the pass stays on this rank until the next step, which reports it.
        let failed = self.bound(|opt, layouts| {
            let (replica, used) = (&*opt.ranks.replica, &mut opt.used);
            let (place, layout) = match &opt.agreed {
                // A micro-batch sends nothing, so its gradients need whole buckets.
                _ if layouts.are_lent() => {
                    (GradientLocation::Early, layouts.early(opt.config.sizing())?)
                }
                None => (GradientLocation::Early, layouts.early(opt.config.sizing())?),
                Some(StepRequest { sizing, .. }) => (
                    GradientLocation::Shared(*sizing),
                    layouts.of(*sizing, replica, &mut |id| used.forget(id))?,
                ),
            };
            if opt.accumulated.take() != Some(place) {
                layout.gradients.clear();
            }
            let added = opt.add_gradients(layout, loss);
            opt.accumulated = added.is_ok().then_some(place);
            Ok(added.err())
        })?;
        let Some(error) = failed else { return Ok(()) };
        self.failure.get_or_insert(error.clone());
        Err(error)
    }

    /// Adds the gradients of `loss` to the buckets of this layout.
    fn add_gradients(&mut self, layout: &mut BucketSet, loss: &Tensor) -> Result<()> {
        let weight = LossWeight::from_loss(loss);
        let varies = weight.as_ref().is_some_and(LossWeight::varies);
        let share = self.weight.add(weight.as_ref())?;
        let scaled = self.scaler.scaled(loss, share)?;
        layout.gradients.backward(&scaled)?;
        if layout.gradients.met_varying_loss() && !varies {
            return Err(Error::UnknownWeight);
        }
        layout.complete(&scaled, self.config.allow_unused)?;
        if !step_failure::is_finite(loss)? {
            layout.fill(f32::NAN)?;
        }
        Ok(())
    }

    /// Makes one model of the ranks' models. Call it before an evaluation, before a checkpoint and
    /// at the end, on all ranks. It averages all parameters over all ranks if a strategy has let
    /// them differ, and treats buffers (running statistics) as [`DistOptConfig::buffers`] says.
    ///
    /// # Errors
    /// A failure of another rank, a passed deadline or a disagreement between ranks.
    pub fn average_parameters(&mut self) -> Result<()> {
        if self.drift == RankDrift::Parameters {
            // Ranks may have trained one that is frozen now, each for itself.
            let trained = self.layouts.as_ref().map(|layouts| layouts.params().to_vec());
            let trained = trained.unwrap_or_else(|| self.params.trainable());
            replicas::average_parameters(&*self.ranks.all, &trained)?;
            self.drift = RankDrift::Momentum;
        }
        self.pull_parameters()?;
        synchronize_buffers(&self.params, &*self.ranks.workers, self.config.buffers)
    }

    /// Gives each rank all values of all parameters, where [`Shard`] has left it a shard: those in f32 of a parameter in
    /// 16 bits, too. It takes the memory of the whole model, until the next step or [`Self::shard_parameters`] divides the
    /// values again. Call it before the optimizer is dropped, if the model is used afterwards. All ranks call it between
    /// the same steps.
    ///
    /// # Errors
    /// A failure of another rank or a passed deadline.
    pub fn gather_parameters(&mut self) -> Result<()> {
        self.layouts.as_mut().map_or(Ok(()), BucketSets::gather_values)
    }

    /// Divides the values again after [`Self::gather_parameters`], as the next step would. All ranks call it together.
    ///
    /// # Errors
    /// A failure of another rank or a passed deadline.
    pub fn shard_parameters(&mut self) -> Result<()> {
        let Self { layouts, ranks, placement, params, .. } = self;
        let shards = |layouts: &mut BucketSets| shard_values(layouts, placement, ranks, params);
        layouts.as_mut().map_or(Ok(()), shards)
    }

    /// Sets the parameters and buffers that exist now to rank 0's values, on every rank.
    /// [`Self::new`] calls it. Call it again after you have changed parameters by hand. With [`Servers::AtOnce`] it takes the
    /// values of the servers, which do not change so. A parameter of which each rank
    /// keeps its shard of the values ([`Shard`]) stays as it is: all ranks together must change such a parameter.
    ///
    /// # Errors
    /// [`Error::Inconsistent`] if the ranks differ in version, optimizer or parameters. A failure
    /// of another rank or a passed deadline.
    pub fn synchronize(&mut self) -> Result<()> {
        let params = self.params.list();
        self.check_same(&params)?;
        params.iter().try_for_each(Param::watch)?;
        // A forward pass before this call says nothing about the first step.
        params.iter().for_each(Param::forget_use);
        let group = &*self.ranks.workers;
        if group.world_size() > 1 {
            let (constants, params): (Vec<_>, Vec<_>) =
                params.iter().cloned().partition(Param::is_constant);
            if !constants.is_empty() || !self.params.constants().is_empty() {
                let what = "what the model has from its files and nothing trains";
                let digest = self.constants.sha256(&self.params)?.unwrap_or_default();
                check_consistency(group, &[(what.to_owned(), digest)])?;
            }
            // Those of which each rank keeps its shard cannot differ.
            let params: Vec<_> = params.into_iter().filter(|param| !param.is_sharded()).collect();
            replicas::broadcast_parameters(group, &params)?;
        }
        synchronize_buffers(&self.params, group, BufferSync::Broadcast)?;
        self.synchronized = params.len();
        if self.drift == RankDrift::Parameters {
            self.drift = RankDrift::Momentum;
        }
        if self.layouts.is_none() {
            return Ok(());
        }
        self.give_values()?;
        self.pull_parameters()
    }

    /// Gives the servers of a step the values of the workers, which have the same ones.
    fn give_values(&mut self) -> Result<()> {
        if self.placement.worker().is_none() {
            return Ok(());
        }
        self.bound(|opt, layouts| {
            opt.placement.tell(|| ServerCall::TakeValues)?;
            opt.exchange_values(layouts)
        })
    }

    /// Takes the values that servers have now, where they update at once: those after all gradients of all workers.
    fn pull_parameters(&mut self) -> Result<()> {
        if self.is_in_step() || self.layouts.is_none() {
            return Ok(());
        }
        self.bound(|opt, layouts| {
            let Some(servers) = opt.placement.update_servers() else { return Ok(()) };
            // The servers have made an update whose values are here.
            layouts.params().iter().try_for_each(Param::gather)?;
            servers.barrier()?;
            let numbers = 0..layouts.params().len();
            let new = numbers.map(|number| servers.pull(number)).collect::<Result<Vec<_>>>()?;
            for (param, values) in layouts.params().iter().zip(new) {
                param.update_in_place(values)??;
            }
            servers.barrier()
        })
    }

    /// Lets each server that updates at once write its values and its optimizer's state to a file in `dir`. All ranks call
    /// it together. Returns false, and writes nothing, with another placement.
    ///
    /// # Errors
    /// A file that cannot be written, or a failure of another rank.
    pub fn save_servers(&mut self, dir: &Path) -> Result<bool> {
        self.bound(|opt, _| match opt.placement.update_servers() {
            Some(servers) => servers.save(dir).map(|()| true),
            None => Ok(false),
        })
    }

    /// Lets each server read what [`Self::save_servers`] has written, and takes its values, as after `steps` steps of this
    /// worker. All ranks call it together.
    ///
    /// # Errors
    /// A file that does not fit, or a failure of another rank.
    pub fn load_servers(&mut self, dir: &Path, steps: u64) -> Result<()> {
        self.bound(|opt, _| match opt.placement.update_servers() {
            Some(servers) => servers.load(dir),
            None => Ok(()),
        })?;
        self.optimizer.set_steps(steps);
        self.pull_parameters()
    }

    /// The digest of what the model has from its files and nothing trains: [`Constants::sha256`].
    ///
    /// # Errors
    /// Values that cannot be read.
    pub fn constants_sha256(&mut self) -> Result<Option<String>> {
        self.constants.sha256(&self.params)
    }

    /// Returns an error if the ranks would not train the same model in the same way.
    fn check_same(&self, params: &[Param]) -> Result<()> {
        let is_trainable = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
        if let Some(param) = params.iter().find(|param| !is_trainable(param.dtype())) {
            let (name, dtype) = (param.name().to_owned(), format!("{:?}", param.dtype()));
            return Err(Error::ParameterType { name, dtype });
        }
        let mut facts = vec![
            ("the version of candelabrum".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            ("the precision".to_owned(), self.params.dtype().as_str().to_owned()),
            ("the optimizer".to_owned(), self.optimizer.describe()),
            ("the optimizer's configuration".to_owned(), format!("{:?}", self.config)),
            ("the ranks with all shards".to_owned(), self.ranks.replica.world_size().to_string()),
        ];
        facts.extend(parameter_facts(params));
        let frozen = params.iter().filter(|param| param.is_frozen()).map(Param::name);
        facts.push(("the frozen parameters".to_owned(), frozen.collect::<Vec<_>>().join(", ")));
        let constant = params.iter().filter(|param| param.is_constant()).map(Param::name);
        let what = "the frozen parameters with the values of the model's files".to_owned();
        facts.push((what, constant.collect::<Vec<_>>().join(", ")));
        check_consistency(&*self.ranks.workers, &facts)
    }

    /// Fixes the set of parameters, at the first step. Frozen ones do not belong to it.
    fn bind(&mut self) -> Result<BucketSets> {
        let all = self.params.list();
        if all.len() > self.synchronized && !self.is_server() {
            self.check_same(&all)?;
            self.check_equal_values(&all[self.synchronized..])?;
        }
        let trained = TrainableParams::from_params(&self.params)?;
        if self.config.uneven {
            self.check_uneven()?;
        }
        let mut layouts = BucketSets::new(trained);
        let is_sharded = self.is_divided();
        if is_sharded {
            let whole = !self.optimizer.is_elementwise();
            let (shard, sizing) = (self.config.shard, self.config.sizing());
            let owners = self.ranks.owners();
            layouts.shard(&self.params, shard, sizing, (&*self.ranks.replica, owners), whole)?;
            shard_values(&mut layouts, &self.placement, &self.ranks, &self.params)?;
        }
        let is_elsewhere = !self.is_in_step();
        let part = |index: usize| match is_elsewhere {
            // Servers have the state.
            true => Some(0..0),
            false => layouts.shards().map(|shards| shards.owned(index)),
        };
        let info = |param: &Param| -> (String, Vec<usize>, Location) {
            (param.name().to_owned(), param.dims().to_vec(), Location::from_device(param.device()))
        };
        let infos: Vec<_> = layouts.params().iter().map(info).collect();
        let infos: Vec<_> = infos
            .iter()
            .enumerate()
            .map(|(index, (name, dims, location))| {
                let (part, location) = (part(index), location.clone());
                ParamInfo { name, dims, part, location }
            })
            .collect();
        self.optimizer.bind(&infos)?;
        if is_sharded && !infos.is_empty() && self.optimizer.parameter_state(0)?.is_none() {
            let optimizer = self.optimizer.describe();
            let what =
                format!("shard with {optimizer}, which does not separate the states of parameters");
            return Err(Error::Unsupported { what });
        }
        if let Some(servers) = self.placement.update_servers() {
            servers.bind(layouts.params())?;
        } else if self.placement.worker().is_some() {
            let spec = |param: &Param| (param.name().to_owned(), param.dims().to_vec());
            let specs = || layouts.params().iter().map(spec).collect();
            self.placement.tell(|| ServerCall::Bind(specs()))?;
            self.exchange_values(&layouts)?;
        }
        Ok(layouts)
    }

    /// The state of the servers' optimizers: what [`Self::collect_state`] has taken.
    fn servers_state(
        &mut self,
        layouts: &BucketSets,
    ) -> Result<Option<&mut (dyn Optimizer + 'static)>> {
        let Some(worker) = self.placement.worker() else { return Ok(None) };
        let bind = |optimizer: &mut dyn Optimizer| {
            let dims: Vec<_> = layouts.params().iter().map(|param| param.dims().to_vec()).collect();
            let params = layouts.params().iter().zip(&dims);
            let infos = params.map(|(param, dims)| ParamInfo::on_host(param.name(), dims));
            Ok(optimizer.bind(&infos.collect::<Vec<_>>())?)
        };
        worker.state(bind).map(Some)
    }

    /// Compares parameters that were created after the last [`Self::synchronize`]. The model has
    /// used them already, so it is too late to replace their values. They are equal if all ranks
    /// used one seed.
    fn check_equal_values(&self, params: &[Param]) -> Result<()> {
        let facts = params
            .iter()
            .map(|param| {
                let what =
                    format!("the initial value of {} (compile the model first)", param.name());
                Ok((what, digest(std::slice::from_ref(param))?))
            })
            .collect::<Result<Vec<_>>>()?;
        check_consistency(&*self.ranks.workers, &facts)
    }

    /// Runs `work` with the layouts of the parameters, which the first call creates. After an error
    /// of `work` the ranks no longer agree on the next operation. If only this rank knows the
    /// error, it sends the error to the other ranks, which would wait for it otherwise.
    fn bound<R>(
        &mut self,
        work: impl FnOnce(&mut Self, &mut BucketSets) -> Result<R>,
    ) -> Result<R> {
        // Return the communicator's own failure, not an error that follows from it.
        if let Some(error) = self.ranks.all.failure() {
            return Err(error);
        }
        let layouts = self.layouts.take().map_or_else(|| self.bind(), Ok);
        let result = layouts.and_then(|mut layouts| {
            let result = layouts.finish_arrivals().and_then(|()| work(self, &mut layouts));
            self.layouts = Some(layouts);
            result
        });
        result.inspect_err(|error| {
            if !error.is_shared() {
                self.ranks.all.fail(error);
            }
        })
    }

    /// Takes the step of a rank that has a batch. The loss of a step that is recorded ends the recording
    /// first.
    fn step(&mut self, batch: MicroBatch<'_>, request: &StepRequest) -> Result<()> {
        if let MicroBatch::Loss(loss) = batch
            && let Some(stage) = self.stage.take()
        {
            return self.record(stage, loss, request);
        }
        let end = self.bound(|opt, layouts| {
            let weight = match batch {
                MicroBatch::Loss(loss) => LossWeight::from_loss(loss),
                MicroBatch::Recorded(recording) => recording.weight.clone(),
            };
            let varies = weight.as_ref().is_some_and(LossWeight::varies);
            let share = opt.weight.add(weight.as_ref());
            let checked = share.and_then(|share| opt.weight.check().map(|()| share));
            let share = checked.unwrap_or_else(|error| {
                opt.failure.get_or_insert(error);
                1.0
            });
            if opt.failure.is_some() {
                opt.weight.spoil();
            }
            opt.tell_step(request)?;
            let (group, workers) = (&opt.ranks.all, opt.ranks.count);
            let total = opt.weight.total(group, workers, opt.config.uneven)?;
            opt.take_step(layouts, Some(WeightedBatch { batch, share, varies }), total, request)
        })?;
        match end {
            StepEnd::Taken | StepEnd::Skipped => Ok(()),
            StepEnd::Failed(error) => Err(error),
        }
    }

    /// Takes one step in which all ranks count `total`. Without `batch` this rank has none.
    fn take_step(
        &mut self,
        layouts: &mut BucketSets,
        batch: Option<WeightedBatch<'_>>,
        total: TotalWeight,
        request: &StepRequest,
    ) -> Result<StepEnd> {
        let agreed = match self.agree(request)? {
            Agreement::Possible(index, kind) => {
                let subject = kind.subject(self.used.get_mut(index).steps);
                self.check_subject(subject).map(|()| (index, kind, subject))
            }
            Agreement::Refused(error) => Err(error),
        };
        let (index, kind, subject) = match agreed {
            Ok(agreed) => agreed,
            Err(error) => {
                (self.accumulated, self.weight) = (None, StepWeight::default());
                return Ok(StepEnd::Failed(error));
            }
        };
        let late = layouts.trained().check(&self.params).err();
        let failure = self.failure.take().or(late);
        let accumulated = self.accumulated.take();
        self.forget_servers_state();
        let Self { used, ranks, placement, notes, scaler, .. } = self;
        shard_values(layouts, placement, ranks, &self.params)?;
        layouts.of(request.sizing, &*ranks.replica, &mut |id| used.forget(id))?;
        if let Some(place) = accumulated {
            layouts.gather(place)?;
        }
        let values = layouts.values().cloned();
        let layout = layouts.last_used().ok_or(Error::NoParameters)?;
        let strategy = used.get_mut(index);
        let (steps, spars) = (strategy.steps, request.spars);
        let context = StepContext::new(ranks, layout, values, (steps, spars));
        notes.extend(strategy.prepare(&context)?);
        let averages = subject == Subject::Gradients;
        let factor = match averages {
            true => self.weight.finish(ranks.count, total),
            false => self.weight.finish_alone(),
        };
        if total.sum == 0.0 {
            self.leave_out(index);
            return Ok(StepEnd::Skipped);
        }
        // Lent buckets leave one after the other, and so does memory for their numbers in another type.
        let element = kind.separate_type().filter(|_| layout.gradients.pool().is_none());
        let wire = element.map(|element| layout.take_wire(element, &*ranks.replica)).transpose()?;
        let wire = wire.unwrap_or_default();
        let needs_weight = accumulated.is_some() || averages && ranks.count > 1;
        let rejoin = self.drift != RankDrift::Nothing;
        if !averages && ranks.all.world_size() > 1 {
            self.drift = RankDrift::Parameters;
        }
        let own = layout.take_own();
        let mut step = Step {
            exchange: BucketExchange::new(context, subject, kind, (wire, own), scaler.inverse()),
            config: &self.config,
            layout,
            optimizer: &mut *self.optimizer,
            servers: placement.update_servers(),
            option: request.option,
            new_values: Vec::new(),
            undo_log: &mut self.undo_log,
            pending: accumulated.is_some(),
            rejoin,
            factor,
            share: factor * batch.map_or(0.0, |batch| batch.share),
            lacks_weight: needs_weight && batch.is_some_and(|batch| !batch.varies),
            scaler,
            notes,
            traffic: None,
        };
        let end = step.run(batch.map(|batch| batch.batch), failure);
        let exchange = step.exchange;
        self.end_step(layouts, index, exchange, end)
    }

    /// Counts a step that is not taken because nothing counts in it.
    fn leave_out(&mut self, index: usize) {
        self.params.keep_buffers();
        let step = self.used.get_mut(index).leave_out();
        self.notes.push(format!(
            "step {step} was left out: nothing counts in its global batch (are all rows ignored?)"
        ));
    }

    /// Keeps what a step has changed beside the parameters, or restores it after a failed one.
    fn end_step(
        &mut self,
        layouts: &mut BucketSets,
        index: usize,
        exchange: BucketExchange,
        result: Result<StepEnd>,
    ) -> Result<StepEnd> {
        let BucketExchange { subject, kind, wire, own, figures, .. } = exchange;
        if let (Some(own), Some(layout)) = (own, layouts.last_used()) {
            layout.put_own(own);
        }
        if let (Some(element), Some(layout)) = (kind.separate_type(), layouts.last_used()) {
            layout.put_wire(element, wire);
        }
        let strategy = self.used.get_mut(index);
        let taken = matches!(result, Ok(StepEnd::Taken));
        let note = strategy.end_step(taken);
        if matches!(result, Err(_) | Ok(StepEnd::Failed(_))) {
            self.params.restore_buffers()?;
            return result;
        }
        self.params.keep_buffers();
        layouts.release_frozen()?;
        strategy.figures += figures;
        strategy.steps += 1;
        self.notes.extend(note.into_iter().chain(layouts.note()));
        if taken && subject == Subject::Gradients {
            self.drift = RankDrift::Nothing;
        }
        if let Some(id) = layouts.settle(&*self.ranks.all)? {
            self.used.forget(id);
        }
        result
    }

    /// The numbers of the parameters that have been frozen since the first step.
    fn frozen(&self) -> Vec<usize> {
        self.layouts.as_ref().map(|layouts| layouts.trained().frozen()).unwrap_or_default()
    }

    /// Tells the servers of a step that the workers are about to take one.
    fn tell_step(&mut self, request: &StepRequest) -> Result<()> {
        if self.placement.worker().is_none() {
            return Ok(());
        }
        let exchanges_weights = self.weight.is_exchanged(self.config.uneven);
        let is_new = self.agreed.as_ref() != Some(request);
        let frozen = if is_new { self.frozen_names() } else { String::new() };
        let request = request.clone();
        self.placement.tell(|| ServerCall::Step { request, exchanges_weights, frozen })
    }

    /// The names of all frozen parameters.
    fn frozen_names(&self) -> String {
        if let Placement::Server { frozen } = &self.placement {
            return frozen.clone();
        }
        let params = self.params.list();
        let frozen = params.iter().filter(|param| param.is_frozen()).map(Param::name);
        frozen.collect::<Vec<_>>().join(", ")
    }

    /// Meets the other ranks before a new request, by a collective that takes the way of the last request's exchange: over
    /// hosts other operations take another way, and a rank that goes on as before would be waited for.
    fn meet(&mut self) -> Result<()> {
        let Some(last) = &self.agreed else { return Ok(()) };
        let (_, kind) = self.used.of(last.option, &last.config)?;
        let StepRanks { all, replica, .. } = &self.ranks;
        let is_flat = self.is_divided() && Arc::ptr_eq(replica, all);
        if matches!(kind, ExchangeKind::AllReduce(_)) && !is_flat {
            let nothing = Payload::from_slice(&[0_i64]).labelled("a change of the dist option");
            all.run(Collective::AllReduce(ReduceOp::Max), nothing)?;
        }
        Ok(())
    }

    /// The strategy of a request. If the request is new to this rank, all ranks check that it is possible
    /// and that they make the same one.
    fn agree(&mut self, request: &StepRequest) -> Result<Agreement> {
        let found = self.used.of(request.option, &request.config);
        if self.agreed.as_ref() == Some(request) {
            return Ok(found.into());
        }
        let possible = self.check_with(request.option, request.spars, &request.config);
        let found = possible.and(found);
        let (described, steps) = match &found {
            Ok((index, kind)) => (kind.describe(), self.used.get_mut(*index).steps),
            Err(error) => (format!("refused: {error}"), 0),
        };
        let facts = [
            ("the dist option", request.option.to_string()),
            ("the strategy", described),
            ("the strategy's configuration", format!("{:?}", request.config)),
            ("the number of its steps so far", steps.to_string()),
            ("spars", request.spars.to_string()),
            ("the size of buckets", format!("{:?}", request.sizing)),
            ("the frozen parameters", self.frozen_names()),
        ];
        let facts = facts.map(|(name, value)| (name.to_owned(), value));
        self.meet()?;
        match check_consistency(&*self.ranks.all, &facts) {
            Ok(()) => {}
            Err(error @ Error::Inconsistent { .. }) => return Ok(Agreement::Refused(error)),
            Err(error) => return Err(error),
        }
        if found.is_ok() {
            self.agreed = Some(request.clone());
        }
        Ok(found.into())
    }
}

/// Leaves to each rank its shard of the values, where the ranks own shards.
fn shard_values(
    layouts: &mut BucketSets,
    placement: &Placement,
    ranks: &StepRanks,
    params: &Params,
) -> Result<()> {
    match placement {
        Placement::Owners => layouts.shard_values(&ranks.all, &ranks.replica, params),
        _ => Ok(()),
    }
}

impl From<Result<(usize, ExchangeKind)>> for Agreement {
    fn from(found: Result<(usize, ExchangeKind)>) -> Self {
        found.map_or_else(Self::Refused, |(index, kind)| Self::Possible(index, kind))
    }
}

impl BackwardAndUpdate for DistOpt {
    type Error = Error;

    fn backward_and_update_with(
        &mut self,
        loss: &Tensor,
        dist_option: DistOption,
        spars: f32,
    ) -> Result<()> {
        let (config, sizing) = (self.config.strategy.clone(), self.config.sizing());
        let frozen = self.frozen();
        let request = StepRequest { option: dist_option, config, spars, sizing, frozen };
        self.step(MicroBatch::Loss(loss), &request)
    }
}
