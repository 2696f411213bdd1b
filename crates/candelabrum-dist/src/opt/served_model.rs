//! A server's part in the steps of workers.
//!
//! The first worker tells the servers what all workers are about to do ([`ServerCall`]). A server does the same without a
//! batch: it is a rank of the step that owns shards. So a server can do what an owner can: clip by the norm of the whole
//! gradient, leave out a step whose averages overflow, follow a strategy.

use std::collections::BTreeMap;

use candelabrum_nn::{DistOption, Init, Params};
use candelabrum_optim::Optimizer;
use candle_core::{DType, Device};

use super::bucket_sets::BucketSets;
use super::placement::{Placement, StepRanks};
use super::server_call::ServerCall;
use super::state::OptimizerVector;
use super::step_request::StepRequest;
use super::{DistOpt, DistOptConfig, StrategyState};
use crate::comm::{Collective, ElementType, Group, Payload};
use crate::strategy::{ErrorFeedback, StrategyConfig};
use crate::{Error, Result, StepWeight, TotalWeight};

fn unexpected(number: usize, call: &ServerCall) -> Error {
    Error::Protocol { what: format!("an unexpected call of a server, of model {number}: {call:?}") }
}

/// A server of [`Servers::Rounds`](super::Servers::Rounds): it takes part in the steps of all models that the workers
/// train through it.
#[derive(Debug)]
pub struct StepServer {
    ranks: Group,
    workers: usize,
    device: Device,
    models: BTreeMap<usize, ServedModel>,
}

#[derive(Debug)]
enum ServedModel {
    Created(Box<CreatedModel>),
    Bound(Box<DistOpt>),
}

/// A model whose parameters are not known.
#[derive(Debug)]
struct CreatedModel {
    optimizer: Box<dyn Optimizer>,
    config: DistOptConfig,
    weight: StepWeight,
}

impl StepServer {
    /// A server among `ranks`, of which the first `workers` compute gradients. It updates on `device`.
    pub fn new(ranks: Group, workers: usize, device: Device) -> Self {
        Self { ranks, workers, device, models: BTreeMap::new() }
    }

    /// Does what the first worker has told by [`RoundServers::tell`](super::RoundServers::tell).
    ///
    /// # Errors
    /// A failure of any rank, or a passed deadline. The other ranks get the error, too.
    pub fn answer(&mut self, text: &str) -> Result<()> {
        let answered = self.try_answer(text);
        answered.inspect_err(|error| {
            if !error.is_shared() {
                self.ranks.fail(error);
            }
        })
    }

    fn try_answer(&mut self, text: &str) -> Result<()> {
        let (number, call) = ServerCall::from_text(text)?;
        let model = match (self.models.remove(&number), call) {
            (None, ServerCall::Create { recipe, config }) => {
                let (optimizer, weight) = (recipe.build(), StepWeight::default());
                ServedModel::Created(Box::new(CreatedModel { optimizer, config: *config, weight }))
            }
            (Some(ServedModel::Created(model)), ServerCall::Bind(params)) => {
                ServedModel::Bound(Box::new(self.bind(*model, &params)?))
            }
            (Some(ServedModel::Created(mut model)), call) => {
                match call {
                    ServerCall::BeginStep => model.weight.begin_without_batch(&self.ranks),
                    ServerCall::SetRateFactor(factor) => model.optimizer.set_rate_factor(factor)?,
                    ServerCall::SetRate(rate) => model.optimizer.set_rate(rate)?,
                    call => return Err(unexpected(number, &call)),
                }
                ServedModel::Created(model)
            }
            (Some(ServedModel::Bound(mut opt)), call) => {
                opt.serve(number, call)?;
                ServedModel::Bound(opt)
            }
            (None, call) => return Err(unexpected(number, &call)),
        };
        self.models.insert(number, model);
        Ok(())
    }

    /// A rank of a model's steps, with the first worker's values of the parameters that `specs` describe.
    fn bind(&self, model: CreatedModel, specs: &[(String, Vec<usize>)]) -> Result<DistOpt> {
        let CreatedModel { optimizer, config, weight } = model;
        // In f32, in which the workers have the masters of parameters of 16 bits, too.
        let params = Params::on(0, DType::F32, &self.device);
        for (name, dims) in specs {
            params.root().param(name, dims.as_slice(), Init::Const(0.0))?;
        }
        let (workers, group) = (self.ranks.clone(), self.ranks.clone());
        let ranks = StepRanks::with_servers(workers, group, self.workers);
        let placement = Placement::Server { frozen: String::new() };
        let mut opt = DistOpt::from_parts(optimizer, &params, ranks, placement, config);
        opt.weight = weight;
        opt.bound(|opt, layouts| opt.exchange_values(layouts))?;
        Ok(opt)
    }
}

impl DistOpt {
    /// Does what all workers are doing.
    fn serve(&mut self, number: usize, call: ServerCall) -> Result<()> {
        match call {
            ServerCall::Create { .. } | ServerCall::Bind(_) => Err(unexpected(number, &call)),
            ServerCall::TakeValues => self.bound(|opt, layouts| opt.exchange_values(layouts)),
            ServerCall::BeginStep => {
                self.weight.begin_without_batch(&self.ranks.all);
                Ok(())
            }
            ServerCall::Step { request, exchanges_weights, frozen } => {
                self.placement = Placement::Server { frozen };
                self.serve_step(&request, exchanges_weights)
            }
            ServerCall::SetRateFactor(factor) => Ok(self.optimizer.set_rate_factor(factor)?),
            ServerCall::SetRate(rate) => Ok(self.optimizer.set_rate(rate)?),
            ServerCall::SendState => self.send_state(),
            ServerCall::TakeState(lens) => self.take_state(&lens),
            ServerCall::LoadState(state) => self.load_state(&state),
            ServerCall::LoadStrategies(strategies) => {
                let state = |(option, config, steps): (String, StrategyConfig, u64)| {
                    let error_feedback = ErrorFeedback::default();
                    let option = option.parse::<DistOption>()?;
                    Ok(StrategyState { option, config, steps, error_feedback })
                };
                let states: Vec<_> = strategies.into_iter().map(state).collect::<Result<_>>()?;
                self.load_strategy_state(&states)
            }
        }
    }

