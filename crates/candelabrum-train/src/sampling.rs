//! The samples of an epoch of training, and their order.

use std::fmt;

use candelabrum_datasets::{DistributedSampler, Shuffle};
use clap::Args;

use crate::Result;
use crate::options::parse_positive;

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
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sampling {
    /// Shuffle within a window of so many samples that moves over the data, for shards larger than the memory
    /// [default: shuffle all samples]
    #[arg(id = "shuffle_window", long = "shuffle-window", value_name = "N", value_parser = parse_window, default_value = ALL, hide_default_value = true)]
    pub shuffle: Shuffle,

    /// Samples in an epoch, over all ranks [default: those of the dataset]
    #[arg(long, value_name = "N", value_parser = parse_positive)]
    pub epoch_size: Option<usize>,
}

/// The value of the option for a window of all samples.
const ALL: &str = "all";

fn parse_window(text: &str) -> std::result::Result<Shuffle, String> {
    if text == ALL { Ok(Shuffle::Full) } else { parse_positive(text).map(Shuffle::Window) }
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
