//! Saves the model that was the best in an evaluation.

use candelabrum_runlog::Number;
use serde::{Deserialize, Serialize};

use super::goal::Monitor;
use super::hook::{Action, Hook, Run, read_state};
use crate::checkpoint::Outcome;
use crate::{Metrics, Result};

/// Makes a checkpoint after each evaluation that is the best so far. It stays, however many follow. Without a directory
/// of checkpoints it only notes the best value.
///
/// A value counts as the best when its checkpoint is on the disk. If the checkpoint could not be written, the next
/// evaluation that is better than the best checkpoint on the disk makes another one.
///
/// The file `best.json` in the directory names the checkpoint. With several hooks of this kind it is the first one's,
/// and each further one has a file with the name of its measure, `best-mae.json` for instance.
#[derive(Clone, Debug)]
pub struct BestModel {
    monitor: Monitor,
    /// The step and the value whose checkpoint is being written.
    pending: Option<(u64, f64)>,
}

#[derive(Serialize, Deserialize)]
struct BestModelState {
    best: Option<Number>,
}

impl BestModel {
    /// By this value.
    pub fn new(monitor: Monitor) -> Self {
        Self { monitor, pending: None }
    }

    /// The best value whose checkpoint is on the disk.
    pub fn best(&self) -> Option<f64> {
        self.monitor.best()
    }
}

impl Hook for BestModel {
    fn name(&self) -> &str {
        "best_model"
    }

    fn key(&self) -> String {
        format!("{}:{}", self.name(), self.monitor.key())
    }

    fn best_measure(&self) -> Option<String> {
        Some(self.monitor.measure().to_owned())
    }

    fn on_evaluate(&mut self, run: &mut Run<'_, '_>, metrics: &Metrics) -> Result<Action> {
        let value = self.monitor.measured(metrics)?;
        let best = self.monitor.is_better(value).then_some(value);
        if run.makes_checkpoints {
            self.pending = best.map(|value| (run.position.step, value));
        } else if best.is_some() {
            self.monitor.set_best(best);
        }
        Ok(Action { best, ..Action::NOTHING })
    }

    fn on_written(&mut self, _: &mut Run<'_, '_>, outcome: &Outcome) -> Result<()> {
        if let Some((step, value)) = self.pending
            && step == outcome.step
        {
            self.pending = None;
            if outcome.failed.is_none() {
                self.monitor.set_best(Some(value));
            }
        }
        Ok(())
    }

    /// As it is when the checkpoint that has this state is on the disk.
    fn state(&self) -> serde_json::Value {
        serde_json::json!(BestModelState {
            best: self.pending.map(|(_, value)| value).or(self.monitor.best()).map(Number)
        })
    }

    fn restore(&mut self, state: &serde_json::Value) -> Result<()> {
        let BestModelState { best } = read_state(self.name(), state)?;
        self.monitor.set_best(best.map(f64::from));
        Ok(())
    }
}
