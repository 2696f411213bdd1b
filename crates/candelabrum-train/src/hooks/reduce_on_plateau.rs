//! Lowers the learning rate when training does not become better: PyTorch's `ReduceLROnPlateau`.

use candelabrum_runlog::Number;
use serde::{Deserialize, Serialize};

use super::direction::{Monitor, Threshold};
use super::hook::{Action, Hook, Run, read_state};
use crate::{Error, Metrics, Result};

/// PyTorch's threshold.
const THRESHOLD: Threshold = Threshold::Relative(1e-4);

/// Multiplies the learning rate by a factor after more than so many evaluations in a row that were not better
/// than the best one. The factor comes on top of the optimizer's schedule.
#[derive(Clone, Debug)]
pub struct ReduceOnPlateau {
    monitor: Monitor,
    factor: f64,
    patience: usize,
    cooldown: usize,
    min_factor: f64,
    waited: usize,
    cooling: usize,
}

#[derive(Serialize, Deserialize)]
struct ReduceOnPlateauState {
    best: Option<Number>,
    waited: usize,
    cooling: usize,
}

impl ReduceOnPlateau {
    /// PyTorch's settings: a factor of 0.1 after more than ten evaluations. A value is better if it is so by more
    /// than a ten-thousandth of the best one, unless the monitor says otherwise ([`Monitor::min_delta`],
    /// [`Monitor::min_relative`]).
    pub fn new(monitor: Monitor) -> Self {
        let monitor = monitor.or_threshold(THRESHOLD);
        let (factor, patience, cooldown, min_factor) = (0.1, 10, 0, 0.0);
        Self { monitor, factor, patience, cooldown, min_factor, waited: 0, cooling: 0 }
    }

    /// The factor of each reduction.
    #[must_use]
    pub fn factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// The evaluations that are waited for.
    #[must_use]
    pub fn patience(mut self, patience: usize) -> Self {
        self.patience = patience;
        self
    }

    /// The evaluations after a reduction that do not count.
    #[must_use]
    pub fn cooldown(mut self, cooldown: usize) -> Self {
        self.cooldown = cooldown;
        self
    }

    /// All reductions together are no stronger than this factor.
    #[must_use]
    pub fn min_factor(mut self, min_factor: f64) -> Self {
        self.min_factor = min_factor;
        self
    }
}

impl Hook for ReduceOnPlateau {
    fn name(&self) -> &str {
        "reduce_on_plateau"
    }

    fn key(&self) -> String {
        format!("{}:{}", self.name(), self.monitor.key())
    }

    fn on_start(&mut self, run: &mut Run<'_, '_>) -> Result<()> {
        if run.optimizers.iter().all(|(_, optimizer)| optimizer.learning_rate().is_some()) {
            return Ok(());
        }
        let range =
            format!("on the ranks for the hook {}: give the servers a schedule", self.name());
        Err(Error::option("the optimizer", &"on the servers of a key-value store", range))
    }

    fn needs_evaluations(&self) -> bool {
        true
    }

    fn on_evaluate(&mut self, run: &mut Run<'_, '_>, metrics: &Metrics) -> Result<Action> {
        let (_, is_better) = self.monitor.judge(metrics)?;
        self.waited = if is_better { 0 } else { self.waited + 1 };
        if self.cooling > 0 {
            self.cooling -= 1;
            self.waited = 0;
        }
        if self.waited > self.patience {
            for (_, optimizer) in &mut *run.optimizers {
                let factor = (optimizer.rate_factor() * self.factor).max(self.min_factor);
                optimizer.set_rate_factor(factor)?;
            }
            (self.waited, self.cooling) = (0, self.cooldown);
        }
        Ok(Action::NOTHING)
    }

    fn state(&self) -> serde_json::Value {
        let &Self { waited, cooling, .. } = self;
        serde_json::json!(ReduceOnPlateauState {
            best: self.monitor.best().map(Number),
            waited,
            cooling
        })
    }

    fn restore(&mut self, state: &serde_json::Value) -> Result<()> {
        let ReduceOnPlateauState { best, waited, cooling } = read_state(self.name(), state)?;
        self.monitor.set_best(best.map(f64::from));
        (self.waited, self.cooling) = (waited, cooling);
        Ok(())
    }
}
