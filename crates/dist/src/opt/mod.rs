//! The distributed optimizer: an optimizer whose ranks agree on every update by a strategy.
//!
//! | idea | where |
//! |---|---|
//! | one step, whatever the strategy | `step.rs` |
//! | units that leave while the backward pass goes on | `dispatcher.rs` |
//! | a failure of one rank that all ranks come to know | `fault.rs` |
//! | updates that can be undone | `journal.rs` |
//! | ranks that run out of batches | `join.rs` |
//! | SINGA's methods under their names | `singa.rs` |
//! | the parameters in units, with their buckets | `layout.rs` |
//! | the strategies used so far, and their state | `used.rs`, `state.rs` |
//! | the cost of steps | `figures.rs` |

mod config;
mod context;
mod dispatcher;
mod fault;
mod figures;
mod join;
mod journal;
mod layout;
mod singa;
mod state;
mod step;
#[cfg(test)]
mod tests;
mod used;

pub use config::{DistOptConfig, OnOverflow};
pub use figures::StepFigures;
pub use state::StrategyState;

use candelabrum_memory::Location;
use candelabrum_nn::{BackwardAndUpdate, DistOption, Param, Params};
use candelabrum_optim::{Optimizer, ParamInfo};
use candle_core::{DType, Shape, Tensor};

use self::context::StepContext;
use self::dispatcher::Dispatcher;
use self::journal::Journal;
use self::layout::Layouts;
use self::step::{Step, StepEnd};
use self::used::{UsedStrategies, Way};
use crate::buffers::{BufferSync, synchronize_buffers};
use crate::comm::{Group, Pending};
use crate::consistency::{check_consistency, digest, parameter_facts};
use crate::strategy::{self, StrategyConfig, Subject};
use crate::unit_plan::Sizing;
use crate::{Error, Result};

/// SINGA's `DistOpt`: wraps an optimizer, so that all ranks update by what they agree on; by the
/// average of all ranks' gradients, unless a strategy says otherwise, and then all models stay
/// equal, bit for bit.
///
/// The ranks are those of a world, or of any group of ranks: the replicas of a model whose layers are
/// split over other ranks, for instance.
#[derive(Debug)]
pub struct DistOpt {
    optimizer: Box<dyn Optimizer>,
    params: Params,
    group: Group,
    config: DistOptConfig,
    /// How many parameters have been made equal to rank 0's.
    synchronized: usize,
    /// Made at the first step, when every parameter exists.
    layouts: Option<Layouts>,
    /// The strategies used so far.
    used: UsedStrategies,
    /// What all ranks are known to ask for.
    agreed: Option<Request>,
    /// How far a strategy has let the ranks drift apart.
    drift: Drift,
    /// Memory for updates that may have to be undone.
    journal: Journal,
    /// The size of the units whose buckets hold gradients that are yet to be part of a step.
    accumulated: Option<Sizing>,
    /// A failure since the last step, of which the others will hear in the next one.
    fault: Option<Error>,
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

/// What a step is asked for.
#[derive(Clone, Debug, PartialEq)]
struct Request {
    option: DistOption,
    config: StrategyConfig,
    spars: f32,
    sizing: Sizing,
}

impl DistOpt {
    /// Wraps `optimizer` for the parameters in `params`, and makes those that exist equal to
    /// rank 0's. `ranks` are those that train together: a [`World`](crate::World), or a [`Group`].
    /// Layers with inferred sizes create their parameters at the first call, so run
    /// [`candelabrum_nn::Model::compile`] first. Each rank draws other noise (dropout masks) from
    /// now on, unless [`Params::set_noise_stream`] has chosen a stream.
    ///
    /// # Errors
    /// [`Error::Inconsistent`] where ranks differ in version, optimizer or parameters.
    pub fn new(
        optimizer: impl Optimizer + 'static,
        params: &Params,
        ranks: impl Into<Group>,
    ) -> Result<Self> {
        Self::with_config(optimizer, params, ranks, DistOptConfig::default())
    }

