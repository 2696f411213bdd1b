//! What is counted while a model trains or is evaluated.

use candelabrum_dist::{Communicator, Result};
use candle_core::{D, DType, Tensor};

/// Loss and hits over some batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Sum of the batches' mean losses, as SINGA prints it.
    pub loss: f64,
    /// Samples whose largest output was the right class.
    pub correct: f64,
    /// Samples seen.
    pub samples: f64,
    /// Batches seen.
    pub batches: f64,
}

impl Metrics {
    /// Counts a batch: outputs `(N, classes)`, class indices or one-hot targets, the mean loss.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn add(&mut self, output: &Tensor, targets: &Tensor, loss: f32) -> candle_core::Result<()> {
        let predicted = output.argmax(D::Minus1)?.to_dtype(DType::U32)?;
        let classes = match targets.rank() {
            1 => targets.to_dtype(DType::U32)?,
            _ => targets.argmax(D::Minus1)?.to_dtype(DType::U32)?,
        };
        let hits = predicted.eq(&classes)?.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()?;
        self.loss += f64::from(loss);
        self.correct += f64::from(hits);
        self.samples += classes.elem_count() as f64;
        self.batches += 1.0;
        Ok(())
    }

    /// The share of samples that were right.
    pub fn accuracy(&self) -> f64 {
        if self.samples == 0.0 { 0.0 } else { self.correct / self.samples }
    }

    /// The sum over all ranks, added in rank order: the same on every rank.
    ///
    /// # Errors
    /// Those of an all-gather.
    pub fn over_ranks(&self, comm: &dyn Communicator) -> Result<Self> {
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
}
