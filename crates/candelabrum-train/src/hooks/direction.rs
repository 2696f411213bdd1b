//! A value that training should lower or raise, and the best one so far.

use serde::{Deserialize, Serialize};

use crate::{Error, Metrics, Result};

/// Whether smaller or larger values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// Smaller is better, as for a loss.
    Minimize,
    /// Larger is better, as for an accuracy.
    Maximize,
}

/// Follows one value of the evaluations.
#[derive(Clone, Debug)]
pub struct Monitor {
    measure: String,
    goal: Direction,
    /// `None`: that of the hook.
    threshold: Option<Threshold>,
    best: Option<f64>,
}

/// A change that is not larger counts as none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Threshold {
    Absolute(f64),
    /// A share of the magnitude of the best value.
    Relative(f64),
}

impl Monitor {
    /// Follows the measure of this name; `loss` is the mean loss of a sample. `SET/loss` and `SET/NAME` are those of a
    /// further one of the [`EvaluationSets`](crate::EvaluationSets).
    pub fn new(measure: &str, goal: Direction) -> Self {
        Self { measure: measure.to_owned(), goal, threshold: None, best: None }
    }

    /// The mean loss of the evaluations.
    pub fn loss() -> Self {
        Self::new("loss", Direction::Minimize)
    }

    /// The accuracy of the evaluations.
    pub fn accuracy() -> Self {
        Self::new("accuracy", Direction::Maximize)
    }

    /// A change counts as better only if it is larger than this.
    #[must_use]
    pub fn min_delta(mut self, min_delta: f64) -> Self {
        self.threshold = Some(Threshold::Absolute(min_delta));
        self
    }

    /// A change counts as better only if it is larger than this share of the best value: 0.01 for a hundredth.
    #[must_use]
    pub fn min_relative(mut self, share: f64) -> Self {
        self.threshold = Some(Threshold::Relative(share));
        self
    }

    /// Sets a threshold where the user has not.
    pub(super) fn or_threshold(mut self, threshold: Threshold) -> Self {
        self.threshold.get_or_insert(threshold);
        self
    }

    /// What it follows, in words that distinguish it from others.
    pub(super) fn key(&self) -> String {
        let goal = match self.goal {
            Direction::Minimize => "min",
            Direction::Maximize => "max",
        };
        format!("{}:{goal}", self.measure)
    }

    /// The name of the value.
    pub fn measure(&self) -> &str {
        &self.measure
    }

    /// The best value so far.
    pub fn best(&self) -> Option<f64> {
        self.best
    }

    /// The value of an evaluation. `None` if it was not measured, and NaN if nothing in the evaluation counts.
    pub fn value(&self, metrics: &Metrics) -> Option<f64> {
        metrics.monitored(&self.measure)
    }

    /// Takes the value of an evaluation. Returns it, and whether it is the best so far.
    ///
    /// # Errors
    /// [`Error::NotMeasured`].
    pub(super) fn judge(&mut self, metrics: &Metrics) -> Result<(f64, bool)> {
        let value = self.measured(metrics)?;
        let is_better = self.is_better(value);
        if is_better {
            self.best = Some(value);
        }
        Ok((value, is_better))
    }

    /// The value of an evaluation.
    ///
    /// # Errors
    /// [`Error::NotMeasured`].
    pub(super) fn measured(&self, metrics: &Metrics) -> Result<f64> {
        let missing = || Error::NotMeasured { measure: self.measure.clone() };
        self.value(metrics).ok_or_else(missing)
    }

    /// Whether a value is better than the best so far. NaN is never better.
    pub(super) fn is_better(&self, value: f64) -> bool {
        self.is_better_than(value, self.best)
    }

    /// Whether a value is better than another one by more than the least change. NaN is never better.
    pub(super) fn is_better_than(&self, value: f64, other: Option<f64>) -> bool {
        let by = |best: f64| match self.threshold {
            None => 0.0,
            Some(Threshold::Absolute(delta)) => delta,
            // Where the best is infinite, every finite value that is better counts.
            Some(Threshold::Relative(share)) if best.is_finite() => share * best.abs(),
            Some(Threshold::Relative(_)) => 0.0,
        };
        !value.is_nan()
            && other.is_none_or(|best| match self.goal {
                Direction::Minimize => value < best - by(best),
                Direction::Maximize => value > best + by(best),
            })
    }

    /// Whether a value is better than another one, by however little.
    pub(super) fn precedes(&self, value: f64, other: f64) -> bool {
        match self.goal {
            Direction::Minimize => value < other,
            Direction::Maximize => value > other,
        }
    }

    pub(super) fn set_best(&mut self, best: Option<f64>) {
        self.best = best;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(monitor: &mut Monitor, value: f64) -> bool {
        let mut metrics = Metrics::default();
        metrics.add_measure(monitor.measure(), value, 1.0);
        monitor.judge(&metrics).unwrap().1
    }

    #[test]
    fn better_is_better_by_more_than_the_least_change() {
        let mut error = Monitor::new("mae", Direction::Minimize).min_delta(0.1);
        let better = [1.0, 0.95, 0.8, f64::NAN, 0.9].map(|value| judged(&mut error, value));
        assert_eq!(better, [true, false, true, false, false]);
        let mut accuracy = Monitor::accuracy();
        let better = [0.5, 0.6, 0.6].map(|value| judged(&mut accuracy, value));
        assert_eq!((better, accuracy.best()), ([true, true, false], Some(0.6)));
    }

    #[test]
    fn a_relative_change_is_a_share_of_the_best_value_whatever_its_sign() {
        let mut error = Monitor::new("nll", Direction::Minimize).min_relative(0.1);
        let better = [10.0, 9.5, 8.9, -1.0, -1.05, -1.2].map(|value| judged(&mut error, value));
        assert_eq!(better, [true, false, true, true, false, true]);
        let mut gain = Monitor::new("gain", Direction::Maximize).min_relative(0.1);
        let better = [-10.0, -9.5, -8.9, f64::INFINITY].map(|value| judged(&mut gain, value));
        assert_eq!(better, [true, false, true, true]);
        let mut loss = Monitor::new("loss of its own", Direction::Minimize).min_relative(0.1);
        assert!(judged(&mut loss, f64::INFINITY) && judged(&mut loss, 1e300));
    }

    #[test]
    fn a_threshold_of_the_user_stays() {
        let relative = Threshold::Relative(1e-4);
        let own = Monitor::loss().min_delta(0.5).or_threshold(relative);
        assert_eq!(own.threshold, Some(Threshold::Absolute(0.5)));
        assert_eq!(Monitor::loss().or_threshold(relative).threshold, Some(relative));
        assert_eq!(
            (Monitor::loss().key(), Monitor::accuracy().key()),
            ("loss:min".into(), "accuracy:max".into())
        );
    }
}
