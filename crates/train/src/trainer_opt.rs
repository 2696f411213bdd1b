//! The optimizers through which a trainer can train several ranks.

use candelabrum_dist::{CommStats, DistOpt, Group, StepFigures};
use candelabrum_kvstore::StoreOpt;
use candelabrum_nn::{BackwardAndUpdate, DistOption, Params};
use candle_core::Tensor;

use crate::{Error, Result};

/// What a [`Trainer`](crate::Trainer) needs of an optimizer over ranks. [`DistOpt`] exchanges gradients
/// between the ranks, [`StoreOpt`] trains through the servers of a key-value store, and [`AnyOpt`] is
/// either, chosen by options.
pub trait TrainerOpt: BackwardAndUpdate<Error: Into<Error>> {
    /// The parameters that it updates.
    fn params(&self) -> &Params;

    /// The ranks that train together.
    fn group(&self) -> &Group;

    /// Sets all ranks' parameters to the same values, after the model has created its parameters.
    ///
    /// # Errors
    /// Ranks that differ, a failure of another rank, or a passed deadline.
    fn synchronize(&mut self) -> Result<()>;

    /// Makes one model of the ranks' models, before an evaluation and at the end.
    ///
    /// # Errors
    /// A failure of another rank or a passed deadline.
    fn average_parameters(&mut self) -> Result<()>;

    /// Returns an error if no step could use this strategy.
    ///
    /// # Errors
    /// An unknown strategy or a `spars` out of range.
    fn check(&self, option: DistOption, spars: f32) -> Result<()>;

    /// The cost so far of a strategy's steps.
    fn figures(&self, option: DistOption) -> StepFigures;

    /// The Euclidean norm of what this rank's strategies have not sent yet.
    fn residual_norm(&self) -> f64;

    /// The notices for the user since the last call.
    fn take_notices(&mut self) -> Vec<String>;

    /// Bytes and time of this rank's communication.
    fn traffic(&self) -> CommStats;

    /// The optimizer whose steps can be recorded as CUDA graphs, if it is one.
    fn as_dist_opt(&mut self) -> Option<&mut DistOpt>;
}

impl TrainerOpt for DistOpt {
    fn params(&self) -> &Params {
        self.params()
    }
    fn group(&self) -> &Group {
        self.group()
    }
    fn synchronize(&mut self) -> Result<()> {
        Ok(self.synchronize()?)
    }
    fn average_parameters(&mut self) -> Result<()> {
        Ok(self.average_parameters()?)
    }
    fn check(&self, option: DistOption, spars: f32) -> Result<()> {
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
    fn as_dist_opt(&mut self) -> Option<&mut DistOpt> {
        Some(self)
    }
}

impl TrainerOpt for StoreOpt {
    fn params(&self) -> &Params {
        self.params()
    }
    fn group(&self) -> &Group {
        self.store().workers()
    }
    fn synchronize(&mut self) -> Result<()> {
        Ok(self.synchronize()?)
    }
    fn average_parameters(&mut self) -> Result<()> {
        Ok(self.average_parameters()?)
    }
    fn check(&self, option: DistOption, spars: f32) -> Result<()> {
        Ok(self.check(option, spars)?)
    }
    fn figures(&self, option: DistOption) -> StepFigures {
        self.figures(option)
    }
    fn residual_norm(&self) -> f64 {
        self.residual_norm()
    }
    fn take_notices(&mut self) -> Vec<String> {
        Vec::new()
    }
    fn traffic(&self) -> CommStats {
        self.store().traffic()
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

/// Calls `$body` with whatever optimizer it is.
macro_rules! with {
    ($any:expr, $opt:ident => $body:expr) => {
        match $any {
            AnyOpt::AllReduce($opt) => $body,
            AnyOpt::Store($opt) => $body,
        }
    };
}

impl BackwardAndUpdate for AnyOpt {
    type Error = Error;

    fn backward_and_update_with(
        &mut self,
        loss: &Tensor,
        dist_option: DistOption,
        spars: f32,
    ) -> Result<()> {
        with!(self, opt => Ok(opt.backward_and_update_with(loss, dist_option, spars)?))
    }
}

impl TrainerOpt for AnyOpt {
    fn params(&self) -> &Params {
        with!(self, opt => opt.params())
    }
    fn group(&self) -> &Group {
        with!(self, opt => TrainerOpt::group(&**opt))
    }
    fn synchronize(&mut self) -> Result<()> {
        with!(self, opt => Ok(opt.synchronize()?))
    }
    fn average_parameters(&mut self) -> Result<()> {
        with!(self, opt => Ok(opt.average_parameters()?))
    }
    fn check(&self, option: DistOption, spars: f32) -> Result<()> {
        with!(self, opt => Ok(opt.check(option, spars)?))
    }
    fn figures(&self, option: DistOption) -> StepFigures {
        with!(self, opt => opt.figures(option))
    }
    fn residual_norm(&self) -> f64 {
        with!(self, opt => opt.residual_norm())
    }
    fn take_notices(&mut self) -> Vec<String> {
        with!(self, opt => TrainerOpt::take_notices(&mut **opt))
    }
    fn traffic(&self) -> CommStats {
        with!(self, opt => opt.traffic())
    }
    fn as_dist_opt(&mut self) -> Option<&mut DistOpt> {
        with!(self, opt => opt.as_dist_opt())
    }
}
