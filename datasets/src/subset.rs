//! A part of a dataset, which is a dataset again.
//!
//! A part reads the samples of the whole by the whole's own numbers, so a sample is augmented in a part
//! as it is in the whole.

use std::sync::Arc;

use crate::{
    dataset::Dataset,
    digest::sha256,
    error::{Error, Result, check_count},
    partition::{Partition, Remainder, partition},
    pass::Pass,
    split::split,
};

/// Some samples of a dataset.
#[derive(Debug, Clone)]
pub struct Subset<D: Dataset> {
    whole: D,
    samples: Samples,
    dropped: usize,
    shared_by: usize,
}

/// The whole's numbers of the samples in a part.
#[derive(Debug, Clone)]
enum Samples {
    /// A range of a dataset of known length. It wraps round at the end.
    Range(Partition),
    Chosen(Arc<[u32]>),
}

impl<D: Dataset> Subset<D> {
    /// The contiguous share with number `part_index` of `num_parts` equal ones, as in MXNet: see
    /// [`partition`].
    ///
    /// Each rank of a distributed run may take one share and iterate it alone. A
    /// [`DistributedSampler`](crate::DistributedSampler) divides the samples among the ranks, too:
    /// give it the whole dataset, or a world of one rank.
    ///
    /// # Errors
    /// Those of [`partition`].
    pub fn new(
        whole: D,
        part_index: usize,
        num_parts: usize,
        remainder: Remainder,
    ) -> Result<Self> {
        let range = partition(whole.len(), part_index, num_parts, remainder)?;
        let shared_by = whole.shared_by().saturating_mul(num_parts);
        Ok(Self { whole, samples: Samples::Range(range), dropped: range.dropped, shared_by })
    }

    /// The first `count` samples, or all if there are fewer.
    pub fn first(whole: D, count: usize) -> Self {
        let len = whole.len();
        let share = count.min(len);
        let range = Partition { start: 0, share, len, dropped: 0, padded: 0 };
        Self { samples: Samples::Range(range), dropped: 0, shared_by: whole.shared_by(), whole }
    }

    /// These samples, in this order. A sample may come several times.
    ///
    /// # Errors
    /// A number that is not the number of a sample, or more samples than 32 bits can count.
    pub fn from_samples(whole: D, samples: impl Into<Arc<[u32]>>) -> Result<Self> {
        let (samples, len) = (samples.into(), whole.len());
        if let Some(&sample) = samples.iter().find(|&&sample| sample as usize >= len) {
            return Err(Error::NoSuchSample { sample: sample as usize, len });
        }
        check_count(samples.len())?;
        let shared_by = whole.shared_by();
        Ok(Self { whole, samples: Samples::Chosen(samples), dropped: 0, shared_by })
    }

    /// A part for training and one for tests, which has this share of the samples. Both keep the order of the
    /// whole. The draw depends on the seed and the number of samples alone, so it is the same on all ranks.
    ///
    /// ```
    /// # use candelabrum_datasets::{Dataset, Subset, TensorDataset};
    /// # fn main() -> candelabrum_datasets::Result<()> {
    /// # let whole = TensorDataset::new(vec![candle_core::Tensor::arange(0_u32, 50, &candle_core::Device::Cpu)?])?;
    /// let (train, test) = Subset::random_split(whole, 0.1, 0)?;
    /// assert_eq!([train.len(), test.len()], [45, 5]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A share that leaves a part empty.
    pub fn random_split(whole: D, test_share: f64, seed: u64) -> Result<(Self, Self)>
    where
        D: Clone,
    {
        let [train, test] = split(whole.len(), "samples", test_share, seed)?;
        let part = |whole: D, samples: Vec<usize>| {
            Self::from_samples(
                whole,
                samples.into_iter().map(|sample| sample as u32).collect::<Vec<_>>(),
            )
        };
        Ok((part(whole.clone(), train)?, part(whole, test)?))
    }

    /// The whole dataset.
    pub fn whole(&self) -> &D {
        &self.whole
    }

    /// The number of samples that no part has.
    pub fn dropped(&self) -> usize {
        self.dropped
    }
}

impl<D: Dataset> Dataset for Subset<D> {
    type Batch = D::Batch;

    fn len(&self) -> usize {
        match &self.samples {
            Samples::Range(range) => range.share,
            Samples::Chosen(chosen) => chosen.len(),
        }
    }

    fn read(&self, samples: &[u32], pass: &Pass) -> Result<Self::Batch> {
        let whole_number = |&sample: &u32| {
            let index = sample as usize;
            let found = match &self.samples {
                Samples::Range(range) => {
                    let number = (range.start + index) % range.len.max(1);
                    (index < range.share).then_some(number as u32)
                }
                Samples::Chosen(chosen) => chosen.get(index).copied(),
            };
            found.ok_or(Error::NoSuchSample { sample: index, len: self.len() })
        };
        let samples = samples.iter().map(whole_number).collect::<Result<Vec<u32>>>()?;
        self.whole.read(&samples, pass)
    }

    fn fingerprint(&self) -> Result<String> {
        let whole = self.whole.fingerprint()?;
        Ok(match &self.samples {
            Samples::Range(Partition { start, share, .. }) => {
                format!("{share} samples from {start} of ({whole})")
            }
            Samples::Chosen(chosen) => {
                let bytes: Vec<u8> =
                    chosen.iter().flat_map(|sample| sample.to_le_bytes()).collect();
                format!("{} samples {} of ({whole})", chosen.len(), sha256(&bytes))
            }
        })
    }

    fn shards(&self) -> Vec<usize> {
        match &self.samples {
            Samples::Range(range) => cut(range, &self.whole.shards()),
            Samples::Chosen(chosen) => vec![chosen.len()],
        }
    }

    fn shared_by(&self) -> usize {
        self.shared_by
    }
}

/// The lengths of the pieces of shards that lie in a range.
fn cut(range: &Partition, shards: &[usize]) -> Vec<usize> {
    let mut pieces = Vec::new();
    if shards.iter().all(|&len| len == 0) {
        return pieces;
    }
    let (mut skipped, mut missing) = (range.start, range.share);
    while missing > 0 {
        for &len in shards {
            let piece = len.saturating_sub(skipped).min(missing);
            skipped = skipped.saturating_sub(len);
            missing -= piece;
            if piece > 0 {
                pieces.push(piece);
            }
        }
    }
    pieces
}
