//! The optimizers through which a training can train several ranks.

use std::path::Path;

use candelabrum_dist::{CommStats, DistOpt, Group, StepFigures, parameters_sha256};
use candelabrum_kvstore::{StoreKind, StoreOpt};
use candelabrum_nn::{BackwardAndUpdate, DistOption, Params};
use candle_core::Tensor;

use crate::checkpoint::{Part, PartState, Restored, Snapshot};
use crate::{Error, Result};

/// What a training needs of an optimizer over ranks, beside its steps.
pub trait RanksOpt: Part {
    /// Sets all ranks' parameters to the same values, after the model has created its parameters.
    ///
    /// # Errors
    /// Ranks that differ, a failure of another rank, or a passed deadline.
    fn synchronize(&mut self) -> Result<()>;

    /// Returns an error if no step could use this strategy.
    ///
    /// # Errors
    /// An unknown strategy or a `spars` out of range.
    fn check_option(&self, option: DistOption, spars: f32) -> Result<()>;

    /// The cost so far of a strategy's steps.
    fn figures(&self, option: DistOption) -> StepFigures;

    /// The Euclidean norm of what this rank's strategies have not sent yet.
    fn residual_norm(&self) -> f64;

    /// The notices for the user since the last call.
    fn take_notices(&mut self) -> Vec<String>;

    /// Bytes and time of this rank's communication.
    fn traffic(&self) -> CommStats;

    /// The optimizer in a line, with its settings, if this rank knows it.
    fn describe_optimizer(&self) -> Option<String>;

    /// The learning rate of the next step. `None` if this rank has no optimizer, but servers have: then it cannot be
    /// set either.
    fn learning_rate(&self) -> Option<f64>;

    /// The factor of the learning rate beside its schedule.
    fn rate_factor(&self) -> f64;

    /// Sets the factor of the learning rate from the next step on, the same on all ranks.
    ///
    /// # Errors
    /// A factor that is negative or not finite, or an optimizer that has none.
    fn set_rate_factor(&mut self, factor: f64) -> Result<()>;

    /// Sets the learning rate itself from the next step on, in place of the schedule, the same on all ranks. `None`
    /// gives it back to the schedule.
    ///
    /// # Errors
    /// Those of [`set_rate_factor`](Self::set_rate_factor).
    fn set_rate(&mut self, rate: Option<f64>) -> Result<()>;

    /// Whether all ranks take their steps together. Workers of a store without rounds do not.
    fn is_in_step(&self) -> bool;
}

/// The digests of all models' parameters on each rank, in rank order.
pub(crate) fn digests(parts: &[(&str, &mut dyn RanksOpt)]) -> Result<Vec<String>> {
    let Some((_, first)) = parts.first() else { return Ok(Vec::new()) };
    let own = parts.iter().map(|(_, part)| parameters_sha256(part.params()));
    let own = own.collect::<candelabrum_dist::Result<Vec<_>>>()?;
    Ok(first.group().all_gather_text(&own.join(" "))?)
}

/// What a [`Trainer`](crate::Trainer) needs of an optimizer over ranks. [`DistOpt`] exchanges gradients
/// between the ranks, [`StoreOpt`] trains through the servers of a key-value store, and [`AnyOpt`] is
/// either, chosen by options.
pub trait TrainerOpt: RanksOpt + BackwardAndUpdate<Error: Into<Error>> {
    /// Says what all losses of this rank's coming step will weigh together, so that the ranks exchange the sum
    /// during the forward pass. All ranks call it, or none.
    fn begin_step(&mut self, weight: f64);

    /// Adds the gradients of `loss` to those of the next step, without communication.
    ///
    /// # Errors
    /// An error of the backward pass, or parameters that the loss does not depend on.
    fn accumulate(&mut self, loss: &Tensor) -> Result<()>;

    /// Takes part in the steps of the ranks that still have batches, until no rank has one.
    ///
    /// # Errors
    /// An optimizer that is not set to ranks with different numbers of batches, and the errors of the steps.
    fn join(&mut self, option: DistOption, spars: f32) -> Result<()>;

    /// Returns an error if no rank could [join](Self::join) the others.
    ///
    /// # Errors
    /// An optimizer that is not set to ranks with different numbers of batches, or a model that cannot be
    /// trained so.
    fn check_uneven(&self) -> Result<()>;

    /// The optimizer whose steps can be recorded as CUDA graphs, if it is one.
    fn as_dist_opt(&mut self) -> Option<&mut DistOpt>;
}

