//! The distributed optimizer: an optimizer whose ranks agree on every update by a strategy.
//!
//! | idea | where |
//! |---|---|
//! | one step, whatever the strategy | `step.rs` |
//! | units that leave while the backward pass goes on | `reducer.rs` |
//! | updates that can be undone | `journal.rs` |
//! | ranks that run out of batches | `join.rs` |
//! | SINGA's methods under their names | `singa.rs` |
//! | candle's gradients on their way into buckets, and the buckets | `gradients.rs`, `units.rs` |
//! | gradient clipping | `clip.rs` |
//! | what a step costs, what a strategy carries on | `figures.rs`, `state.rs` |

mod clip;
mod config;
mod figures;
mod gradients;
mod join;
mod journal;
mod reducer;
mod singa;
mod state;
mod step;
#[cfg(test)]
mod tests;
mod units;

pub use config::{DistOptConfig, OnOverflow};
pub use figures::StepFigures;
pub use state::StrategyState;

use candelabrum_nn::{BackwardAndUpdate, DistOption, Param, Params};
use candelabrum_optim::{Optimizer, ParamInfo};
use candle_core::{DType, Shape, Tensor};

use self::gradients::{Backward, names};
use self::journal::Journal;
use self::reducer::Reducer;
use self::step::Step;
use self::units::{Bound, Facts};
use crate::bucket::Sizing;
use crate::buffers::{BufferSync, synchronize_buffers};
use crate::comm::Pending;
use crate::consistency::{check_consistency, digest, parameter_facts};
use crate::strategy::{self, Memory, Strategy, StrategyConfig, Subject, Unit};
use crate::{Error, Result, World};

/// SINGA's `DistOpt`: wraps an optimizer, so that all ranks update by what they agree on; by the
/// average of all ranks' gradients, unless a strategy says otherwise, and then all models stay
/// equal, bit for bit.
#[derive(Debug)]
pub struct DistOpt {
    optimizer: Box<dyn Optimizer>,
    params: Params,
    world: World,
    config: DistOptConfig,
    /// How many parameters have been made equal to rank 0's.
    synchronized: usize,
    /// Made at the first step, when every parameter exists.
    bound: Option<Bound>,
    /// The strategies used so far.
    engines: Vec<Engine>,
    /// What all ranks are known to ask for.
    agreed: Option<Ask>,
    /// How far a strategy has let the ranks drift apart.
    drift: Drift,
    /// Memory for updates that may have to be undone.
    journal: Journal,
    /// The layout whose buckets hold gradients that are yet to be part of a step.
    accumulated: Option<usize>,
    notices: Vec<String>,
    /// All-reduces that `wait` has not been called for.
    started: Vec<(Shape, Pending)>,
}

/// What differs between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drift {
    Nothing,
    /// What the optimizer keeps; the parameters have been averaged.
    Momentum,
    Parameters,
}

/// A strategy with its state.
#[derive(Debug)]
struct Engine {
    option: DistOption,
    config: StrategyConfig,
    /// Away during a step.
    strategy: Option<Box<dyn Strategy>>,
    /// The layouts that it has made room for.
    prepared: Vec<usize>,
    steps: u64,
    figures: StepFigures,
}

/// What a step is asked for.
#[derive(Clone, Debug, PartialEq)]
struct Ask {
    option: DistOption,
    config: StrategyConfig,
    spars: f32,
    sizing: Sizing,
}

impl DistOpt {
    /// Wraps `optimizer` for the parameters in `params`, and makes those that exist equal to
    /// rank 0's. Layers with inferred sizes create theirs at the first call, so run
    /// [`candelabrum_nn::Model::compile`] first. Noise (dropout masks) is another on every rank from
    /// now on, unless [`Params::set_noise_stream`] has chosen a stream.
    ///
    /// # Errors
    /// [`Error::Inconsistent`] where ranks differ in version, optimizer or parameters.
    pub fn new(
        optimizer: impl Optimizer + 'static,
        params: &Params,
        world: &World,
    ) -> Result<Self> {
        Self::with_config(optimizer, params, world, DistOptConfig::default())
    }

