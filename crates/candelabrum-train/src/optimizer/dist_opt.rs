//! Ranks that exchange gradients.

use candelabrum_dist::{CommStats, DistOpt, Group, OptimizerMemory, StepFigures, StepGraph};
use candelabrum_nn::{BackwardAndUpdate, DistOption};
use candle_core::Tensor;

use super::{DistributedOptimizer, WholeStep};
use crate::Result;

impl DistributedOptimizer for DistOpt {
    fn group(&self) -> &Group {
        self.group()
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
        graph: &mut StepGraph<2, 2>,
        inputs: [&Tensor; 2],
        settings: (DistOption, f32),
        step: &mut WholeStep<'_>,
    ) -> Result<[Tensor; 2]> {
        graph.run(self, inputs, settings, |opt, inputs| step(opt, inputs.each_ref()))
    }
    fn join(&mut self, option: DistOption, spars: f32) -> Result<()> {
        self.join(option, spars)?;
        Ok(())
    }
    fn check_uneven(&self) -> Result<()> {
        Ok(self.check_uneven()?)
    }
    fn check_option(&self, option: DistOption, spars: f32) -> Result<()> {
        Ok(self.check(option, spars)?)
    }
    fn is_in_step(&self) -> bool {
        true
    }
    fn may_differ(&self) -> bool {
        !self.state().has_equal_vectors()
    }
    fn saves_shards(&self) -> bool {
        self.saves_shards()
    }
    fn figures(&self, option: DistOption) -> StepFigures {
        self.figures(option)
    }
    fn residual_norm(&self) -> f64 {
        self.residual_norm()
    }
    fn gather_parameters(&mut self) -> Result<()> {
        Ok(self.gather_parameters()?)
    }
    fn shard_parameters(&mut self) -> Result<()> {
        Ok(self.shard_parameters()?)
    }
    fn memory(&mut self) -> Result<OptimizerMemory> {
        Ok(self.memory()?)
    }
    fn traffic(&self) -> CommStats {
        self.traffic()
    }
    fn take_notes(&mut self) -> Vec<String> {
        self.take_notes()
    }
    fn describe_optimizer(&self) -> Option<String> {
        Some(self.optimizer().describe())
    }
    fn learning_rate(&self) -> Option<f64> {
        // The number that the user wrote: 0.01, and not 0.009999999776.
        let rate = self.optimizer().learning_rate();
        Some(rate.to_string().parse().unwrap_or_else(|_| f64::from(rate)))
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
}
