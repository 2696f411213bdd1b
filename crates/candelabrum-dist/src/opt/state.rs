//! The state of a distributed optimizer between steps, to be saved and loaded.
//!
//! A run that loads it continues with the same bits. The parameters, which the model's store has, do not
//! belong to it.

use std::sync::Arc;

use candelabrum_memory::SpanMut;
use candelabrum_nn::{DistOption, Param};
use candelabrum_optim::Optimizer;

use super::DistOpt;
use super::dist_opt_state::{DistOptState, RankDrift};
use super::memory::OptimizerMemory;
use super::server_call::ServerCall;
use super::shard::ShardRanges;
use super::used::UsedStrategy;
use crate::strategy::{ErrorFeedback, StrategyConfig};
use crate::{Error, Result};

/// One vector of the optimizer's state, or this rank's part of it.
#[derive(Debug)]
pub struct OptimizerVector<'a> {
    /// `name.0` and so on for a parameter `name`, or `0`, `1`, .. of an optimizer that does not separate
    /// parameters.
    pub name: String,
    /// The place of the first value in the vector of the whole parameter. 0 unless ranks keep shards
    /// ([`Shard`](super::Shard)).
    pub start: usize,
    /// The values.
    pub values: SpanMut<'a>,
}

/// The state of one strategy on this rank. It differs between ranks, so each rank saves its own.
/// The parameters, once averaged, are the same on all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct StrategyState {
    /// The strategy.
    pub option: DistOption,
    /// Its settings.
    pub config: StrategyConfig,
    /// Steps so far. partialUpdate derives the next bucket from this number.
    pub steps: u64,
    /// Residuals by parameter name.
    pub error_feedback: ErrorFeedback,
}

impl DistOpt {
    /// The state of this optimizer. Call [`Self::average_parameters`] first, as for every checkpoint.
    pub fn state(&self) -> DistOptState {
        let (loss_scale, good_steps) = self.scaler.state();
        DistOptState {
            steps: self.optimizer.steps(),
            optimizer: self.optimizer.describe(),
            rate_factor: self.optimizer.rate_factor(),
            loss_scale,
            good_steps,
            drift: self.drift,
            sharded: self.shards().is_some() && !self.ranks.has_servers(),
            layouts: self.layouts.as_ref().map(|layouts| layouts.state()).unwrap_or_default(),
        }
    }

    /// Continues as the optimizer that returned this [`Self::state`], after its vectors have been restored.
    /// All ranks call it together, after the model has created its parameters and before a step. The number
    /// of ranks may be another one.
    ///
    /// # Errors
    /// [`Error::State`] for the state of another model, and those of a first step: parameters that differ
    /// between ranks, settings without meaning.
    pub fn load_state(&mut self, state: &DistOptState) -> Result<()> {
        self.bound(|opt, layouts| {
            if layouts.shards().is_some() && state.drift != RankDrift::Nothing {
                let what = "its ranks have different optimizer states, which cannot be divided among ranks: take a step without shard first".to_owned();
                return Err(Error::State { what });
            }
            opt.placement.tell(|| ServerCall::LoadState(Box::new(state.clone())))?;
            let (replica, used) = (&*opt.ranks.replica, &mut opt.used);
            layouts.load_state(&state.layouts, replica, &mut |id| used.forget(id))?;
            opt.optimizer.set_steps(state.steps);
            opt.optimizer.set_rate_factor(state.rate_factor)?;
            opt.scaler.load_state(state.loss_scale, state.good_steps);
            opt.drift = state.drift;
            // All ranks agree on the buckets again.
            opt.agreed = None;
            Ok(())
        })?;
        // The parameters may be those of the checkpoint.
        self.give_values()
    }