    /// The same with other settings.
    ///
    /// # Errors
    /// The same, and settings that make no sense.
    pub fn with_config(
        optimizer: impl Optimizer + 'static,
        params: &Params,
        world: &World,
        config: DistOptConfig,
    ) -> Result<Self> {
        config.check()?;
        // Replicas that drop the same units would average the same noise.
        params.suggest_noise_stream(world.rank() as u64);
        let mut opt = Self {
            optimizer: Box::new(optimizer),
            params: params.clone(),
            world: world.clone(),
            config,
            synchronized: 0,
            bound: None,
            engines: Vec::new(),
            agreed: None,
            drift: Drift::Nothing,
            journal: Journal::default(),
            accumulated: None,
            notices: Vec::new(),
            started: Vec::new(),
        };
        opt.synchronize()?;
        Ok(opt)
    }

    /// The parameters it updates.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The ranks that agree.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// What updates the parameters: its learning rate, how many steps it has taken.
    pub fn optimizer(&self) -> &dyn Optimizer {
        &*self.optimizer
    }

    /// Its settings.
    pub fn config(&self) -> &DistOptConfig {
        &self.config
    }

    /// Refuses a strategy that no step could use.
    ///
    /// # Errors
    /// As for [`strategy::check`].
    pub fn check(&self, option: DistOption, spars: f32) -> Result<()> {
        strategy::check(option, spars, &self.config.strategy)
    }

    /// What the steps of a strategy have cost so far.
    pub fn figures(&self, option: DistOption) -> StepFigures {
        let mut sum = StepFigures::default();
        for engine in self.engines.iter().filter(|engine| engine.option == option) {
            sum += engine.figures;
        }
        sum
    }

    /// The Euclidean norm of what this rank's strategies have yet to send; 0 without error
    /// feedback.
    pub fn residual_norm(&mut self) -> f64 {
        let memories = self.engines.iter_mut().filter_map(Engine::memory);
        memories.fold(0.0, |sum, memory| sum + memory.residual_norm().powi(2)).sqrt()
    }

    /// What the user should hear since the last call, such as that a sparse exchange went dense.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// Adds the gradients of `loss` to those of the next step, which counts and travels as one:
    /// PyTorch's `no_sync`. Gradients are added, so divide each of `k` losses by `k` to train as on
    /// one batch of all their examples. No gradient travels: ranks may call it different numbers of
    /// times. (Before the first step, all ranks must call it or none: they compare parameters that
    /// were made late.) After an error what was accumulated is gone.
    ///
    /// # Errors
    /// Those of the backward pass, and parameters that the loss does not depend on.
    pub fn accumulate(&mut self, loss: &Tensor) -> Result<()> {
        self.while_bound(|opt, bound| opt.accumulate_into(bound, loss))
    }

    fn accumulate_into(&mut self, bound: &mut Bound, loss: &Tensor) -> Result<()> {
        let sizing = self.agreed.as_ref().map_or(self.config.sizing(), |ask| ask.sizing);
        let rank = self.world.rank();
        let index = bound.layout(sizing, self.world.comm())?;
        let pending = self.accumulated.take() == Some(index);
        let layout = &mut bound.layouts[index];
        let (params, allow_unused) = (&bound.params[..], self.config.allow_unused);
        Backward { params, allow_unused, pending }.run(loss, layout, ()).1?;
        if !gradients::is_finite(loss)? {
            gradients::fill(layout, f32::NAN, rank)?;
        }
        self.accumulated = Some(index);
        Ok(())
    }

    /// Makes one model of the ranks': before an evaluation, a checkpoint, and at the end. Averages
    /// all parameters over all ranks, if a strategy has let them drift apart, and treats buffers
    /// (running statistics) as [`DistOptConfig::buffers`] says. All ranks must call it.
    ///
    /// # Errors
    /// What goes wrong between ranks.
    pub fn average_parameters(&mut self) -> Result<()> {
        if self.drift == Drift::Parameters {
            step::average_parameters(self.world.comm(), &self.params.list())?;
            self.drift = Drift::Momentum;
        }
        synchronize_buffers(&self.params, self.world.comm(), self.config.buffers)
    }