    pub(super) fn is_server(&self) -> bool {
        matches!(self.placement, Placement::Server { .. })
    }

    fn serve_step(&mut self, request: &StepRequest, exchanges_weights: bool) -> Result<()> {
        let end = self.bound(|opt, layouts| {
            for (number, param) in layouts.params().iter().enumerate() {
                match request.frozen.contains(&number) {
                    true => param.freeze(),
                    false => param.unfreeze(),
                }
            }
            let (group, workers) = (&opt.ranks.all, opt.ranks.count);
            let total = match exchanges_weights {
                true => opt.weight.total(group, workers, true)?,
                false => TotalWeight { active: workers, sum: 1.0 },
            };
            if total.active > 0 {
                opt.take_step(layouts, None, total, request)?;
            }
            Ok(())
        });
        // The workers have the same ones.
        self.notes.clear();
        end
    }

    /// Makes the values of the servers those of the first worker. All ranks of a step call it together.
    pub(super) fn exchange_values(&self, layouts: &BucketSets) -> Result<()> {
        for param in layouts.params().iter() {
            let values = Payload::from(param.with_values(|values| values.to_flat())?);
            let first = self.ranks.all.run(Collective::Broadcast { root: 0 }, values)?;
            // The workers have the same values already, and a forward pass may have used them.
            if self.is_server() {
                param.update_in_place(|mut values| values.copy_from(first.span()?))??;
            }
        }
        Ok(())
    }

    /// Sends each vector of the optimizer to the workers, in this rank's part.
    fn send_state(&mut self) -> Result<()> {
        let group = self.ranks.all.clone();
        for vector in self.optimizer.state_mut()? {
            let own = Payload::from(vector.as_span().to_flat()?.to_host()?);
            group.run(Collective::AllGatherV, own.labelled(STATE))?;
        }
        Ok(())
    }

    /// Takes this rank's part of each vector of the optimizer from the first worker.
    fn take_state(&mut self, lens: &[usize]) -> Result<()> {
        let group = self.ranks.all.clone();
        let vectors = self.optimizer_vectors()?;
        if vectors.len() != lens.len() {
            let what = format!("{} vectors of an optimizer that has {}", lens.len(), vectors.len());
            return Err(Error::Protocol { what });
        }
        for (OptimizerVector { start, mut values, .. }, len) in vectors.into_iter().zip(lens) {
            let whole = Payload::zeros(ElementType::F32, *len).labelled(STATE);
            let whole = group.run(Collective::Broadcast { root: 0 }, whole)?.into_flat();
            if !values.is_empty() {
                values.copy_from(whole.range(start..start + values.len())?)?;
            }
        }
        Ok(())
    }

    /// Takes the state of the servers' optimizers, so that [`Self::optimizer_vectors`] has all of it. Call it before a
    /// checkpoint is saved, on all workers. Elsewhere than with servers it does nothing.
    ///
    /// # Errors
    /// A failure of another rank or a passed deadline.
    pub fn collect_state(&mut self) -> Result<()> {
        self.with_servers_state(ServerCall::SendState, |group, mut vector| {
            let own = Payload::zeros(ElementType::F32, 0).labelled(STATE);
            let whole = group.run(Collective::AllGatherV, own)?;
            Ok(vector.copy_from(whole.span()?)?)
        })
    }

    /// Gives the servers what [`Self::optimizer_vectors`] has, after a checkpoint was loaded. All workers call it together.
    /// Elsewhere than with servers it does nothing.
    ///
    /// # Errors
    /// A failure of another rank or a passed deadline.
    pub fn distribute_state(&mut self) -> Result<()> {
        let Some(worker) = self.placement.worker() else { return Ok(()) };
        let Some(state) = &mut worker.state else { return Ok(()) };
        let lens = state.state_mut()?.iter().map(|vector| vector.len()).collect();
        self.with_servers_state(ServerCall::TakeState(lens), |group, vector| {
            let own = Payload::from(vector.as_span().to_flat()?.to_host()?).labelled(STATE);
            group.run(Collective::Broadcast { root: 0 }, own).map(drop)
        })?;
        self.forget_servers_state();
        Ok(())
    }

    /// Frees the memory of the servers' state.
    pub(super) fn forget_servers_state(&mut self) {
        if let Some(worker) = self.placement.worker() {
            worker.state = None;
        }
    }

    /// Tells the servers, and exchanges each vector of their optimizers with them.
    fn with_servers_state(
        &mut self,
        call: ServerCall,
        exchange: impl Fn(&Group, candelabrum_memory::SpanMut<'_>) -> Result<()>,
    ) -> Result<()> {
        self.bound(|opt, layouts| {
            opt.placement.tell(|| call)?;
            let group = opt.ranks.all.clone();
            let Some(state) = opt.servers_state(layouts)? else { return Ok(()) };
            state.state_mut()?.into_iter().try_for_each(|vector| exchange(&group, vector))
        })
    }
}

/// What the messages are about, in errors.
const STATE: &str = "the state of the optimizer";
