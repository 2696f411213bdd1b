//! The optimizers through which a training can train several ranks.

mod dist_opt;
mod store_opt;

use std::any::Any;
use std::fmt;

use candelabrum_dist::{
    CommStats, Group, OptimizerMemory, StepFigures, StepGraph, parameters_sha256,
};
use candelabrum_nn::{BackwardAndUpdate, DistOption};
use candle_core::Tensor;

use crate::checkpoint::Stateful;
use crate::{Error, Result};

/// An optimizer over ranks, as a training sees it. A [`DistOpt`](candelabrum_dist::DistOpt) exchanges gradients between
/// the ranks, and a [`StoreOpt`](candelabrum_kvstore::StoreOpt) trains through the servers of a key-value store. A
/// `Box<dyn DistributedOptimizer>` is either, chosen when the program runs.
///
/// All ranks call the methods together, except those that only return something.
///
/// ```
/// use candelabrum_dist::{DistOpt, World};
/// use candelabrum_nn::{DistOption, Model, Params, layers::Linear, FromModule};
/// use candelabrum_optim::Sgd;
/// use candelabrum_train::DistributedOptimizer;
/// use candle_core::{Device, Tensor};
///
/// let params = Params::new(0);
/// let model = FromModule(Linear::new(&params.root(), 2));
/// model.compile(&params, (1, 3))?;
/// let opt = DistOpt::new(Sgd::new(0.1), &params, &World::single())?;
/// let mut opt: Box<dyn DistributedOptimizer> = opt.into();
/// let xs = Tensor::new(&[[1f32, 2.0, 3.0]], &Device::Cpu)?;
/// let ys = Tensor::new(&[1_u32], &Device::Cpu)?;
/// model.train_one_batch(&mut opt, &xs, &ys, DistOption::Fp32, 0.0)?;
/// assert_eq!(opt.learning_rate(), Some(0.1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait DistributedOptimizer: Stateful + Any + fmt::Debug {
    /// The ranks that train together.
    fn group(&self) -> &Group;

    /// Sets all ranks' parameters to the same values, after the model has created its parameters.
    ///
    /// # Errors
    /// Ranks that differ, a failure of another rank, or a passed deadline.
    fn synchronize(&mut self) -> Result<()>;

    /// Sets the total weight of all losses of this rank's next step, so that the ranks exchange the sum
    /// during the forward pass. All ranks call it, or none.
    fn begin_step(&mut self, weight: f64);

    /// Adds the gradients of `loss` to those of the next step, without communication.
    ///
    /// # Errors
    /// An error of the backward pass, or parameters that the loss does not depend on.
    fn accumulate(&mut self, loss: &Tensor) -> Result<()>;

    /// Computes the gradients of `loss`, exchanges them by `option` and updates every parameter, as
    /// [`BackwardAndUpdate::backward_and_update_with`] does.
    ///
    /// # Errors
    /// Those of [`BackwardAndUpdate::backward_and_update_with`].
    fn step(&mut self, loss: &Tensor, option: DistOption, spars: f32) -> Result<()>;

    /// Takes the step that `step` computes of `inputs`. `graph` records and replays it, if steps of this optimizer can
    /// be recorded. `settings` are those that `step` gives to the optimizer.
    ///
    /// # Errors
    /// Those of `step`.
    fn step_by_graph(
        &mut self,
        graph: &mut StepGraph<2, 2>,
        inputs: [&Tensor; 2],
        settings: (DistOption, f32),
        step: &mut WholeStep<'_>,
    ) -> Result<[Tensor; 2]>;

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

    /// Returns an error if no step could use this strategy.
    ///
    /// # Errors
    /// An unknown strategy or a `spars` out of range.
    fn check_option(&self, option: DistOption, spars: f32) -> Result<()>;

    /// Whether all ranks take their steps together. Workers of a store without rounds do not.
    fn is_in_step(&self) -> bool;

    /// Whether ranks may have different parameters at present.
    fn may_differ(&self) -> bool;

    /// Whether this rank's shards, of parameters and of what belongs to them, go into a checkpoint. Where hosts have
    /// copies of all shards, one host saves them.
    fn saves_shards(&self) -> bool {
        true
    }

    /// The cost so far of a strategy's steps.
    fn figures(&self, option: DistOption) -> StepFigures;

    /// The Euclidean norm of what this rank's strategies have not sent yet.
    fn residual_norm(&self) -> f64;

    /// Gives each rank all values of all parameters, if ranks keep shards of them, until the next step or
    /// [`shard_parameters`](Self::shard_parameters). It needs the memory of the whole model. All ranks call it between the
    /// same steps.
    ///
    /// # Errors
    /// A failure of another rank, or a passed deadline.
    fn gather_parameters(&mut self) -> Result<()> {
        Ok(())
    }

    /// Divides the values again after [`gather_parameters`](Self::gather_parameters), as the next step would. All ranks
    /// call it together.
    ///
    /// # Errors
    /// A failure of another rank, or a passed deadline.
    fn shard_parameters(&mut self) -> Result<()> {
        Ok(())
    }

    /// The memory of the model and of this optimizer on this rank.
    ///
    /// # Errors
    /// A device's error.
    fn memory(&mut self) -> Result<OptimizerMemory>;

    /// Bytes and time of this rank's communication.
    fn traffic(&self) -> CommStats;

    /// The notes for the user since the last call.
    fn take_notes(&mut self) -> Vec<String>;

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
}

/// Computes a loss of inputs, calls the optimizer once, and returns the output and the loss.
pub type WholeStep<'s> =
    dyn FnMut(&mut dyn DistributedOptimizer, [&Tensor; 2]) -> Result<[Tensor; 2]> + 's;

impl<O: DistributedOptimizer> From<O> for Box<dyn DistributedOptimizer> {
    fn from(optimizer: O) -> Self {
        Box::new(optimizer)
    }
}

/// So a [`Model`](candelabrum_nn::Model) can train by any of the optimizers.
impl BackwardAndUpdate for &mut dyn DistributedOptimizer {
    type Error = Error;

    fn backward_and_update_with(
        &mut self,
        loss: &Tensor,
        dist_option: DistOption,
        spars: f32,
    ) -> Result<()> {
        self.step(loss, dist_option, spars)
    }
}

impl BackwardAndUpdate for Box<dyn DistributedOptimizer> {
    type Error = Error;

    fn backward_and_update_with(
        &mut self,
        loss: &Tensor,
        dist_option: DistOption,
        spars: f32,
    ) -> Result<()> {
        self.step(loss, dist_option, spars)
    }
}

/// The digests of all models' parameters on each rank, in rank order.
pub(crate) fn digests(optimizers: &[(&str, &mut dyn DistributedOptimizer)]) -> Result<Vec<String>> {
    let Some((_, first)) = optimizers.first() else { return Ok(Vec::new()) };
    let own = optimizers.iter().map(|(_, optimizer)| parameters_sha256(optimizer.params()));
    let own = own.collect::<candelabrum_dist::Result<Vec<_>>>()?;
    Ok(first.group().all_gather_text(&own.join(" "))?)
}
