//! The range of learning rates in which a model learns (Smith, "Cyclical Learning Rates for Training Neural
//! Networks", WACV 2017).

use candelabrum_dist::ReduceOp;

use super::hook::{Action, Hook, Run};
use crate::{Error, Result};

/// The weight of the earlier losses in the smoothed one, as in fastai and PyTorch Lightning.
const SMOOTHING: f64 = 0.98;

/// The training ends when the smoothed loss is so many times the lowest one, if that is the first one and above 0. In
/// general it ends when the loss is above the lowest one by `DIVERGED - 1` times the larger of two numbers: the magnitude
/// of the lowest loss, and what the loss has fallen. A loss may be negative.
const DIVERGED: f64 = 4.0;

/// Raises the learning rate from step to step by the same factor, notes the loss of each rate, and ends the
/// training after the last rate, or when the loss has become much higher or is not finite. The rates are those that it
/// tries, whatever the optimizer's schedule says.
///
/// The trained model is of no use afterwards: train a new one with the rate that was found.
///
/// ```no_run
/// # use candelabrum_train::{hooks::LearningRateFinder, Fit, FitConfig};
/// # fn f<M: candelabrum_nn::Model>(
/// #     trainer: &mut candelabrum_train::Trainer<M>, data: &candelabrum_datasets::ImageDataset,
/// # ) -> candelabrum_train::Result<()> {
/// let mut finder = LearningRateFinder::new(1e-6, 1.0, 100);
/// let fit = Fit::new(FitConfig::default()).hook(&mut finder);
/// trainer.fit_with(fit, data, Some(data))?;
/// println!("{:?}", finder.suggestion());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LearningRateFinder {
    first: f64,
    last: f64,
    steps: usize,
    smoothed: f64,
    lowest: f64,
    points: Vec<(f64, f64)>,
}

impl LearningRateFinder {
    /// Tries `steps` rates from `first` to `last`, both greater than 0.
    pub fn new(first: f64, last: f64, steps: usize) -> Self {
        let (smoothed, lowest, points) = (0.0, f64::INFINITY, Vec::new());
        Self { first, last, steps, smoothed, lowest, points }
    }

    /// The rates that were tried, each with the smoothed mean loss of all ranks in its step.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// The rate at which the loss falls most, over the logarithm of the rate. `None` if it never falls, or if
    /// fewer than four rates were tried. The first tenth and the last steps are left out, as they are noise.
    pub fn suggestion(&self) -> Option<f64> {
        let end = self.points.len().saturating_sub(self.points.len().div_ceil(20));
        let used = self.points.get(self.points.len() / 10..end)?;
        let slope = |window: &[(f64, f64)]| {
            let [(before, high), _, (after, low)] = window else { return f64::INFINITY };
            (low - high) / (after.ln() - before.ln())
        };
        let steepest = used.windows(3).min_by(|a, b| slope(a).total_cmp(&slope(b)))?;
        (slope(steepest) < 0.0).then(|| steepest[1].0)
    }

    fn rate(&self, number: usize) -> f64 {
        let share = number as f64 / (self.steps.max(2) - 1) as f64;
        self.first * (self.last / self.first).powf(share)
    }

    /// Whether this smoothed loss is much higher than the lowest one.
    fn has_diverged(&self, smoothed: f64) -> bool {
        let first = self.points.first().map_or(smoothed, |(_, loss)| *loss);
        let scale = (first - self.lowest).max(self.lowest.abs());
        smoothed > self.lowest + (DIVERGED - 1.0) * scale
    }
}

fn set_rate(run: &mut Run<'_, '_>, rate: Option<f64>) -> Result<()> {
    let mut optimizers = run.optimizers.iter_mut();
    Ok(optimizers.try_for_each(|(_, optimizer)| optimizer.set_rate(rate))?)
}

impl Hook for LearningRateFinder {
    fn name(&self) -> &str {
        "learning_rate_finder"
    }

    fn on_start(&mut self, run: &mut Run<'_, '_>) -> Result<()> {
        set_rate(run, Some(self.first))
    }

    fn on_step_end(&mut self, run: &mut Run<'_, '_>) -> Result<Action> {
        // What the ranks' losses weigh may differ.
        let weight = run.loss_weight;
        let mut sums = [if weight == 0.0 { 0.0 } else { f64::from(run.loss) * weight }, weight];
        if let Some(optimizer) = run.optimizer() {
            optimizer.group().all_reduce(&mut sums, ReduceOp::Sum)?;
        }
        if sums[1] == 0.0 {
            // Nothing counts in this batch, so the next one tries the rate again.
            return Ok(Action::NOTHING);
        }
        let number = self.points.len();
        self.smoothed = SMOOTHING * self.smoothed + (1.0 - SMOOTHING) * sums[0] / sums[1];
        let unbiased = self.smoothed / (1.0 - SMOOTHING.powi(number as i32 + 1));
        self.points.push((self.rate(number), unbiased));
        self.lowest = self.lowest.min(unbiased);
        let stop = if number + 1 >= self.steps {
            "all learning rates were tried"
        } else if self.has_diverged(unbiased) {
            "the loss has become much higher"
        } else {
            set_rate(run, Some(self.rate(number + 1)))?;
            return Ok(Action::NOTHING);
        };
        Ok(Action { stop: Some(stop.to_owned()), ..Action::NOTHING })
    }

    fn on_bad_step(&mut self, _: &mut Run<'_, '_>, error: &Error) -> Result<Option<String>> {
        let rate = self.rate(self.points.len());
        Ok(Some(format!("at the learning rate {rate:.3e} {error}")))
    }

    fn on_end(&mut self, run: &mut Run<'_, '_>, _: Option<&str>) -> Result<()> {
        set_rate(run, None)
    }

    fn acts_on_step_end(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_has_diverged_by_its_distance_from_the_lowest_one() {
        let diverged = |first: f64, lowest: f64, loss: f64| {
            let mut finder = LearningRateFinder::new(1e-5, 1.0, 6);
            (finder.points, finder.lowest) = (vec![(1e-5, first)], lowest);
            finder.has_diverged(loss)
        };
        // A loss that has not fallen: four times the first one.
        assert!(!diverged(2.0, 2.0, 7.9) && diverged(2.0, 2.0, 8.1));
        // A loss below 0 that falls, or rises by less than its size.
        assert!(!diverged(-6.0, -9.0, -9.0) && !diverged(-6.0, -9.0, -6.5));
        assert!(!diverged(-6.0, -9.0, 17.0) && diverged(-6.0, -9.0, 19.0));
        // A loss near 0 that has fallen far.
        assert!(!diverged(2.0, 0.001, 2.0) && diverged(2.0, 0.001, 6.1));
    }

    #[test]
    fn the_suggestion_is_where_the_loss_falls_most() {
        let mut finder = LearningRateFinder::new(1e-5, 1.0, 6);
        let rates: Vec<f64> = (0..6).map(|number| finder.rate(number)).collect();
        for (rate, expected) in rates.iter().zip([1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0]) {
            assert!((rate / expected - 1.0).abs() < 1e-12, "{rate}");
        }
        finder.points = rates.iter().copied().zip([2.3, 2.2, 1.9, 1.0, 0.8, 3.0]).collect();
        assert!((finder.suggestion().unwrap() - 1e-3).abs() < 1e-12, "{:?}", finder.suggestion());
        finder.points = vec![(1e-5, 2.0), (1e-4, 2.1), (1e-3, 2.2), (1e-2, 9.0)];
        assert_eq!(finder.suggestion(), None);
        finder.points.clear();
        assert_eq!(finder.suggestion(), None);
    }
}
