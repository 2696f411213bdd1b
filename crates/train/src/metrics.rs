//! Counts of training and evaluation.

use candelabrum_dist::{Communicator, Result as DistResult};
use candle_core::{D, DType, Tensor};

use crate::{Error, Result};

/// Loss and correct answers over some batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Sum of the batches' mean losses, as SINGA prints it.
    pub loss: f64,
    /// Samples whose largest output belonged to the right class.
    pub correct: f64,
    /// The number of samples.
    pub samples: f64,
    /// The number of batches.
    pub batches: f64,
}

impl Metrics {
    /// Counts a batch: scores `(N, classes)`, targets (class indices `(N,)` or one-hot
    /// `(N, classes)`), and the mean loss.
    ///
    /// # Errors
    /// [`Error::Scores`] and [`Error::Targets`] for other shapes or types, which name no right
    /// class.
    pub fn add(&mut self, scores: &Tensor, targets: &Tensor, loss: f32) -> Result<()> {
        let &[samples, classes] = scores.dims() else {
            return Err(Error::Scores { dims: scores.dims().to_vec() });
        };
        let refuse = |why: &str| {
            let (dims, dtype) = (targets.dims().to_vec(), targets.dtype());
            Err(Error::Targets { dims, dtype, why: why.to_owned(), samples, classes })
        };
        let labels = match *targets.dims() {
            [n] if n == samples && is_index(targets.dtype()) => targets.to_dtype(DType::I64)?,
            [n] if n == samples => return refuse("class indices are u8, u32 or i64"),
            [n, c] if (n, c) == (samples, classes) => {
                targets.argmax(D::Minus1)?.to_dtype(DType::I64)?
            }
            _ => return refuse("the shapes do not fit"),
        };
        let labels = labels.to_vec1::<i64>()?;
        if let Some(label) = labels.iter().find(|label| !(0..classes as i64).contains(label)) {
            return refuse(&format!("there is no class {label}"));
        }
        let predicted = scores.argmax(D::Minus1)?.to_vec1::<u32>()?;
        let hits = predicted.iter().zip(&labels).filter(|(p, label)| i64::from(**p) == **label);
        self.correct += hits.count() as f64;
        self.loss += f64::from(loss);
        self.samples += samples as f64;
        self.batches += 1.0;
        Ok(())
    }

    /// The share of samples that were classified correctly.
    pub fn accuracy(&self) -> f64 {
        if self.samples == 0.0 { 0.0 } else { self.correct / self.samples }
    }

    /// The sum over all ranks, added in rank order, so it is the same on every rank.
    ///
    /// # Errors
    /// Those of an all-gather.
    pub fn over_ranks(&self, comm: &dyn Communicator) -> DistResult<Self> {
        let own = [self.loss, self.correct, self.samples, self.batches];
        let bytes: Vec<u8> = own.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut sum = [0.0; 4];
        for rank in comm.all_gather(&bytes)?.chunks_exact(bytes.len()) {
            for (sum, value) in sum.iter_mut().zip(rank.chunks_exact(8)) {
                let mut bits = [0; 8];
                bits.copy_from_slice(value);
                *sum += f64::from_le_bytes(bits);
            }
        }
        let [loss, correct, samples, batches] = sum;
        Ok(Self { loss, correct, samples, batches })
    }
}

/// Whether class indices may be of this type.
fn is_index(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::U32 | DType::I64)
}

#[cfg(test)]
mod tests {
    use candelabrum_dist::World;
    use candle_core::Device;

    use super::*;

    #[test]
    fn hits_are_counted_for_indices_and_one_hot() {
        let output = Tensor::new(&[[0.1_f32, 0.9], [0.8, 0.2], [0.3, 0.7]], &Device::Cpu).unwrap();
        let indices = Tensor::new(&[1_u32, 1, 1], &Device::Cpu).unwrap();
        let one_hot = Tensor::new(&[[0.0_f32, 1.0], [0.0, 1.0], [0.0, 1.0]], &Device::Cpu).unwrap();
        for targets in [indices, one_hot] {
            let mut metrics = Metrics::default();
            metrics.add(&output, &targets, 0.5).unwrap();
            assert_eq!((metrics.correct, metrics.samples, metrics.loss), (2.0, 3.0, 0.5));
            assert_eq!(metrics.over_ranks(World::single().comm()).unwrap(), metrics);
        }
        assert_eq!(Metrics::default().accuracy(), 0.0);
    }

    #[test]
    fn what_has_no_right_class_is_an_error_that_says_so() {
        let ones = |dims: &[usize]| Tensor::ones(dims, DType::F32, &Device::Cpu).unwrap();
        let indices = |labels: &[i64]| Tensor::new(labels, &Device::Cpu).unwrap();
        let cases = [
            // A sequence of tokens for each sample, and one value for each.
            (ones(&[2, 3, 4]), indices(&[0, 1]), "(N, classes), these are [2, 3, 4]"),
            (ones(&[2]), ones(&[2]), "(N, classes), these are [2]"),
            // A regression.
            (ones(&[2, 1]), ones(&[2]), "class indices are u8, u32 or i64"),
            (ones(&[2, 3]), indices(&[0, 1, 2]), "do not fit"),
            (ones(&[2, 3]), ones(&[2, 4]), "do not fit"),
            (ones(&[2, 3]), ones(&[2, 3, 1]), "do not fit"),
            (ones(&[2, 3]), indices(&[0, 3]), "there is no class 3"),
            (ones(&[2, 3]), indices(&[0, -100]), "there is no class -100"),
        ];
        for (scores, targets, expected) in cases {
            let mut metrics = Metrics::default();
            let message = metrics.add(&scores, &targets, 0.5).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
            assert_eq!(metrics, Metrics::default());
        }
    }
}
