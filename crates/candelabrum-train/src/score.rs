//! What is measured of a batch beside its loss.

use candle_core::{D, DType, Tensor};

use crate::metrics::ACCURACY;
use crate::{Error, Metrics, Result};

/// Measures of a model's output. Implement it for measures of your own.
pub trait Score: Send {
    /// Adds what is measured of a batch to `metrics`, by [`Metrics::add_measure`].
    ///
    /// # Errors
    /// An output or targets that cannot be measured.
    fn add(&self, output: &Tensor, targets: &Tensor, metrics: &mut Metrics) -> Result<()>;

    /// [`add`](Self::add), for a batch whose loss ignores targets of the class `ignored`. Measures of each target
    /// leave them out, too.
    ///
    /// # Errors
    /// Those of [`add`](Self::add).
    fn add_counted(
        &self,
        output: &Tensor,
        targets: &Tensor,
        ignored: Option<i64>,
        metrics: &mut Metrics,
    ) -> Result<()> {
        let _ = ignored;
        self.add(output, targets, metrics)
    }
}

/// The share of samples, or of the positions of sequences, whose largest score belongs to the right class:
/// the measure `accuracy`. The default of a [`Trainer`](crate::Trainer).
///
/// Targets that the loss ignores ([`ignore_index`](candelabrum_nn::layers::SoftMaxCrossEntropy::ignore_index)) do
/// not count. For a loss that does not say what it ignores, say it by [`Accuracy::ignore_index`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Accuracy;

/// The [`Accuracy`] over all targets but those of one class.
#[derive(Clone, Copy, Debug)]
pub struct IgnoringAccuracy {
    ignored: i64,
}

/// No measure beside the loss.
#[derive(Clone, Copy, Debug, Default)]
pub struct LossOnly;

/// The exponential of the mean loss of a token, for a language model whose loss is a mean cross entropy: the measure
/// `perplexity`. Over several ranks it is that of all their tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Perplexity;

/// The mean absolute and the mean squared difference of output and targets of the same shape: the
/// measures `mae` and `mse`.
#[derive(Clone, Copy, Debug, Default)]
pub struct RegressionErrors;

/// The measures of both scores. More of them are pairs in pairs.
impl<A: Score, B: Score> Score for (A, B) {
    fn add(&self, output: &Tensor, targets: &Tensor, metrics: &mut Metrics) -> Result<()> {
        self.0.add(output, targets, metrics)?;
        self.1.add(output, targets, metrics)
    }

    fn add_counted(
        &self,
        output: &Tensor,
        targets: &Tensor,
        ignored: Option<i64>,
        metrics: &mut Metrics,
    ) -> Result<()> {
        self.0.add_counted(output, targets, ignored, metrics)?;
        self.1.add_counted(output, targets, ignored, metrics)
    }
}

impl Score for LossOnly {
    fn add(&self, _: &Tensor, _: &Tensor, _: &mut Metrics) -> Result<()> {
        Ok(())
    }
}

impl Score for Perplexity {
    fn add(&self, _: &Tensor, _: &Tensor, metrics: &mut Metrics) -> Result<()> {
        metrics.tell_perplexity();
        Ok(())
    }
}

impl Score for RegressionErrors {
    fn add(&self, output: &Tensor, targets: &Tensor, metrics: &mut Metrics) -> Result<()> {
        let count = output.elem_count() as f64;
        let difference = (output.detach().to_dtype(DType::F64)? - targets.to_dtype(DType::F64)?)?;
        let sum = |values: Tensor| values.sum_all()?.to_scalar::<f64>();
        metrics.add_measure("mae", sum(difference.abs()?)?, count);
        metrics.add_measure("mse", sum(difference.sqr()?)?, count);
        Ok(())
    }
}

impl Accuracy {
    /// Over all targets that the loss counts.
    pub fn new() -> Self {
        Self
    }

    /// Leaves out targets of this class, whatever the loss ignores.
    #[must_use]
    pub fn ignore_index(self, class: i64) -> IgnoringAccuracy {
        IgnoringAccuracy { ignored: class }
    }
}

