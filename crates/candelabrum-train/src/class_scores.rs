//! Scores of classifiers beside the accuracy. Each adds up counts, so its value over several ranks is that of one.

use std::cmp::Ordering;

use candle_core::{DType, Tensor};

use crate::score::{Score, answered, right_classes};
use crate::{Confusion, Metrics, Result};

/// The share of samples whose right class is among the `k` largest scores: the measure `top5` for a `k` of 5.
///
/// It takes outputs and targets as [`Accuracy`](crate::Accuracy) does, and leaves out the same targets. Of equal
/// scores, that of the lower class counts as the larger one. NaN counts as the largest.
#[derive(Clone, Copy, Debug)]
pub struct TopAccuracy {
    k: usize,
}

/// The F1 score of one class, for data with a class of interest, with its parts: the measures `f1`, `precision` and
/// `recall`. [`ConfusionMatrix`] has the mean of the F1 over all classes.
///
/// It takes outputs and targets as [`Accuracy`](crate::Accuracy) does, and leaves out the same targets.
#[derive(Clone, Copy, Debug)]
pub struct F1 {
    class: usize,
}

/// Counts which class is taken for which: [`Metrics::confusion`]. Its measure `f1_macro` is the mean of the F1 of
/// all classes, [`Confusion::macro_f1`].
///
/// It takes outputs and targets as [`Accuracy`](crate::Accuracy) does, and leaves out the same targets.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConfusionMatrix;

impl TopAccuracy {
    /// The right class may be among the `k` largest scores.
    pub fn new(k: usize) -> Self {
        Self { k }
    }
}

impl F1 {
    /// The score of `class`. A classifier of two classes has the class of interest 1.
    pub fn of_class(class: usize) -> Self {
        Self { class }
    }
}

impl ConfusionMatrix {
    /// Over all classes.
    pub fn new() -> Self {
        Self
    }
}

/// What each of the three does in [`Score::add`] and [`Score::add_counted`].
macro_rules! counted {
    ($($Score:ident)*) => {$(
        impl Score for $Score {
            fn add(&self, output: &Tensor, targets: &Tensor, metrics: &mut Metrics) -> Result<()> {
                self.count(output, targets, None, metrics)
            }

            fn add_counted(
                &self,
                output: &Tensor,
                targets: &Tensor,
                ignored: Option<i64>,
                metrics: &mut Metrics,
            ) -> Result<()> {
                self.count(output, targets, ignored, metrics)
            }
        }
    )*};
}
counted!(TopAccuracy F1 ConfusionMatrix);

impl TopAccuracy {
    fn count(
        self,
        output: &Tensor,
        targets: &Tensor,
        ignored: Option<i64>,
        metrics: &mut Metrics,
    ) -> Result<()> {
        let right = right_classes(output, targets, ignored)?;
        let scores = output.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
        let classes = scores.len() / right.len().max(1);
        let (mut hits, mut counted) = (0_u64, 0_u64);
        for (scores, right) in scores.chunks_exact(classes.max(1)).zip(&right) {
            let Some(right) = *right else { continue };
            let own = scores[right];
            let is_above = |(class, score): (usize, &f64)| match score.partial_cmp(&own) {
                Some(Ordering::Less) => false,
                Some(Ordering::Equal) => class < right,
                Some(Ordering::Greater) | None => class != right,
            };
            let above = scores.iter().enumerate().filter(|&score| is_above(score)).count();
            counted += 1;
            hits += u64::from(above < self.k);
        }
        metrics.add_measure(&format!("top{}", self.k), hits as f64, counted as f64);
        Ok(())
    }
}

impl F1 {
    fn count(
        self,
        output: &Tensor,
        targets: &Tensor,
        ignored: Option<i64>,
        metrics: &mut Metrics,
    ) -> Result<()> {
        let (mut hits, mut samples, mut answers) = (0_u64, 0_u64, 0_u64);
        for (right, predicted) in answered(output, targets, ignored)? {
            let (is_sample, is_answer) = (right == self.class, predicted == self.class);
            samples += u64::from(is_sample);
            answers += u64::from(is_answer);
            hits += u64::from(is_sample && is_answer);
        }
        let [hits, samples, answers] = [hits, samples, answers].map(|count| count as f64);
        metrics.add_measure("precision", hits, answers);
        metrics.add_measure("recall", hits, samples);
        metrics.add_measure("f1", 2.0 * hits, samples + answers);
        Ok(())
    }
}

