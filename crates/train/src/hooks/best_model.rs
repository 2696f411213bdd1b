//! Saves the model that was the best in an evaluation.

use serde::{Deserialize, Serialize};

use super::goal::Monitor;
use super::hook::{Action, Hook, Run, read_state};
use crate::{Metrics, Result};

/// Makes a checkpoint after each evaluation that is the best so far. It stays, however many follow. The training
/// must have a directory of checkpoints.
#[derive(Clone, Debug)]
pub struct BestModel {
    monitor: Monitor,
}

#[derive(Serialize, Deserialize)]
struct State {
    best: Option<f64>,
}

impl BestModel {
    /// By this value.
    pub fn new(monitor: Monitor) -> Self {
        Self { monitor }
    }

    /// The best value so far.
    pub fn best(&self) -> Option<f64> {
        self.monitor.best()
    }
}

impl Hook for BestModel {
    fn name(&self) -> &str {
        "best_model"
    }

    fn on_evaluate(&mut self, _: &mut Run<'_, '_>, metrics: &Metrics) -> Result<Action> {
        let (value, is_better) = self.monitor.judge(metrics)?;
        let best = is_better.then_some(value);
        Ok(Action { best, ..Action::NOTHING })
    }

    fn state(&self) -> serde_json::Value {
        serde_json::json!(State { best: self.monitor.best() })
    }

    fn restore(&mut self, state: &serde_json::Value) -> Result<()> {
        let State { best } = read_state(self.name(), state)?;
        self.monitor.set_best(best);
        Ok(())
    }
}
