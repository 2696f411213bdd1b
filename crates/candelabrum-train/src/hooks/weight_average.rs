//! Averages of the weights beside a training: an exponential moving average, or stochastic weight averaging.
//!
//! ```text
//! n averages so far, p the weights after a step that is averaged
//! EMA: average = decay_n · average + (1 - decay_n) · p     decay_0 = 0, decay_n = decay
//!      with a warm-up                                      decay_n = min(decay, (1 + n) / (10 + n))
//! SWA: average = average + (p - average) / (n + 1)         the mean of all
//! ```
//!
//! PyTorch's `torch.optim.swa_utils.AveragedModel`, with `get_ema_multi_avg_fn(decay)` for the first one. EMA: Polyak
//! and Juditsky, SIAM J. Control Optim. 1992. SWA: Izmailov et al., UAI 2018 (arXiv 1803.05407). The warm-up is that of
//! TensorFlow's `ExponentialMovingAverage` with `num_updates`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::averaged_weights::AveragedWeights;
use super::hook::{Action, Hook, NamedVector, Run, read_state};
use crate::checkpoint::OwnPart;
use crate::{Error, Result};

/// Averages the weights over the steps. The training itself goes on with its own weights, bit for bit.
///
/// Evaluations are of the average, unless [`evaluates`](Self::evaluates) says otherwise. A checkpoint has the averages
/// beside the weights, and a run that continues goes on with both, also on another number of ranks.
/// [`load_best_average`](crate::checkpoint::load_best_average) loads them. With
/// [`stays_at_end`](Self::stays_at_end) the model has the average after the training, so that what the program writes
/// then is the average.
///
/// Where ranks train different weights for a while (`partialUpdate`, `dist_async`), each averages its own, and the
/// mean of these averages is what is evaluated and saved.
///
/// ```no_run
/// # use candelabrum_train::{hooks::WeightAverage, Fit, FitConfig};
/// # fn f<M: candelabrum_nn::Model>(
/// #     trainer: &mut candelabrum_train::Trainer<M>, data: &candelabrum_datasets::ImageDataset,
/// # ) -> candelabrum_train::Result<()> {
/// let ema = WeightAverage::ema(0.999).warm_up().stays_at_end(true);
/// trainer.fit_with(Fit::new(FitConfig::default()).hook(ema), data, Some(data))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct WeightAverage {
    kind: AverageKind,
    every: u64,
    evaluates: bool,
    stays_at_end: bool,
    /// The weights that have been averaged.
    count: u64,
    weights: AveragedWeights,
}

#[derive(Clone, Copy, Debug)]
enum AverageKind {
    Exponential {
        decay: f64,
        warm_up: bool,
    },
    /// From the weights after this step on.
    Equal {
        start: u64,
    },
}

#[derive(Serialize, Deserialize)]
struct WeightAverageState {
    count: u64,
}

impl WeightAverage {
    /// An exponential moving average, which keeps the share `decay` of itself in each step.
    pub fn ema(decay: f64) -> Self {
        Self::new(AverageKind::Exponential { decay, warm_up: false }, 1)
    }

    /// The mean of the weights after step `start` and after each `every` steps that follow: stochastic weight
    /// averaging.
    pub fn swa(start: u64, every: u64) -> Self {
        Self::new(AverageKind::Equal { start }, every)
    }

    fn new(kind: AverageKind, every: u64) -> Self {
        let (evaluates, stays_at_end, weights) = (true, false, AveragedWeights::default());
        Self { kind, every, evaluates, stays_at_end, count: 0, weights }
    }

    /// Lets the decay of an exponential average rise from 2/11 on, so that the first weights are soon forgotten.
    #[must_use]
    pub fn warm_up(mut self) -> Self {
        if let AverageKind::Exponential { warm_up, .. } = &mut self.kind {
            *warm_up = true;
        }
        self
    }

    /// The steps between two weights that are averaged, 1 at first.
    #[must_use]
    pub fn every(mut self, steps: u64) -> Self {
        self.every = steps;
        self
    }

    /// Whether evaluations are of the average, as they are at first, or of the weights of the training.
    #[must_use]
    pub fn evaluates(mut self, on: bool) -> Self {
        self.evaluates = on;
        self
    }

    /// Whether the model has the average after the training. A later call of `fit` with this model would go on from
    /// the average.
    #[must_use]
    pub fn stays_at_end(mut self, on: bool) -> Self {
        self.stays_at_end = on;
        self
    }

    /// The number of weights that have been averaged.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Refuses settings with which there is no average.
    pub(crate) fn check(&self) -> Result<()> {
        if let AverageKind::Exponential { decay, .. } = self.kind
            && !(0.0..1.0).contains(&decay)
        {
            let range = "at least 0 and below 1";
            return Err(Error::option("the decay of the average of weights", &decay, range));
        }
        if self.every == 0 {
            return Err(Error::option(
                "the steps between two averages of weights",
                &0,
                "at least 1",
            ));
        }
        Ok(())
    }