impl RanksOpt for DistOpt {
    fn synchronize(&mut self) -> Result<()> {
        Ok(self.synchronize()?)
    }
    fn check_option(&self, option: DistOption, spars: f32) -> Result<()> {
        Ok(self.check(option, spars)?)
    }
    fn figures(&self, option: DistOption) -> StepFigures {
        self.figures(option)
    }
    fn residual_norm(&self) -> f64 {
        self.residual_norm()
    }
    fn take_notices(&mut self) -> Vec<String> {
        self.take_notices()
    }
    fn traffic(&self) -> CommStats {
        self.group().stats()
    }
    fn learning_rate(&self) -> Option<f64> {
        // The number that the user wrote: 0.01, and not 0.009999999776.
        let rate = self.optimizer().learning_rate();
        Some(rate.to_string().parse().unwrap_or_else(|_| f64::from(rate)))
    }
    fn describe_optimizer(&self) -> Option<String> {
        Some(self.optimizer().describe())
    }
    fn rate_factor(&self) -> f64 {
        self.optimizer().rate_factor()
    }
    fn set_rate_factor(&mut self, factor: f64) -> Result<()> {
        Ok(self.set_rate_factor(factor)?)
    }
    fn set_rate(&mut self, rate: Option<f64>) -> Result<()> {
        Ok(self.set_rate(rate)?)
    }
    fn is_in_step(&self) -> bool {
        true
    }
}

impl TrainerOpt for DistOpt {
    fn begin_step(&mut self, weight: f64) {
        self.begin_step(weight);
    }
    fn accumulate(&mut self, loss: &Tensor) -> Result<()> {
        Ok(self.accumulate(loss)?)
    }
    fn join(&mut self, option: DistOption, spars: f32) -> Result<()> {
        self.join(option, spars)?;
        Ok(())
    }
    fn check_uneven(&self) -> Result<()> {
        Ok(self.check_uneven()?)
    }
    fn as_dist_opt(&mut self) -> Option<&mut DistOpt> {
        Some(self)
    }
}

impl RanksOpt for StoreOpt {
    fn synchronize(&mut self) -> Result<()> {
        Ok(self.synchronize()?)
    }
    fn check_option(&self, option: DistOption, spars: f32) -> Result<()> {
        Ok(self.check(option, spars)?)
    }
    fn figures(&self, option: DistOption) -> StepFigures {
        self.figures(option)
    }
    fn residual_norm(&self) -> f64 {
        self.residual_norm()
    }
    fn take_notices(&mut self) -> Vec<String> {
        self.take_notices()
    }
    fn traffic(&self) -> CommStats {
        self.store().traffic()
    }
    fn describe_optimizer(&self) -> Option<String> {
        Some(self.describe_optimizer())
    }
    fn learning_rate(&self) -> Option<f64> {
        None
    }
    fn rate_factor(&self) -> f64 {
        1.0
    }
    fn set_rate_factor(&mut self, factor: f64) -> Result<()> {
        if factor == 1.0 {
            return Ok(());
        }
        let option = "the factor of the learning rate";
        let range = "1 with a key-value store, whose servers have the optimizer".to_owned();
        Err(Error::Option { option, value: factor.to_string(), range })
    }
    fn set_rate(&mut self, rate: Option<f64>) -> Result<()> {
        let Some(rate) = rate else { return Ok(()) };
        let option = "the learning rate";
        let range =
            "as scheduled with a key-value store, whose servers have the optimizer".to_owned();
        Err(Error::Option { option, value: rate.to_string(), range })
    }
    fn is_in_step(&self) -> bool {
        self.store().config().kind != StoreKind::DistAsync
    }
}

impl TrainerOpt for StoreOpt {
    fn begin_step(&mut self, weight: f64) {
        self.begin_step(weight);
    }
    fn accumulate(&mut self, loss: &Tensor) -> Result<()> {
        Ok(self.accumulate(loss)?)
    }
    fn join(&mut self, _: DistOption, _: f32) -> Result<()> {
        self.check_uneven()
    }
    fn check_uneven(&self) -> Result<()> {
        let range = "even with a key-value store, whose workers all have the same number of steps";
        let (option, value) = ("the division of the data", "uneven".to_owned());
        Err(Error::Option { option, value, range: range.to_owned() })
    }
    fn as_dist_opt(&mut self) -> Option<&mut DistOpt> {
        None
    }
}

/// One of the optimizers, chosen when the program runs.
#[derive(Debug)]
#[non_exhaustive]
pub enum AnyOpt {
    /// The ranks exchange gradients.
    AllReduce(Box<DistOpt>),
    /// Servers update the parameters.
    Store(Box<StoreOpt>),
}

