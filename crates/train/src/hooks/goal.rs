//! A value that training should lower or raise, and the best one so far.

use serde::{Deserialize, Serialize};

use crate::{Error, Metrics, Result};

/// Whether smaller or larger values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Goal {
    /// Smaller is better, as for a loss.
    Minimize,
    /// Larger is better, as for an accuracy.
    Maximize,
}

/// Follows one value of the evaluations.
#[derive(Clone, Debug)]
pub struct Monitor {
    measure: String,
    goal: Goal,
    min_delta: f64,
    best: Option<f64>,
}

impl Monitor {
    /// Follows the measure of this name; `loss` is the mean loss of a batch.
    pub fn new(measure: &str, goal: Goal) -> Self {
        Self { measure: measure.to_owned(), goal, min_delta: 0.0, best: None }
    }

    /// The mean loss of the evaluations.
    pub fn loss() -> Self {
        Self::new("loss", Goal::Minimize)
    }

    /// The accuracy of the evaluations.
    pub fn accuracy() -> Self {
        Self::new("accuracy", Goal::Maximize)
    }

    /// A change counts as better only if it is larger than this.
    #[must_use]
    pub fn min_delta(mut self, min_delta: f64) -> Self {
        self.min_delta = min_delta;
        self
    }

    /// The name of the value.
    pub fn measure(&self) -> &str {
        &self.measure
    }

    /// The best value so far.
    pub fn best(&self) -> Option<f64> {
        self.best
    }

    /// The value of an evaluation. `None` if it was not measured.
    pub fn value(&self, metrics: &Metrics) -> Option<f64> {
        if self.measure == "loss" {
            Some(metrics.mean_loss())
        } else {
            metrics.measure(&self.measure)
        }
    }

    /// Takes the value of an evaluation. Returns it, and whether it is the best so far.
    ///
    /// # Errors
    /// [`Error::NotMeasured`].
    pub(super) fn judge(&mut self, metrics: &Metrics) -> Result<(f64, bool)> {
        let missing = || Error::NotMeasured { measure: self.measure.clone() };
        let value = self.value(metrics).ok_or_else(missing)?;
        Ok((value, self.is_better(value)))
    }

    /// Takes the value of an evaluation, and returns whether it is the best so far. NaN is never better.
    fn is_better(&mut self, value: f64) -> bool {
        let better = !value.is_nan()
            && self.best.is_none_or(|best| match self.goal {
                Goal::Minimize => value < best - self.min_delta,
                Goal::Maximize => value > best + self.min_delta,
            });
        if better {
            self.best = Some(value);
        }
        better
    }

    pub(super) fn set_best(&mut self, best: Option<f64>) {
        self.best = best;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_is_better_by_more_than_the_least_change() {
        let mut loss = Monitor::loss().min_delta(0.1);
        let better: Vec<bool> = [1.0, 0.95, 0.8, f64::NAN, 0.9].map(|v| loss.is_better(v)).into();
        assert_eq!(better, [true, false, true, false, false]);
        let mut accuracy = Monitor::accuracy();
        assert!(accuracy.is_better(0.5) && accuracy.is_better(0.6) && !accuracy.is_better(0.6));
        assert_eq!(accuracy.best(), Some(0.6));
    }
}