impl Score for Accuracy {
    /// Scores `(N, classes)` or `(N, T, classes)`, targets: class indices `(N,)` or `(N, T)`, or one-hot of the
    /// shape of the scores.
    ///
    /// # Errors
    /// [`Error::Scores`] and [`Error::Targets`] for other shapes or types, which name no right class.
    fn add(&self, output: &Tensor, targets: &Tensor, metrics: &mut Metrics) -> Result<()> {
        add_hits(output, targets, None, metrics)
    }

    fn add_counted(
        &self,
        output: &Tensor,
        targets: &Tensor,
        ignored: Option<i64>,
        metrics: &mut Metrics,
    ) -> Result<()> {
        add_hits(output, targets, ignored, metrics)
    }
}

impl Score for IgnoringAccuracy {
    /// As for [`Accuracy`].
    ///
    /// # Errors
    /// As for [`Accuracy`].
    fn add(&self, output: &Tensor, targets: &Tensor, metrics: &mut Metrics) -> Result<()> {
        add_hits(output, targets, Some(self.ignored), metrics)
    }
}

/// Counts the targets that are not of the class `ignored`, and those among them that are predicted.
fn add_hits(
    output: &Tensor,
    targets: &Tensor,
    ignored: Option<i64>,
    metrics: &mut Metrics,
) -> Result<()> {
    let answers = answered(output, targets, ignored)?;
    let hits = answers.iter().filter(|(right, predicted)| right == predicted).count();
    metrics.add_measure(ACCURACY, hits as f64, answers.len() as f64);
    Ok(())
}

/// The right and the predicted class of each target that counts.
pub(crate) fn answered(
    output: &Tensor,
    targets: &Tensor,
    ignored: Option<i64>,
) -> Result<Vec<(usize, usize)>> {
    let right = right_classes(output, targets, ignored)?;
    let predicted = output.argmax(D::Minus1)?.flatten_all()?.to_vec1::<u32>()?;
    let both = right.iter().zip(predicted);
    Ok(both.filter_map(|(right, predicted)| Some(((*right)?, predicted as usize))).collect())
}

/// The right class of each row of scores, `None` for the class `ignored`.
pub(crate) fn right_classes(
    output: &Tensor,
    targets: &Tensor,
    ignored: Option<i64>,
) -> Result<Vec<Option<usize>>> {
    let dims = output.dims();
    // The largest of one score is always that one.
    let counts = |(classes, samples): &(&usize, &[usize])| **classes != 1 && !samples.is_empty();
    let Some((&classes, samples)) = dims.split_last().filter(counts) else {
        return Err(Error::Scores { dims: dims.to_vec() });
    };
    let refused = |why: &str| {
        let (dims, dtype) = (targets.dims().to_vec(), targets.dtype());
        Error::Targets { dims, dtype, why: why.to_owned(), scores: output.dims().to_vec() }
    };
    let labels = if targets.dims() == samples {
        if !is_index(targets.dtype()) {
            return Err(refused("class indices are u8, u32 or i64"));
        }
        targets.to_dtype(DType::I64)?
    } else if targets.dims() == dims {
        let sums = targets.to_dtype(DType::F64)?.sum(D::Minus1)?.flatten_all()?.to_vec1::<f64>()?;
        if sums.iter().any(|sum| (sum - 1.0).abs() > 0.05) {
            return Err(refused("a row is of several classes or of none"));
        }
        targets.argmax(D::Minus1)?.to_dtype(DType::I64)?
    } else {
        return Err(refused("the shapes do not fit"));
    };
    let class = |label: i64| match usize::try_from(label) {
        _ if Some(label) == ignored => Ok(None),
        Ok(class) if class < classes => Ok(Some(class)),
        _ => Err(refused(&format!("there is no class {label}"))),
    };
    labels.flatten_all()?.to_vec1::<i64>()?.into_iter().map(class).collect()
}

