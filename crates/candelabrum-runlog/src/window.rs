//! How often a training step is written: at most once per interval, with the averages of the steps in
//! between, so that a log of a fast run stays small and no step's loss is lost from the curve.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::NamedValues;

/// Collects the values of steps, and returns their averages at most once per interval.
#[derive(Debug)]
pub struct TrainWindow {
    every: Duration,
    began: Option<Instant>,
    /// Sum and count.
    sums: BTreeMap<String, (f64, u64)>,
}

impl TrainWindow {
    /// Returns averages each `every`. With [`Duration::ZERO`] it returns the values of every step.
    pub fn new(every: Duration) -> Self {
        Self { every, began: None, sums: BTreeMap::new() }
    }

    /// Adds the values of a step. Returns the average of each value since the last time, if the interval
    /// is over. A NaN makes the average NaN. The first step is returned at once.
    pub fn add(&mut self, values: &[(&str, f64)]) -> Option<NamedValues> {
        self.add_at(Instant::now(), values)
    }

    fn add_at(&mut self, now: Instant, values: &[(&str, f64)]) -> Option<NamedValues> {
        for &(name, value) in values {
            match self.sums.get_mut(name) {
                Some((sum, count)) => (*sum, *count) = (*sum + value, *count + 1),
                None => drop(self.sums.insert(name.to_owned(), (value, 1))),
            }
        }
        if self.began.is_some_and(|began| now.duration_since(began) < self.every) {
            return None;
        }
        self.began = Some(now);
        self.finish()
    }

    /// The averages of the steps that were not returned yet, such as at the end of an epoch. `None` if
    /// there are none.
    pub fn finish(&mut self) -> Option<NamedValues> {
        let sums = std::mem::take(&mut self.sums);
        let average = |(name, (sum, count)): (String, (f64, u64))| (name, sum / count as f64);
        (!sums.is_empty()).then(|| sums.into_iter().map(average).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_of_an_interval_has_every_step_once() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut window = TrainWindow::new(2 * second);
        let first = window.add_at(start, &[("loss", 4.0)]);
        assert_eq!(first, Some([("loss".to_owned(), 4.0)].into()));
        assert_eq!(window.add_at(start + second, &[("loss", 3.0), ("rate", 7.0)]), None);
        let expected = [("loss".to_owned(), 2.0), ("rate".to_owned(), 7.0)].into();
        assert_eq!(window.add_at(start + 2 * second, &[("loss", 1.0)]), Some(expected));
        assert_eq!(window.add_at(start + 3 * second, &[("loss", f64::NAN)]), None);
        assert!(window.finish().unwrap()["loss"].is_nan());
        assert_eq!(window.finish(), None);
        let mut all = TrainWindow::new(Duration::ZERO);
        assert!((0..3).all(|_| all.add_at(start, &[("loss", 1.0)]).is_some()));
    }
}