    /// Whether the weights after this step are averaged.
    fn is_due(&self, step: u64) -> bool {
        let start = match self.kind {
            AverageKind::Exponential { .. } => self.every,
            AverageKind::Equal { start } => start,
        };
        step >= start && (step - start).is_multiple_of(self.every)
    }

    /// The share of the next weights in the average.
    fn share(&self) -> f64 {
        let count = self.count as f64;
        match self.kind {
            AverageKind::Equal { .. } => 1.0 / (count + 1.0),
            _ if self.count == 0 => 1.0,
            AverageKind::Exponential { decay, warm_up: false } => 1.0 - decay,
            AverageKind::Exponential { decay, .. } => {
                1.0 - decay.min((1.0 + count) / (10.0 + count))
            }
        }
    }

    /// Lets the model have the average, if there is one.
    fn enter(&mut self, run: &mut Run<'_, '_>) -> Result<()> {
        if self.count == 0 || self.weights.are_in_model() {
            return Ok(());
        }
        self.weights.unite(run)?;
        self.weights.swap(run)
    }
}

impl Hook for WeightAverage {
    fn name(&self) -> &str {
        match self.kind {
            AverageKind::Exponential { .. } => "ema",
            AverageKind::Equal { .. } => "swa",
        }
    }

    fn on_start(&mut self, run: &mut Run<'_, '_>) -> Result<()> {
        self.check()?;
        let name = self.name().to_owned();
        self.weights.take_restored(&name, run)
    }

    fn on_step_end(&mut self, run: &mut Run<'_, '_>) -> Result<Action> {
        if self.is_due(run.position.step) {
            self.weights.move_by(self.share(), run)?;
            self.count += 1;
        }
        Ok(Action::NOTHING)
    }

    fn before_evaluate(&mut self, run: &mut Run<'_, '_>) -> Result<()> {
        if self.evaluates { self.enter(run) } else { Ok(()) }
    }

    fn after_evaluate(&mut self, run: &mut Run<'_, '_>) -> Result<()> {
        if self.weights.are_in_model() { self.weights.swap(run) } else { Ok(()) }
    }

    fn on_end(&mut self, run: &mut Run<'_, '_>, _: Option<&str>) -> Result<()> {
        if self.stays_at_end { self.enter(run) } else { Ok(()) }
    }

    fn state(&self) -> serde_json::Value {
        serde_json::json!(WeightAverageState { count: self.count })
    }

    fn restore(&mut self, state: &serde_json::Value) -> Result<()> {
        let WeightAverageState { count } = read_state(self.name(), state)?;
        self.count = count;
        Ok(())
    }

    fn vectors(&mut self, run: &mut Run<'_, '_>) -> Result<Vec<NamedVector<'_>>> {
        self.weights.unite(run)?;
        self.weights.vectors()
    }

    fn own_parts(&mut self, run: &mut Run<'_, '_>) -> Result<BTreeMap<String, OwnPart>> {
        self.weights.own_parts(run)
    }

    fn restore_vectors(&mut self, vectors: BTreeMap<String, Vec<f32>>) -> Result<()> {
        self.weights.restore(vectors);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The steps after which weights are averaged.
    fn steps(average: &WeightAverage) -> Vec<u64> {
        (1..=10).filter(|&step| average.is_due(step)).collect()
    }

    #[test]
    fn weights_are_averaged_after_the_steps_that_were_asked_for() {
        assert_eq!(steps(&WeightAverage::ema(0.9)), (1..=10).collect::<Vec<_>>());
        assert_eq!(steps(&WeightAverage::ema(0.9).every(4)), [4, 8]);
        assert_eq!(steps(&WeightAverage::swa(3, 3)), [3, 6, 9]);
        assert_eq!(steps(&WeightAverage::swa(4, 5)), [4, 9]);
    }

    #[test]
    fn shares_are_those_of_the_formulas() {
        let shares = |mut average: WeightAverage| {
            [0, 1, 2, 1_000_000].map(|count| {
                average.count = count;
                average.share()
            })
        };
        assert_eq!(shares(WeightAverage::ema(0.75)), [1.0, 0.25, 0.25, 0.25]);
        let warm = [1.0, 1.0 - 2.0 / 11.0, 1.0 - 3.0 / 12.0, 0.25];
        assert_eq!(shares(WeightAverage::ema(0.75).warm_up()), warm);
        assert_eq!(shares(WeightAverage::swa(1, 1)), [1.0, 0.5, 1.0 / 3.0, 1.0 / 1_000_001.0]);
    }
}
