//! Workers that train through the servers of a key-value store.

use candelabrum_dist::{CommStats, Group, OptimizerMemory, StepFigures, StepGraph};
use candelabrum_kvstore::{StoreKind, StoreOpt};
use candelabrum_nn::{BackwardAndUpdate, DistOption};
use candle_core::Tensor;

use super::{DistributedOptimizer, WholeStep};
use crate::{Error, Result};

impl DistributedOptimizer for StoreOpt {
    fn group(&self) -> &Group {
        self.store().workers()
    }
    fn synchronize(&mut self) -> Result<()> {
        Ok(self.synchronize()?)
    }
    fn begin_step(&mut self, weight: f64) {
        self.begin_step(weight);
    }
    fn accumulate(&mut self, loss: &Tensor) -> Result<()> {
        Ok(self.accumulate(loss)?)
    }
    fn step(&mut self, loss: &Tensor, option: DistOption, spars: f32) -> Result<()> {
        Ok(self.backward_and_update_with(loss, option, spars)?)
    }
    fn step_by_graph(
        &mut self,
        _: &mut StepGraph<2, 2>,
        inputs: [&Tensor; 2],
        _: (DistOption, f32),
        step: &mut WholeStep<'_>,
    ) -> Result<[Tensor; 2]> {
        step(self, inputs)
    }
    fn join(&mut self, _: DistOption, _: f32) -> Result<()> {
        self.check_uneven()
    }
    fn check_uneven(&self) -> Result<()> {
        let range = "even with a key-value store, whose workers all have the same number of steps";
        Err(Error::option("the division of the data", &"uneven", range))
    }
    fn check_option(&self, option: DistOption, spars: f32) -> Result<()> {
        Ok(self.check(option, spars)?)
    }
    fn is_in_step(&self) -> bool {
        self.store().config().kind != StoreKind::DistAsync
    }
    fn may_differ(&self) -> bool {
        !self.is_in_step()
    }
    fn figures(&self, option: DistOption) -> StepFigures {
        self.figures(option)
    }
    fn residual_norm(&self) -> f64 {
        self.residual_norm()
    }
    fn memory(&mut self) -> Result<OptimizerMemory> {
        Ok(StoreOpt::memory(&*self))
    }
    fn traffic(&self) -> CommStats {
        self.store().traffic()
    }
    fn take_notes(&mut self) -> Vec<String> {
        self.take_notes()
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
        let range = "1 with a key-value store, whose servers have the optimizer";
        Err(Error::option("the factor of the learning rate", &factor, range))
    }
    fn set_rate(&mut self, rate: Option<f64>) -> Result<()> {
        let Some(rate) = rate else { return Ok(()) };
        let range = "as scheduled with a key-value store, whose servers have the optimizer";
        Err(Error::option("the learning rate", &rate, range))
    }
}