    /// The vectors of the optimizer on this rank, in an order that depends only on the parameters. Those that belong to
    /// elements of which this rank has no shard are empty. With [servers](super::Servers::Rounds) they are a copy: see
    /// [`Self::collect_state`].
    ///
    /// # Errors
    /// Those of a first step, and a device's error.
    pub fn optimizer_vectors(&mut self) -> Result<Vec<OptimizerVector<'_>>> {
        let (owners, separate) = self.bound(|opt, layouts| {
            let shards = layouts.shards().filter(|_| opt.placement.worker().is_none());
            let owner = |(index, param): (usize, &Param)| {
                (param.name().to_owned(), shards.map_or(0, |shards| shards.owned(index).start))
            };
            let owners: Vec<_> = layouts.params().iter().enumerate().map(owner).collect();
            opt.servers_state(layouts)?;
            let optimizer = opt.state_holder();
            let mut counts = Vec::new();
            for index in 0..owners.len() {
                counts.push(optimizer.parameter_state(index)?.map(|vectors| vectors.len()));
            }
            Ok((owners, counts.into_iter().collect::<Option<Vec<usize>>>()))
        })?;
        let vectors = self.state_holder().state_mut()?;
        let total = separate.as_ref().map(|counts| counts.iter().sum::<usize>());
        let places: Vec<(String, usize)> = match separate {
            Some(counts) if total == Some(vectors.len()) => {
                let of = |((name, start), count): ((String, usize), usize)| {
                    (0..count).map(move |i| (format!("{name}.{i}"), start))
                };
                owners.into_iter().zip(counts).flat_map(of).collect()
            }
            _ => (0..vectors.len()).map(|number| (number.to_string(), 0)).collect(),
        };
        let vector = |((name, start), values)| OptimizerVector { name, start, values };
        Ok(places.into_iter().zip(vectors).map(vector).collect())
    }

    /// The bytes of the vectors of the optimizer on this rank.
    ///
    /// # Errors
    /// Those of [`Self::optimizer_vectors`].
    pub fn optimizer_bytes(&mut self) -> Result<usize> {
        self.bound(|_, _| Ok(()))?;
        let vectors = self.optimizer.state_mut()?;
        Ok(vectors.iter().map(|vector| vector.len() * size_of::<f32>()).sum())
    }

    /// The optimizer whose vectors [`Self::optimizer_vectors`] has: with servers, the copy of theirs.
    fn state_holder(&mut self) -> &mut (dyn Optimizer + 'static) {
        let copy = self.placement.worker().and_then(|worker| worker.state.as_deref_mut());
        copy.unwrap_or(&mut *self.optimizer)
    }

    /// The memory of the model and of this optimizer on this rank.
    ///
    /// # Errors
    /// Those of a first step, and a device's error.
    pub fn memory(&mut self) -> Result<OptimizerMemory> {
        let mut memory = OptimizerMemory::of_params(&self.params);
        memory.state = self.optimizer_bytes()?;
        if let Some(layouts) = &self.layouts {
            layouts.add_memory(&mut memory);
        }
        memory.exchange += self.undo_log.bytes() + self.used.residual_bytes();
        Ok(memory)
    }

    /// If the ranks keep shards of the optimizer's state: which ones. Known from the first step on.
    fn shards(&self) -> Option<&Arc<ShardRanges>> {
        self.layouts.as_ref()?.shards()
    }

    /// The state of every strategy used so far, on the host. If you save the parameters with it,
    /// call [`Self::average_parameters`] first.
    ///
    /// # Errors
    /// A GPU's error.
    pub fn strategy_state(&self) -> Result<Vec<StrategyState>> {
        let state = |used: &UsedStrategy| {
            let feedback = used.with_error_feedback(|feedback| feedback.to_host()).transpose()?;
            Ok(StrategyState {
                option: used.option,
                config: used.config.clone(),
                steps: used.steps,
                error_feedback: feedback.unwrap_or_default(),
            })
        };
        self.used.iter().map(state).collect()
    }

    /// Restores the state that [`Self::strategy_state`] returned, and forgets the present state of
    /// all strategies. All ranks must load their states.
    ///
    /// # Errors
    /// A custom strategy that is not registered, or a residual whose parameter does not exist or
    /// has another length.
    pub fn load_strategy_state(&mut self, states: &[StrategyState]) -> Result<()> {
        states.iter().try_for_each(|state| self.check_residuals(&state.error_feedback))?;
        if self.placement.worker().is_some() {
            // Servers know the parameters before anything else.
            self.bound(|_, _| Ok(()))?;
        }
        self.placement.tell(|| {
            let strategy = |state: &StrategyState| {
                (state.option.to_string(), state.config.clone(), state.steps)
            };
            ServerCall::LoadStrategies(states.iter().map(strategy).collect())
        })?;
        self.used.clear();
        self.agreed = None;
        for state in states {
            let (index, _) = self.used.of(state.option, &state.config)?;
            let used = self.used.get_mut(index);
            used.steps = state.steps;
            used.with_error_feedback(|feedback| *feedback = state.error_feedback.clone());
        }
        Ok(())
    }

    fn check_residuals(&self, feedback: &ErrorFeedback) -> Result<()> {
        let params = self.params.list();
        for (_, name, values) in
            feedback.iter().filter(|(kind, ..)| *kind == ErrorFeedback::RESIDUAL)
        {
            let param = params.iter().find(|param| param.name() == name);
            let expected = param.map_or(0, |param| param.element_count());
            if expected != values.len() {
                let (name, got) = (name.to_owned(), values.len());
                return Err(Error::Residual { name, expected, got });
            }
        }
        Ok(())
    }
}
