//! Saves the models that were the best ones in evaluations.

use candelabrum_runlog::Number;
use serde::{Deserialize, Serialize};

use super::direction::Monitor;
use super::hook::{Action, Hook, Run, read_state};
use crate::checkpoint::{CheckpointOutcome, Ranked, still_there};
use crate::{Error, Metrics, Result};

/// Makes a checkpoint after each evaluation that is the best so far, or one of the [`keep`](Self::keep) best. It stays
/// as long as it is one of them, however many follow. Without a directory of checkpoints the hook only notes the values.
///
/// A value counts when its checkpoint is on the disk. If the checkpoint could not be written, the next evaluation that
/// is better than the worst of those on the disk makes another one.
///
/// The file `best.json` in the directory names the best checkpoint, and the others in the list `next`. With several
/// hooks of this kind it is the first one's, and each further one has a file with the name of its measure,
/// `best-mae.json` for instance.
#[derive(Clone, Debug)]
pub struct BestModel {
    monitor: Monitor,
    most: usize,
    /// The best one first.
    kept: Vec<Ranked>,
    /// The one whose checkpoint is being written.
    pending: Option<Ranked>,
}

/// A state of an earlier version has the value alone.
#[derive(Serialize, Deserialize)]
struct BestModelState {
    best: Option<Number>,
    #[serde(default)]
    kept: Option<Vec<Ranked>>,
}

impl BestModel {
    /// The best one by this value.
    pub fn new(monitor: Monitor) -> Self {
        Self { monitor, most: 1, kept: Vec::new(), pending: None }
    }

    /// Keeps the `most` best checkpoints, at least 1. The monitor's least change is that by which a value must be better
    /// than the worst one of them.
    #[must_use]
    pub fn keep(mut self, most: usize) -> Self {
        self.most = most;
        self
    }

    /// The best value whose checkpoint is on the disk.
    pub fn best(&self) -> Option<f64> {
        self.kept.first().map(|best| best.value)
    }

    /// The best checkpoints on the disk, the best one first.
    pub fn kept(&self) -> &[Ranked] {
        &self.kept
    }

    /// Whether a value is one of the best.
    fn is_kept(&self, value: f64) -> bool {
        let is_full = self.kept.len() >= self.most;
        let worst = self.kept.last().filter(|_| is_full).map(|worst| worst.value);
        self.monitor.is_better_than(value, worst)
    }

    /// The best ones as they are when the checkpoint that is being written is on the disk.
    fn with_pending(&self) -> Vec<Ranked> {
        let mut kept = self.kept.clone();
        if let Some(new) = self.pending {
            // Of equal values the earlier one is the better one.
            let place = kept.partition_point(|old| !self.monitor.precedes(new.value, old.value));
            kept.insert(place, new);
            kept.truncate(self.most);
        }
        kept
    }

    fn take_pending(&mut self) {
        self.kept = self.with_pending();
        self.pending = None;
    }
}

impl Hook for BestModel {
    fn name(&self) -> &str {
        "best_model"
    }

    fn key(&self) -> String {
        format!("{}:{}", self.name(), self.monitor.key())
    }

    fn needs_evaluations(&self) -> bool {
        true
    }

    fn best_measure(&self) -> Option<String> {
        Some(self.monitor.measure().to_owned())
    }

    fn best_checkpoints(&self) -> Vec<Ranked> {
        self.with_pending()
    }

    fn on_start(&mut self, run: &mut Run<'_, '_>) -> Result<()> {
        if self.most == 0 {
            return Err(Error::option("BestModel::keep (--keep-best)", &0, "at least 1"));
        }
        self.kept.truncate(self.most);
        // Who has gone back to an older checkpoint may have no longer what was the best then.
        if let (Some(dir), Some(_), Some(optimizer)) =
            (run.checkpoint_dir, run.resumed, run.optimizer())
        {
            self.kept = still_there(dir, self.monitor.measure(), &self.kept, optimizer.group())?;
        }
        Ok(())
    }

    fn on_evaluate(&mut self, run: &mut Run<'_, '_>, metrics: &Metrics) -> Result<Action> {
        let value = self.monitor.measured(metrics)?;
        let best = self.is_kept(value).then_some(value);
        self.pending = best.map(|value| Ranked { step: run.position.step, value });
        if !run.makes_checkpoints {
            self.take_pending();
        }
        Ok(Action { best, ..Action::NOTHING })
    }

    fn on_written(&mut self, _: &mut Run<'_, '_>, outcome: &CheckpointOutcome) -> Result<()> {
        if self.pending.is_some_and(|pending| pending.step == outcome.step) {
            match outcome.failed {
                None => self.take_pending(),
                Some(_) => self.pending = None,
            }
        }
        Ok(())
    }

    /// As it is when the checkpoint that has this state is on the disk.
    fn state(&self) -> serde_json::Value {
        let kept = self.with_pending();
        let best = kept.first().map(|best| Number(best.value));
        serde_json::json!(BestModelState { best, kept: Some(kept) })
    }

    fn restore(&mut self, state: &serde_json::Value) -> Result<()> {
        let BestModelState { best, kept } = read_state(self.name(), state)?;
        let without_step = || best.map(|value| Ranked { step: 0, value: value.into() });
        self.kept = kept.unwrap_or_else(|| without_step().into_iter().collect());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::direction::Direction;
    use super::*;

    /// The steps that are kept after evaluations with these values, and those that have made a checkpoint.
    fn kept(mut hook: BestModel, values: &[f64]) -> (Vec<u64>, Vec<u64>) {
        let mut made = Vec::new();
        for (step, &value) in (1..).zip(values) {
            if hook.is_kept(value) {
                made.push(step);
                hook.pending = Some(Ranked { step, value });
                hook.take_pending();
            }
        }
        (hook.kept.iter().map(|kept| kept.step).collect(), made)
    }

    #[test]
    fn the_best_ones_are_kept_in_their_order() {
        let loss = |most| BestModel::new(Monitor::loss()).keep(most);
        let values = [5.0, 3.0, f64::NAN, 4.0, 3.0, 9.0, 1.0, f64::INFINITY];
        assert_eq!(kept(loss(1), &values), (vec![7], vec![1, 2, 7]));
        // The second 3 is no better than the first one, and better than 4.
        assert_eq!(kept(loss(2), &values), (vec![7, 2], vec![1, 2, 4, 5, 7]));
        assert_eq!(kept(loss(9), &values).0, [7, 2, 5, 4, 1, 6, 8]);
        let gain = BestModel::new(Monitor::new("gain", Direction::Maximize).min_delta(1.0)).keep(2);
        assert_eq!(kept(gain, &[1.0, 2.0, 1.5, 2.5]), (vec![4, 2], vec![1, 2, 4]));
    }

    #[test]
    fn a_state_of_an_earlier_version_has_the_best_value() {
        let mut hook = BestModel::new(Monitor::loss()).keep(2);
        hook.restore(&serde_json::json!({ "best": 0.5 })).unwrap();
        assert_eq!(hook.best(), Some(0.5));
        hook.restore(&serde_json::json!({ "best": null })).unwrap();
        assert_eq!(hook.best(), None);
        hook.pending = Some(Ranked { step: 3, value: f64::INFINITY });
        let mut other = BestModel::new(Monitor::loss());
        other.restore(&hook.state()).unwrap();
        assert_eq!(other.kept(), [Ranked { step: 3, value: f64::INFINITY }]);
    }
}
