//! The samples of an epoch of training, and their order.

use std::fmt;

use candelabrum_datasets::{DistributedSampler, Shuffle};

use crate::Result;

/// The order of the samples in training, and the length of an epoch: the same on every rank, and in a run that
/// continues from a checkpoint.
///
/// ```
/// use candelabrum_datasets::Shuffle;
/// use candelabrum_train::{FitConfig, Sampling};
///
/// // Epochs of 50,000 samples of shards that are larger than the memory.
/// let sampling = Sampling { shuffle: Shuffle::Window(4096), epoch_size: Some(50_000) };
/// let config = FitConfig { sampling, ..FitConfig::default() };
/// assert_eq!(config.sampling.to_string(), "shuffled within a window of 4096, epochs of 50000 samples");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sampling {
    /// How the samples are shuffled. By default every order of all samples is equally probable.
    pub shuffle: Shuffle,
    /// The samples of an epoch over all ranks, MXNet's `epoch_size`
    /// ([`with_epoch_size`](DistributedSampler::with_epoch_size)). `None`, the default: as many as the dataset has.
    pub epoch_size: Option<usize>,
}

impl Sampling {
    /// A sampler with this order and these epochs.
    ///
    /// # Errors
    /// An epoch of 0 samples, or one that is too small for a batch.
    pub fn apply(self, sampler: DistributedSampler) -> Result<DistributedSampler> {
        let sampler = sampler.with_shuffle(self.shuffle);
        Ok(self.epoch_size.map_or(Ok(sampler), |size| sampler.with_epoch_size(size))?)
    }
}

impl fmt::Display for Sampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shuffle {
            Shuffle::No => f.write_str("in order"),
            Shuffle::Full => f.write_str("shuffled"),
            Shuffle::Window(window) => write!(f, "shuffled within a window of {window}"),
            Shuffle::WithinShards => f.write_str("shuffled within shards"),
        }?;
        self.epoch_size.map_or(Ok(()), |size| write!(f, ", epochs of {size} samples"))
    }
}
