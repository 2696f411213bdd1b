//! Ends a training that does not become better.

use candelabrum_runlog::Number;
use serde::{Deserialize, Serialize};

use super::direction::Monitor;
use super::hook::{Action, Hook, Run, read_state};
use crate::{Metrics, Result};

/// Ends the training after so many evaluations in a row that were not better than the best one. A run that has ended
/// so stays ended when it is started again.
#[derive(Clone, Debug)]
pub struct EarlyStopping {
    monitor: Monitor,
    patience: usize,
    waited: usize,
}

#[derive(Serialize, Deserialize)]
struct EarlyStoppingState {
    best: Option<Number>,
    waited: usize,
}

impl EarlyStopping {
    /// Waits for `patience` evaluations.
    pub fn new(monitor: Monitor, patience: usize) -> Self {
        Self { monitor, patience, waited: 0 }
    }
}

impl Hook for EarlyStopping {
    fn name(&self) -> &str {
        "early_stopping"
    }

    fn key(&self) -> String {
        format!("{}:{}", self.name(), self.monitor.key())
    }

    fn needs_evaluations(&self) -> bool {
        true
    }

    fn on_evaluate(&mut self, _: &mut Run<'_, '_>, metrics: &Metrics) -> Result<Action> {
        let (value, is_better) = self.monitor.judge(metrics)?;
        if is_better {
            self.waited = 0;
            return Ok(Action::NOTHING);
        }
        self.waited += 1;
        if self.waited < self.patience {
            return Ok(Action::NOTHING);
        }
        let (measure, best) = (self.monitor.measure(), self.monitor.best().unwrap_or(value));
        let reason = format!("{measure} was not better than {best} in {} evaluations", self.waited);
        Ok(Action { stop: Some(reason), ..Action::NOTHING })
    }

    fn state(&self) -> serde_json::Value {
        serde_json::json!(EarlyStoppingState {
            best: self.monitor.best().map(Number),
            waited: self.waited
        })
    }

    fn restore(&mut self, state: &serde_json::Value) -> Result<()> {
        let EarlyStoppingState { best, waited } = read_state(self.name(), state)?;
        self.monitor.set_best(best.map(f64::from));
        self.waited = waited;
        Ok(())
    }
}