    /// Gives every rank rank 0's values of the parameters and buffers that exist now. Called when the
    /// optimizer is made; call it again after changing parameters by hand.
    ///
    /// # Errors
    /// [`Error::Inconsistent`] where ranks differ in version, optimizer or parameters.
    pub fn synchronize(&mut self) -> Result<()> {
        let params = self.params.list();
        self.check_same(&params)?;
        params.iter().try_for_each(Param::watch)?;
        let comm = self.world.comm();
        if comm.world_size() > 1 {
            for param in &params {
                units::change(param, |values| comm.broadcast(values, 0))?;
            }
        }
        synchronize_buffers(&self.params, comm, BufferSync::Broadcast)?;
        self.synchronized = params.len();
        if self.drift == Drift::Parameters {
            self.drift = Drift::Momentum;
        }
        Ok(())
    }

    /// Refuses ranks that would not train the same thing.
    fn check_same(&self, params: &[Param]) -> Result<()> {
        if let Some(param) = params.iter().find(|param| param.var().dtype() != DType::F32) {
            let (name, dtype) = (param.name().to_owned(), format!("{:?}", param.var().dtype()));
            return Err(Error::ParameterType { name, dtype });
        }
        let mut facts = vec![
            ("the version of candelabrum".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            ("the optimizer".to_owned(), self.optimizer.describe()),
            ("the optimizer's configuration".to_owned(), format!("{:?}", self.config)),
        ];
        facts.extend(parameter_facts(params));
        check_consistency(self.world.comm(), &facts)
    }

    /// Fixes the set of parameters.
    fn bind(&mut self) -> Result<Bound> {
        let params = self.params.list();
        if params.is_empty() {
            return Err(Error::NoParameters);
        }
        if params.len() > self.synchronized {
            self.check_same(&params)?;
            self.check_equal_values(&params[self.synchronized..])?;
        }
        let info = |param| ParamInfo { name: Param::name(param), dims: param.var().dims() };
        let infos: Vec<_> = params.iter().map(info).collect();
        self.optimizer.bind(&infos)?;
        Ok(Bound { params: params.into(), layouts: Vec::new() })
    }

    /// Parameters made since the last [`Self::synchronize`] have been used already: it is too late
    /// to replace them, but they are equal where all ranks used one seed.
    fn check_equal_values(&self, params: &[Param]) -> Result<()> {
        let facts = params
            .iter()
            .map(|param| {
                let what =
                    format!("the initial value of {} (compile the model first)", param.name());
                Ok((what, digest(std::slice::from_ref(param))?))
            })
            .collect::<Result<Vec<_>>>()?;
        check_consistency(self.world.comm(), &facts)
    }

    /// The number of the strategy made with these settings, now if there is none yet.
    fn engine(&mut self, option: DistOption, config: &StrategyConfig) -> Result<usize> {
        let same = |engine: &Engine| engine.option == option && engine.config == *config;
        if let Some(index) = self.engines.iter().position(same) {
            return Ok(index);
        }
        let strategy = Some(strategy::make(option, config)?);
        let figures = StepFigures::default();
        self.engines.push(Engine {
            option,
            config: config.clone(),
            strategy,
            prepared: Vec::new(),
            steps: 0,
            figures,
        });
        Ok(self.engines.len() - 1)
    }

    fn step(&mut self, loss: &Tensor, ask: &Ask) -> Result<()> {
        self.while_bound(|opt, bound| opt.step_of(bound, loss, ask))
    }

    /// Runs `work` with the parameters, bound now if they are not yet, and tells the others of an
    /// error that only this rank has: they would wait for a rank that does not come.
    fn while_bound(
        &mut self,
        work: impl FnOnce(&mut Self, &mut Bound) -> Result<()>,
    ) -> Result<()> {
        let bound = self.bound.take().map_or_else(|| self.bind(), Ok);
        let result = bound.and_then(|mut bound| {
            let result = work(self, &mut bound);
            self.bound = Some(bound);
            result
        });
        if let Err(error) = &result
            && !error.is_shared()
        {
            self.world.comm().tell(&error.to_string());
        }
        result
    }

    fn step_of(&mut self, bound: &mut Bound, loss: &Tensor, ask: &Ask) -> Result<()> {
        if self.params.len() > bound.params.len() {
            let late = self.params.list().split_off(bound.params.len());
            return Err(Error::LateParameters { names: names(&late) });
        }
        let active = self.count_active(true)?;
        self.step_with(bound, Some(loss), active, ask)
    }

    /// One step in which `active` ranks have a batch; this one has none if there is no `loss`.
    fn step_with(
        &mut self,
        bound: &mut Bound,
        loss: Option<&Tensor>,
        active: usize,
        ask: &Ask,
    ) -> Result<()> {
        let index = self.agree(ask)?;

        let Self { engines, optimizer, config, world, notices, journal, .. } = self;
        let (engine, comm) = (&mut engines[index], world.group());
        let layout = bound.layout(ask.sizing, &*comm)?;
        let pending = match self.accumulated.take() {
            Some(accumulated) if accumulated != layout => return Err(Error::Accumulated),
            accumulated => accumulated.is_some(),
        };
        let plans = bound.layouts[layout].plans.clone();
        let (step, spars, params) = (engine.steps, ask.spars, bound.params.clone());
        let facts = Facts { comm: comm.clone(), params, plans, layout, step, spars };
        engine.prepare(&facts)?;
        let strategy = engine.strategy.take().ok_or(Error::Stopped { rank: comm.rank() })?;
        let subject = strategy.subject(step);
        let rejoin = self.drift != Drift::Nothing;
        if subject == Subject::Parameters && comm.world_size() > 1 {
            self.drift = Drift::Parameters;
        }
        let step = Step {
            config,
            layout: &mut bound.layouts[layout],
            optimizer: &mut **optimizer,
            journal,
            pending,
            rejoin,
            active,
            notices,
        };
        let (reducer, result) = step.run(Reducer::new(facts, subject, strategy), loss);
        let strategy = engine.strategy.insert(reducer.strategy);
        let taken = result.as_ref().is_ok_and(|figures| figures.skipped == 0);
        strategy.end_step(taken);
        engine.figures += result?;
        engine.steps += 1;
        if taken && subject == Subject::Gradients {
            self.drift = Drift::Nothing;
        }
        notices.extend(strategy.notice());
        if bound.settle(layout, &*comm)? {
            let strategies = engines.iter_mut().filter_map(|engine| engine.strategy.as_mut());
            strategies.for_each(|strategy| strategy.forget(layout));
        }
        Ok(())
    }

    /// The number of the strategy asked for. Makes sure, whenever this rank asks for something new,
    /// that it is possible and that all ranks ask for the same.
    fn agree(&mut self, ask: &Ask) -> Result<usize> {
        if self.agreed.as_ref() == Some(ask) {
            return self.engine(ask.option, &ask.config);
        }
        strategy::check(ask.option, ask.spars, &ask.config)?;
        let engine = self.engine(ask.option, &ask.config)?;
        let Engine { strategy, steps, .. } = &self.engines[engine];
        let strategy = strategy.as_ref().map(|strategy| strategy.describe());
        let facts = [
            ("the dist option", ask.option.to_string()),
            ("the strategy", strategy.unwrap_or_default()),
            ("the strategy's configuration", format!("{:?}", ask.config)),
            ("the number of its steps so far", steps.to_string()),
            ("spars", ask.spars.to_string()),
            ("the size of units", format!("{:?}", ask.sizing)),
        ];
        let facts = facts.map(|(name, value)| (name.to_owned(), value));
        check_consistency(self.world.comm(), &facts)?;
        self.agreed = Some(ask.clone());
        Ok(engine)
    }
}

impl Engine {
    /// Makes room for the units of a layout, before the first step with them.
    fn prepare(&mut self, facts: &Facts) -> Result<()> {
        let Some(strategy) = &mut self.strategy else { return Ok(()) };
        if !self.prepared.contains(&facts.layout) {
            let units: Vec<Unit<'_>> = (0..facts.plans.len()).map(|i| facts.unit(i)).collect();
            strategy.prepare(&units, &*facts.comm)?;
            self.prepared.push(facts.layout);
        }
        Ok(())
    }

    fn memory(&mut self) -> Option<&mut Memory> {
        self.strategy.as_mut()?.memory()
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
        let Self { config, .. } = self;
        let (config, sizing) = (config.strategy.clone(), config.sizing());
        self.step(loss, &Ask { option: dist_option, config, spars, sizing })
    }
}