impl ConfusionMatrix {
    fn count(
        self,
        output: &Tensor,
        targets: &Tensor,
        ignored: Option<i64>,
        metrics: &mut Metrics,
    ) -> Result<()> {
        let classes = output.dims().last().copied().unwrap_or(0);
        let mut confusion = Confusion::new(classes);
        for (right, predicted) in answered(output, targets, ignored)? {
            confusion.add(right, predicted);
        }
        metrics.add_confusion(&confusion);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::Accuracy;

    /// Four samples of three classes. They are taken for 2, 0, 1 and 0.
    fn output() -> Tensor {
        let rows = [[0.1_f32, 0.2, 0.7], [0.5, 0.1, 0.4], [0.2, 0.6, 0.2], [0.4, 0.3, 0.3]];
        Tensor::new(&rows, &Device::Cpu).unwrap()
    }

    fn labels(labels: [i64; 4]) -> Tensor {
        Tensor::new(&labels, &Device::Cpu).unwrap()
    }

    fn measured(score: &dyn Score, targets: &Tensor, ignored: Option<i64>) -> Metrics {
        let mut metrics = Metrics::default();
        score.add_counted(&output(), targets, ignored, &mut metrics).unwrap();
        metrics
    }

    #[test]
    fn a_right_class_among_the_first_is_a_hit() {
        let targets = labels([1, 1, 2, 1]);
        for (k, share) in [(1, 0.0), (2, 0.5), (3, 1.0)] {
            let metrics = measured(&TopAccuracy::new(k), &targets, None);
            assert_eq!(metrics.measure(&format!("top{k}")), Some(share), "{k}");
        }
        // The first score of a row is that of the accuracy.
        let targets = labels([2, 0, 0, 1]);
        let both = measured(&(Accuracy, TopAccuracy::new(1)), &targets, None);
        assert_eq!(both.measure("top1"), both.measure("accuracy"));
        let metrics = measured(&TopAccuracy::new(1), &labels([2, -100, 0, -100]), Some(-100));
        assert_eq!(metrics.measure("top1"), Some(0.5));
        let odd = Tensor::new(&[[f32::NAN, 0.1, 0.2]], &Device::Cpu).unwrap();
        for (class, hit) in [(0, 0.0), (1, 0.0), (2, 1.0)] {
            let mut metrics = Metrics::default();
            let target = Tensor::new(&[class as u32], &Device::Cpu).unwrap();
            TopAccuracy::new(2).add(&odd, &target, &mut metrics).unwrap();
            assert_eq!(metrics.measure("top2"), Some(hit), "{class}");
        }
    }

    #[test]
    fn f1_over_batches_and_ranks_is_that_of_all_samples() {
        let metrics = measured(&F1::of_class(0), &labels([0, 0, 1, 1]), None);
        let of = |name: &str| metrics.measure(name);
        assert_eq!([of("precision"), of("recall"), of("f1")], [Some(0.5); 3]);
        let other = measured(&F1::of_class(0), &labels([2, 0, 1, 0]), None);
        // 3 hits, 4 samples, 4 answers.
        assert_eq!(metrics.plus(&other).measure("f1"), Some(0.75));
        let ignored = measured(&F1::of_class(0), &labels([7, 0, 7, 7]), Some(7));
        assert_eq!(ignored.measure("f1"), Some(1.0));
        assert_eq!(measured(&F1::of_class(5), &labels([0, 0, 1, 1]), None).measure("f1"), None);
    }

    #[test]
    fn the_confusion_of_ranks_is_that_of_all_samples() {
        let (one, other) = (labels([2, 0, 0, 1]), labels([2, -1, 1, 0]));
        let metrics = measured(&ConfusionMatrix, &one, None);
        let sum = metrics.plus(&measured(&ConfusionMatrix, &other, Some(-1)));
        let confusion = sum.confusion().unwrap();
        assert_eq!(confusion.to_string(), "2 1 0\n1 1 0\n0 0 2\n");
        let expected = (4.0 / 6.0 + 0.5 + 1.0) / 3.0;
        assert!((sum.measure("f1_macro").unwrap() - expected).abs() < 1e-15);
        assert_eq!(sum.measures().map(|(name, _)| name).collect::<Vec<_>>(), ["f1_macro"]);
        let read: Metrics = serde_json::from_str(&serde_json::to_string(&sum).unwrap()).unwrap();
        assert_eq!(read, sum);
    }

    #[test]
    fn targets_that_name_no_class_are_refused() {
        for score in [&TopAccuracy::new(2) as &dyn Score, &F1::of_class(0), &ConfusionMatrix] {
            let mut metrics = Metrics::default();
            let error = score.add(&output(), &labels([0, 1, 3, 0]), &mut metrics).unwrap_err();
            assert!(error.to_string().contains("there is no class 3"), "{error}");
            assert_eq!(metrics, Metrics::default());
        }
    }
}