impl From<DistOpt> for AnyOpt {
    fn from(opt: DistOpt) -> Self {
        Self::AllReduce(Box::new(opt))
    }
}

impl From<StoreOpt> for AnyOpt {
    fn from(opt: StoreOpt) -> Self {
        Self::Store(Box::new(opt))
    }
}

impl AnyOpt {
    fn get(&self) -> &dyn RanksOpt {
        match self {
            Self::AllReduce(opt) => &**opt,
            Self::Store(opt) => &**opt,
        }
    }

    fn get_mut(&mut self) -> &mut dyn RanksOpt {
        match self {
            Self::AllReduce(opt) => &mut **opt,
            Self::Store(opt) => &mut **opt,
        }
    }
}

impl BackwardAndUpdate for AnyOpt {
    type Error = Error;

    fn backward_and_update_with(
        &mut self,
        loss: &Tensor,
        dist_option: DistOption,
        spars: f32,
    ) -> Result<()> {
        match self {
            Self::AllReduce(opt) => Ok(opt.backward_and_update_with(loss, dist_option, spars)?),
            Self::Store(opt) => Ok(opt.backward_and_update_with(loss, dist_option, spars)?),
        }
    }
}

impl Part for AnyOpt {
    fn params(&self) -> &Params {
        self.get().params()
    }
    fn group(&self) -> &Group {
        self.get().group()
    }
    fn average_parameters(&mut self) -> Result<()> {
        self.get_mut().average_parameters()
    }
    fn save(&mut self, name: &str, snapshot: &mut Snapshot, dir: &Path) -> Result<PartState> {
        self.get_mut().save(name, snapshot, dir)
    }
    fn check(&mut self, name: &str, restored: &Restored) -> Result<()> {
        self.get_mut().check(name, restored)
    }
    fn load(&mut self, name: &str, restored: &Restored) -> Result<()> {
        self.get_mut().load(name, restored)
    }
}

impl RanksOpt for AnyOpt {
    fn synchronize(&mut self) -> Result<()> {
        self.get_mut().synchronize()
    }
    fn check_option(&self, option: DistOption, spars: f32) -> Result<()> {
        self.get().check_option(option, spars)
    }
    fn figures(&self, option: DistOption) -> StepFigures {
        self.get().figures(option)
    }
    fn residual_norm(&self) -> f64 {
        self.get().residual_norm()
    }
    fn take_notices(&mut self) -> Vec<String> {
        self.get_mut().take_notices()
    }
    fn traffic(&self) -> CommStats {
        self.get().traffic()
    }
    fn learning_rate(&self) -> Option<f64> {
        self.get().learning_rate()
    }
    fn describe_optimizer(&self) -> Option<String> {
        self.get().describe_optimizer()
    }
    fn rate_factor(&self) -> f64 {
        self.get().rate_factor()
    }
    fn set_rate_factor(&mut self, factor: f64) -> Result<()> {
        self.get_mut().set_rate_factor(factor)
    }
    fn set_rate(&mut self, rate: Option<f64>) -> Result<()> {
        self.get_mut().set_rate(rate)
    }
    fn is_in_step(&self) -> bool {
        self.get().is_in_step()
    }
}

impl TrainerOpt for AnyOpt {
    fn begin_step(&mut self, weight: f64) {
        match self {
            Self::AllReduce(opt) => opt.begin_step(weight),
            Self::Store(opt) => opt.begin_step(weight),
        }
    }
    fn accumulate(&mut self, loss: &Tensor) -> Result<()> {
        match self {
            Self::AllReduce(opt) => Ok(opt.accumulate(loss)?),
            Self::Store(opt) => Ok(opt.accumulate(loss)?),
        }
    }
    fn join(&mut self, option: DistOption, spars: f32) -> Result<()> {
        match self {
            Self::AllReduce(opt) => TrainerOpt::join(&mut **opt, option, spars),
            Self::Store(opt) => TrainerOpt::join(&mut **opt, option, spars),
        }
    }
    fn check_uneven(&self) -> Result<()> {
        match self {
            Self::AllReduce(opt) => TrainerOpt::check_uneven(&**opt),
            Self::Store(opt) => TrainerOpt::check_uneven(&**opt),
        }
    }
    fn as_dist_opt(&mut self) -> Option<&mut DistOpt> {
        match self {
            Self::AllReduce(opt) => Some(opt),
            Self::Store(_) => None,
        }
    }
}