    /// The same with other settings.
    ///
    /// # Errors
    /// The same, and settings that make no sense.
    pub fn with_config(
        optimizer: impl Optimizer + 'static,
        params: &Params,
        ranks: impl Into<Group>,
        config: DistOptConfig,
    ) -> Result<Self> {
        config.check()?;
        let group = ranks.into();
        // Replicas that drop the same units would average the same noise.
        params.suggest_noise_stream(group.rank() as u64);
        let mut opt = Self {
            optimizer: Box::new(optimizer),
            params: params.clone(),
            group,
            config,
            synchronized: 0,
            layouts: None,
            used: UsedStrategies::default(),
            agreed: None,
            drift: Drift::Nothing,
            journal: Journal::default(),
            accumulated: None,
            fault: None,
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

    /// The ranks that train together.
    pub fn group(&self) -> &Group {
        &self.group
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
        for used in self.used.iter().filter(|used| used.option == option) {
            sum += used.figures;
        }
        sum
    }

    /// The Euclidean norm of what this rank's strategies have yet to send; 0 without error
    /// feedback.
    pub fn residual_norm(&self) -> f64 {
        let norms = self.used.iter().filter_map(|used| used.with_memory(|m| m.residual_norm()));
        norms.fold(0.0, |sum, norm| sum + norm.powi(2)).sqrt()
    }

    /// What the user should hear since the last call, such as that a sparse exchange went dense.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// Adds the gradients of `loss` to those of the next step, which counts and travels as one:
    /// PyTorch's `no_sync`. Gradients are added, so divide each of `k` losses by `k` to train as on
    /// one batch of all their examples. No gradient travels: ranks may call it different numbers of
    /// times. (Before the first step, all ranks must call it or none: they compare parameters that
    /// were made late, and allocate buckets together.) After an error the accumulated gradients are
    /// gone, and the next step of this rank fails on all ranks with the same error.
    ///
    /// # Errors
    /// Those of the backward pass, and parameters that the loss does not depend on.
    pub fn accumulate(&mut self, loss: &Tensor) -> Result<()> {
        self.bound(|opt, layouts| {
            let sizing = opt.agreed.as_ref().map_or(opt.config.sizing(), |request| request.sizing);
            let (group, used) = (&*opt.group, &mut opt.used);
            let layout = layouts.of(sizing, group, &mut |id| used.forget(id))?;
            if opt.accumulated.take() != Some(sizing) {
                layout.gradients.clear();
            }
            let local = layout.gradients.backward(loss).map_err(Error::from).and_then(|()| {
                step::complete(layout, opt.config.allow_unused)?;
                if !step::is_finite(loss)? {
                    layout.fill(f32::NAN)?;
                }
                Ok(())
            });
            match local {
                Ok(()) => opt.accumulated = Some(sizing),
                Err(error) => {
                    opt.fault.get_or_insert(error.clone());
                    return Ok(Err(error));
                }
            }
            Ok(Ok(()))
        })?
    }

    /// Makes one model of the ranks': before an evaluation, a checkpoint, and at the end. Averages
    /// all parameters over all ranks, if a strategy has let them drift apart, and treats buffers
    /// (running statistics) as [`DistOptConfig::buffers`] says. All ranks must call it.
    ///
    /// # Errors
    /// What goes wrong between ranks.
    pub fn average_parameters(&mut self) -> Result<()> {
        if self.drift == Drift::Parameters {
            step::average_parameters(&*self.group, &self.params.list())?;
            self.drift = Drift::Momentum;
        }
        synchronize_buffers(&self.params, &*self.group, self.config.buffers)
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
        let group = &*self.group;
        if group.world_size() > 1 {
            for param in &params {
                param.update_in_place(|values| group.broadcast(values.host()?, 0))??;
            }
        }
        synchronize_buffers(&self.params, group, BufferSync::Broadcast)?;
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
        check_consistency(&*self.group, &facts)
    }

    /// Fixes the set of parameters.
    fn bind(&mut self) -> Result<Layouts> {
        let params = self.params.list();
        if params.is_empty() {
            return Err(Error::NoParameters);
        }
        if params.len() > self.synchronized {
            self.check_same(&params)?;
            self.check_equal_values(&params[self.synchronized..])?;
        }
        let info = |param: &Param| -> (String, Vec<usize>, Location) {
            let var = param.var();
            (param.name().to_owned(), var.dims().to_vec(), Location::of(var.device()))
        };
        let infos: Vec<_> = params.iter().map(info).collect();
        let infos: Vec<_> = infos
            .iter()
            .map(|(name, dims, location)| ParamInfo { name, dims, location: location.clone() })
            .collect();
        self.optimizer.bind(&infos)?;
        Ok(Layouts::new(params))
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
        check_consistency(&*self.group, &facts)
    }

    /// Runs `work` with the parameters, bound now if they are not yet. An error of `work` means that
    /// the ranks no longer agree where they are. Where only this rank knows of it, the others are told:
    /// they would wait for a rank that does not come.
    fn bound<R>(&mut self, work: impl FnOnce(&mut Self, &mut Layouts) -> Result<R>) -> Result<R> {
        // The communicator's own failure, rather than the mess that it has left here.
        if let Some(error) = self.group.failure() {
            return Err(error);
        }
        let layouts = self.layouts.take().map_or_else(|| self.bind(), Ok);
        let result = layouts.and_then(|mut layouts| {
            let result = work(self, &mut layouts);
            self.layouts = Some(layouts);
            result
        });
        result.inspect_err(|error| {
            if !error.is_shared() {
                self.group.fail(error);
            }
        })
    }

    fn step(&mut self, loss: &Tensor, request: &Request) -> Result<()> {
        let end = self.bound(|opt, layouts| {
            let active = opt.count_active(true)?;
            opt.step_with(layouts, Some(loss), active, request)
        })?;
        match end {
            StepEnd::Taken | StepEnd::Skipped => Ok(()),
            StepEnd::Failed(error) => Err(error),
        }
    }

    /// One step in which `active` ranks have a batch; this one has none if there is no `loss`.
    fn step_with(
        &mut self,
        layouts: &mut Layouts,
        loss: Option<&Tensor>,
        active: usize,
        request: &Request,
    ) -> Result<StepEnd> {
        let (index, way) = match self.agree(request)? {
            Ok(found) => found,
            Err(error) => return Ok(StepEnd::Failed(error)),
        };
        let late = self.late_parameters(layouts);
        let fault = self.fault.take().or(late);
        let pending = match self.accumulated.take() {
            Some(sizing) if sizing != request.sizing => return Err(Error::Accumulated),
            accumulated => accumulated.is_some(),
        };
        let Self { used, optimizer, config, group, notices, journal, .. } = self;
        let layout = layouts.of(request.sizing, &**group, &mut |id| used.forget(id))?;
        let strategy = used.get_mut(index);
        let step = strategy.steps;
        let context = StepContext::new(group.clone(), layout, step, request.spars);
        strategy.prepare(&context)?;
        let (subject, mut wire, mut element) = (way.subject(step), Vec::new(), None);
        if let Way::Wire(way) = &way
            && !way.is_in_place()
        {
            wire = layout.take_wire(way.element, &**group)?;
            element = Some(way.element);
        }
        let rejoin = self.drift != Drift::Nothing;
        if subject == Subject::Parameters && group.world_size() > 1 {
            self.drift = Drift::Parameters;
        }
        let optimizer = &mut **optimizer;
        let step = Step { config, layout, optimizer, journal, pending, rejoin, active, notices };
        let dispatcher = Dispatcher::new(context, subject, way, wire);
        let (dispatcher, result) = step.run(dispatcher, loss, fault);
        if let (Some(element), Some(layout)) = (element, layouts.last_used()) {
            layout.put_wire(element, dispatcher.wire);
        }
        let taken = matches!(result, Ok(StepEnd::Taken));
        let notice = strategy.end_step(taken);
        if matches!(result, Err(_) | Ok(StepEnd::Failed(_))) {
            self.params.restore_buffers()?;
            return result;
        }
        self.params.keep_buffers();
        strategy.figures += dispatcher.figures;
        strategy.steps += 1;
        notices.extend(notice);
        if taken && subject == Subject::Gradients {
            self.drift = Drift::Nothing;
        }
        if let Some(id) = layouts.settle(&**group)? {
            used.forget(id);
        }
        result
    }

    /// Parameters that came into being after the first step.
    fn late_parameters(&self, layouts: &Layouts) -> Option<Error> {
        let late = self.params.list().split_off(layouts.params().len());
        let names: Vec<&str> = late.iter().map(Param::name).collect();
        (!names.is_empty()).then(|| Error::LateParameters { names: names.join(", ") })
    }

    /// The number of the strategy asked for, and the way of its units. Makes sure, whenever this rank
    /// asks for something new, that it is possible and that all ranks ask for the same. The inner error
    /// is one that all ranks get.
    fn agree(&mut self, request: &Request) -> Result<Result<(usize, Way)>> {
        let found = self.used.of(request.option, &request.config);
        if self.agreed.as_ref() == Some(request) {
            return Ok(found);
        }
        let possible = strategy::check(request.option, request.spars, &request.config);
        let found = possible.and(found);
        let (described, steps) = match &found {
            Ok((index, way)) => (way.describe(), self.used.get_mut(*index).steps),
            Err(error) => (format!("refused: {error}"), 0),
        };
        let facts = [
            ("the dist option", request.option.to_string()),
            ("the strategy", described),
            ("the strategy's configuration", format!("{:?}", request.config)),
            ("the number of its steps so far", steps.to_string()),
            ("spars", request.spars.to_string()),
            ("the size of units", format!("{:?}", request.sizing)),
        ];
        let facts = facts.map(|(name, value)| (name.to_owned(), value));
        match check_consistency(&*self.group, &facts) {
            Ok(()) => {}
            Err(error @ Error::Inconsistent { .. }) => return Ok(Err(error)),
            Err(error) => return Err(error),
        }
        if found.is_ok() {
            self.agreed = Some(request.clone());
        }
        Ok(found)
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
        self.step(loss, &Request { option: dist_option, config, spars, sizing })
    }
}