/// Whether class indices may be of this type.
fn is_index(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::U32 | DType::I64)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn indices(labels: &[i64]) -> Tensor {
        Tensor::new(labels, &Device::Cpu).unwrap()
    }

    #[test]
    fn hits_are_counted_for_indices_one_hot_and_sequences() {
        let output = Tensor::new(&[[0.1_f32, 0.9], [0.8, 0.2], [0.3, 0.7]], &Device::Cpu).unwrap();
        let one_hot = Tensor::new(&[[0.0_f32, 1.0], [0.0, 1.0], [0.0, 1.0]], &Device::Cpu).unwrap();
        let sequences = output.reshape((1, 3, 2)).unwrap();
        for (output, targets) in [
            (&output, Tensor::new(&[1_u32, 1, 1], &Device::Cpu).unwrap()),
            (&output, one_hot),
            (&sequences, indices(&[1, 1, 1]).reshape((1, 3)).unwrap()),
        ] {
            let mut metrics = Metrics::default();
            Accuracy.add(output, &targets, &mut metrics).unwrap();
            assert_eq!(metrics.accuracy(), 2.0 / 3.0);
        }
    }

    #[test]
    fn ignored_targets_do_not_count() {
        let output = Tensor::new(&[[0.1_f32, 0.9], [0.8, 0.2], [0.3, 0.7]], &Device::Cpu).unwrap();
        for (ignored, labels, accuracy) in
            [(-100, [1, -100, 0], Some(0.5)), (0, [1, 0, 0], Some(1.0)), (1, [1, 1, 1], None)]
        {
            let mut metrics = Metrics::default();
            let labels = indices(&labels);
            Accuracy.add_counted(&output, &labels, Some(ignored), &mut metrics).unwrap();
            assert_eq!(metrics.measure(ACCURACY), accuracy);
            Accuracy.ignore_index(ignored).add(&output, &labels, &mut metrics).unwrap();
            assert_eq!(metrics.measure(ACCURACY), accuracy);
        }
    }

    #[test]
    fn errors_of_a_regression_are_means() {
        let output = Tensor::new(&[[1.0_f32], [4.0]], &Device::Cpu).unwrap();
        let targets = Tensor::new(&[[2.0_f32], [1.0]], &Device::Cpu).unwrap();
        let mut metrics = Metrics::default();
        RegressionErrors.add(&output, &targets, &mut metrics).unwrap();
        assert_eq!(metrics.measures().collect::<Vec<_>>(), [("mae", 2.0), ("mse", 5.0)]);
        assert!(RegressionErrors.add(&output, &output.squeeze(1).unwrap(), &mut metrics).is_err());
    }

    #[test]
    fn what_has_no_right_class_is_an_error_that_says_so() {
        let ones = |dims: &[usize]| Tensor::ones(dims, DType::F32, &Device::Cpu).unwrap();
        let cases = [
            // One label for each sequence, and one value for each sample.
            (ones(&[2, 3, 4]), indices(&[0, 1]), "the shapes do not fit"),
            (ones(&[2]), ones(&[2]), "these are [2]"),
            // A regression, and yes or no for several classes.
            (ones(&[2, 1]), ones(&[2]), "two classes or more, these are [2, 1]"),
            (ones(&[2, 1]), indices(&[0, 0]), "two classes or more, these are [2, 1]"),
            (ones(&[2, 3]), ones(&[2]), "class indices are u8, u32 or i64"),
            (ones(&[2, 3]), ones(&[2, 3]), "a row is of several classes or of none"),
            (ones(&[2, 3]), indices(&[0, 1, 2]), "do not fit"),
            (ones(&[2, 3]), ones(&[2, 4]), "do not fit"),
            (ones(&[2, 3]), ones(&[2, 3, 1]), "do not fit"),
            (ones(&[2, 3]), indices(&[0, 3]), "there is no class 3"),
            (ones(&[2, 3]), indices(&[0, -100]), "there is no class -100"),
        ];
        for (scores, targets, expected) in cases {
            let mut metrics = Metrics::default();
            let message = Accuracy.add(&scores, &targets, &mut metrics).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
            assert_eq!(metrics, Metrics::default());
        }
    }
}
