//! Settings of a distributed optimizer.

use std::fmt;
use std::str::FromStr;

use candelabrum_optim::Clip;

use crate::buffers::BufferSync;
use crate::comm::ElementType;
use crate::strategy::StrategyConfig;
use crate::unit_plan::Sizing;
use crate::{Error, Result};

/// Settings of a [`crate::DistOpt`], the same on every rank.
#[derive(Clone, Debug, PartialEq)]
pub struct DistOptConfig {
    /// Size of the first bucket in bytes: small, because backward goes on for long after it.
    pub first_bucket_bytes: usize,
    /// Size of the other buckets in bytes.
    pub bucket_bytes: usize,
    /// SINGA's `threshold` in elements, which sizes the buckets instead where it is given: a larger
    /// parameter goes alone, the others fill a bucket until it has more than this many.
    pub threshold: Option<usize>,
    /// Whether units leave while the backward pass goes on. The results are the same bit for bit;
    /// without it a step is easier to measure, and a parameter may be used by candle's own
    /// operations in some steps and not in others.
    pub overlap: bool,
    /// Whether a parameter may have no gradient in a step; it then counts as zero.
    pub allow_unused: bool,
    /// What becomes of buffers, the running statistics of a batch normalisation for instance, when
    /// one model is made of the ranks' ([`DistOpt::average_parameters`](crate::DistOpt)).
    pub buffers: BufferSync,
    /// Whether ranks may run out of batches before others do, and then call
    /// [`DistOpt::join`](crate::DistOpt::join). It costs a message of 4 bytes per step.
    pub uneven: bool,
    /// What follows when an average is too large for its element type although every gradient is
    /// finite.
    pub on_overflow: OnOverflow,
    /// How the averaged gradient is clipped before every update; not at all where nothing is given.
    /// Its norm is that of the whole model and, because it is of the average, the same on every
    /// rank. Where ranks average parameters instead (partialUpdate), each clips its own gradient.
    pub clip_gradients: Option<Clip>,
    /// What strategies are made with.
    pub strategy: StrategyConfig,
}

/// What follows an overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnOverflow {
    /// The step is an error that names the parameter.
    #[default]
    Error,
    /// The step is left out on every rank, and counted.
    Skip,
}

impl Default for DistOptConfig {
    /// PyTorch DDP's sizes, 1 MiB, then 25 MiB; with overlap; buffers are rank 0's; an overflow is an error;
    /// nothing is clipped.
    fn default() -> Self {
        Self {
            first_bucket_bytes: 1 << 20,
            bucket_bytes: 25 << 20,
            threshold: None,
            overlap: true,
            allow_unused: false,
            buffers: BufferSync::default(),
            uneven: false,
            on_overflow: OnOverflow::Error,
            clip_gradients: None,
            strategy: StrategyConfig::default(),
        }
    }
}

impl DistOptConfig {
    /// SINGA's default `threshold`, in elements.
    pub const SINGA_THRESHOLD: usize = 2_097_152;

    /// Refuses settings that make no sense.
    ///
    /// # Errors
    /// [`Error::Setting`], and the optimizers' own for what clips gradients.
    pub fn check(&self) -> Result<()> {
        if self.threshold == Some(0) {
            let (setting, value) = ("threshold", "0".to_owned());
            return Err(Error::Setting { setting, value, range: "at least 1 (element)" });
        }
        self.clip_gradients.map_or(Ok(()), |clip| Ok(clip.check()?))
    }

    pub(crate) fn sizing(&self) -> Sizing {
        let elements = |bytes: usize| (bytes / ElementType::F32.size()).max(1);
        let (first, cap) = (elements(self.first_bucket_bytes), elements(self.bucket_bytes));
        self.threshold.map_or(Sizing::Caps { first, cap }, Sizing::Threshold)
    }

    /// The sizing of the methods that SINGA names.
    pub(crate) fn singa_sizing(&self) -> Sizing {
        Sizing::Threshold(self.threshold.unwrap_or(Self::SINGA_THRESHOLD))
    }
}

impl fmt::Display for OnOverflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Error => "error",
            Self::Skip => "skip",
        })
    }
}

impl FromStr for OnOverflow {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "error" => Ok(Self::Error),
            "skip" => Ok(Self::Skip),
            other => Err(Error::Setting {
                setting: "on-overflow",
                value: other.to_owned(),
                range: "error or skip",
            }),
        }
    }
}
