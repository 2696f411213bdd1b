//! How often each class was taken for each other one.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Counts of right and predicted classes. Those of several batches and ranks add up.
///
/// It prints itself as a table, with a row for each right class and a column for each predicted one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confusion {
    /// By right class, then by predicted one.
    counts: Vec<Vec<u64>>,
}

impl Confusion {
    /// No counts yet, for so many classes.
    pub fn new(classes: usize) -> Self {
        Self { counts: vec![vec![0; classes]; classes] }
    }

    /// Counts an answer. Classes that are new are added.
    pub fn add(&mut self, right: usize, predicted: usize) {
        self.widen(right.max(predicted) + 1);
        self.counts[right][predicted] += 1;
    }

    /// Adds the counts of another one.
    pub fn add_all(&mut self, other: &Self) {
        self.widen(other.classes());
        for (row, others) in self.counts.iter_mut().zip(&other.counts) {
            row.iter_mut().zip(others).for_each(|(count, other)| *count += other);
        }
    }

    /// The number of classes.
    pub fn classes(&self) -> usize {
        self.counts.len()
    }

    /// How often the class `right` was taken for the class `predicted`.
    pub fn count(&self, right: usize, predicted: usize) -> u64 {
        self.counts.get(right).and_then(|row| row.get(predicted)).copied().unwrap_or(0)
    }

    /// Of the answers `class`, the share that was right. `None` without such an answer.
    pub fn precision(&self, class: usize) -> Option<f64> {
        let answers = (0..self.classes()).map(|right| self.count(right, class)).sum();
        share(self.count(class, class), answers)
    }

    /// Of the samples of `class`, the share that was found. `None` without such a sample.
    pub fn recall(&self, class: usize) -> Option<f64> {
        let samples = (0..self.classes()).map(|predicted| self.count(class, predicted)).sum();
        share(self.count(class, class), samples)
    }

    /// The harmonic mean of precision and recall of `class` (van Rijsbergen, Information Retrieval, 1979, with
    /// equal weights). `None` for a class that is neither a sample's nor an answer.
    pub fn f1(&self, class: usize) -> Option<f64> {
        let each =
            (0..self.classes()).map(|other| self.count(class, other) + self.count(other, class));
        share(2 * self.count(class, class), each.sum())
    }

    /// The mean of [`f1`](Self::f1) over all classes that have one: scikit-learn's `average="macro"`. `None` without
    /// an answer.
    pub fn macro_f1(&self) -> Option<f64> {
        let each: Vec<f64> = (0..self.classes()).filter_map(|class| self.f1(class)).collect();
        (!each.is_empty()).then(|| each.iter().sum::<f64>() / each.len() as f64)
    }

    fn widen(&mut self, classes: usize) {
        let classes = classes.max(self.classes());
        self.counts.resize_with(classes, Vec::new);
        self.counts.iter_mut().for_each(|row| row.resize(classes, 0));
    }
}

fn share(some: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| some as f64 / all as f64)
}

impl fmt::Display for Confusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |count: &u64| count.to_string().len();
        let width = self.counts.iter().flatten().map(width).max().unwrap_or(1);
        for row in &self.counts {
            let row: Vec<String> = row.iter().map(|count| format!("{count:width$}")).collect();
            writeln!(f, "{}", row.join(" "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are those of scikit-learn's `precision_recall_fscore_support`.
    #[test]
    fn precision_recall_and_f1_are_ratios_of_counts() {
        let mut confusion = Confusion::new(4);
        for (right, predicted) in [(0, 0), (0, 1), (1, 1), (1, 1), (1, 2), (2, 0)] {
            confusion.add(right, predicted);
        }
        assert_eq!(
            (confusion.precision(1), confusion.recall(1)),
            (Some(2.0 / 3.0), Some(2.0 / 3.0))
        );
        assert_eq!(
            (confusion.f1(0), confusion.f1(2), confusion.f1(3)),
            (Some(0.5), Some(0.0), None)
        );
        let expected = (0.5 + 2.0 / 3.0) / 3.0;
        assert!((confusion.macro_f1().unwrap() - expected).abs() < 1e-15);
        assert_eq!((confusion.precision(3), confusion.recall(9)), (None, None));
        assert_eq!(confusion.to_string(), "1 1 0 0\n0 2 1 0\n1 0 0 0\n0 0 0 0\n");
        assert_eq!(Confusion::default().macro_f1(), None);
    }

    #[test]
    fn counts_add_up_also_if_one_has_seen_fewer_classes() {
        let (mut few, mut many) = (Confusion::default(), Confusion::new(3));
        few.add(0, 1);
        many.add(0, 1);
        many.add(2, 0);
        few.add_all(&many);
        assert_eq!((few.classes(), few.count(0, 1), few.count(2, 0)), (3, 2, 1));
        let mut sum = many.clone();
        sum.add_all(&Confusion::default());
        assert_eq!(sum, many);
    }
}
