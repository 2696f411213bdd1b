//! The samples of an epoch, and the samples of each rank at each step.
//!
//! The samples come in an endless sequence of permutations of all samples. The epochs are pieces of
//! this sequence: without another wish, epoch e is permutation e. A permutation depends only on
//! (seed, its number), so it is the same on every rank without a message. Step s has the *global*
//! batch `epoch[s*N*B .. (s+1)*N*B]`, of which rank r takes `[r*B .. (r+1)*B]`. So N ranks with batch
//! B see, step by step, exactly the samples of one rank with batch N*B. The training is the same, and
//! a run may be compared with, or continued with, another number of ranks.

use std::sync::Arc;

use crate::{
    error::{Error, Result, check_count},
    order::{Shuffle, permutation},
    partition::{Remainder, check_rank},
};

/// The parameters of a [`DistributedSampler`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplerConfig {
    /// The number of samples in the dataset.
    pub len: usize,
    /// This rank.
    pub global_rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// Samples in a batch of *one* rank.
    pub batch_size: usize,
    /// The seed of the permutations; the same on every rank.
    pub seed: u64,
    /// Whether to reshuffle all samples every epoch. Otherwise the samples keep their order.
    /// [`DistributedSampler::with_shuffle`] has more choices.
    pub shuffle: bool,
    /// The treatment of the last global batch if it is not full.
    pub remainder: Remainder,
}

impl SamplerConfig {
    /// All samples of a dataset for one rank, reshuffled every epoch with seed 0. A last batch that is not full is
    /// dropped. Other ranks and orders: `SamplerConfig { global_rank, world_size, ..SamplerConfig::new(len, batch_size) }`.
    pub fn new(len: usize, batch_size: usize) -> Self {
        let remainder = Remainder::Drop;
        Self { len, global_rank: 0, world_size: 1, batch_size, seed: 0, shuffle: true, remainder }
    }
}

/// Splits epochs into steps and steps into the batches of the ranks.
///
/// The samples that do not fill a global batch are dropped and counted
/// ([`dropped_per_epoch`](Self::dropped_per_epoch)), or the batch is padded from the start of the
/// permutation, or they are kept. If they are kept, the last batch is smaller or even empty on some
/// ranks, and every sample is used exactly once. In all three cases every rank has the same number
/// of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DistributedSampler {
    config: SamplerConfig,
    shuffle: Shuffle,
    epoch_size: usize,
    steps: usize,
}

impl DistributedSampler {
    /// A sampler for one rank.
    ///
    /// # Errors
    /// A rank outside its world, an empty dataset, a batch size of 0, and, except with
    /// [`Remainder::Keep`], a batch size larger than a rank's share. All ranks get the same error.
    pub fn new(config: SamplerConfig) -> Result<Self> {
        Self::from_config(config, config.shuffle.into(), config.len)
    }

    /// The same sampler with another order of the samples.
    #[must_use]
    pub fn with_shuffle(self, shuffle: Shuffle) -> Self {
        let config = SamplerConfig { shuffle: shuffle != Shuffle::No, ..self.config };
        Self { config, shuffle, ..self }
    }

    /// The same sampler with epochs of so many samples, over all ranks, as MXNet's `epoch_size`.
    ///
    /// With fewer samples than the dataset has, each epoch continues where the one before has ended,
    /// and no sample comes again before all have come. With more samples, an epoch has several
    /// permutations. The treatment of a last global batch that is not full is that of each epoch:
    /// with [`Remainder::Drop`], a size that is a multiple of the
    /// [global batch size](Self::global_batch_size) drops nothing.
    ///
    /// # Errors
    /// A size of 0, or one that does not fit into 32 bits. Except with [`Remainder::Keep`], a batch
    /// size larger than a rank's share of the epoch.
    pub fn with_epoch_size(self, epoch_size: usize) -> Result<Self> {
        if epoch_size == 0 {
            let what = "an epoch of 0 samples: the epoch size must be at least 1";
            return Err(Error::argument(what));
        }
        Self::from_config(self.config, self.shuffle, epoch_size)
    }

    /// The same sampler with at most so many steps in an epoch, the first ones. The order of the samples stays: the rest
    /// of an epoch is left out, and the next epoch begins where it would begin without the limit.
    ///
    /// # Errors
    /// A limit of 0.
    pub fn with_most_steps(self, most: usize) -> Result<Self> {
        if most == 0 {
            return Err(Error::argument("an epoch of 0 steps: the limit must be at least 1"));
        }
        Ok(Self { steps: self.steps.min(most), ..self })
    }

    fn from_config(config: SamplerConfig, shuffle: Shuffle, epoch_size: usize) -> Result<Self> {
        let SamplerConfig { len, global_rank, world_size, batch_size, remainder, .. } = config;
        check_rank(global_rank, world_size)?;
        if batch_size == 0 {
            return Err(Error::argument("--batch-size 0: a batch needs at least 1 sample"));
        }
        if len == 0 {
            return Err(Error::empty_dataset());
        }
        check_count(len.max(epoch_size))?;
        let share = match remainder {
            Remainder::Drop => epoch_size / world_size,
            Remainder::Pad => epoch_size.div_ceil(world_size),
            Remainder::Keep => usize::MAX,
        };
        if batch_size > share {
            return Err(Error::argument(format!(
                "--batch-size {batch_size} is larger than a rank's share of {share} samples: rank \
                 {global_rank} of {world_size} cannot fill one batch, use --batch-size {share} or \
                 less, or fewer workers"
            )));
        }
        let global = batch_size.saturating_mul(world_size);
        let steps = match remainder {
            Remainder::Drop => epoch_size / global,
            Remainder::Pad | Remainder::Keep => epoch_size.div_ceil(global),
        };
        Ok(Self { config, shuffle, epoch_size, steps })
    }

    /// One rank, in order, every sample once: for an evaluation or to inspect the data.
    ///
    /// # Errors
    /// An empty dataset or a batch size of 0.
    pub fn sequential(len: usize, batch_size: usize) -> Result<Self> {
        Self::new(SamplerConfig {
            len,
            global_rank: 0,
            world_size: 1,
            batch_size,
            seed: 0,
            shuffle: false,
            remainder: Remainder::Keep,
        })
    }

    /// The parameters.
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// The order of the samples.
    pub fn shuffle(&self) -> Shuffle {
        self.shuffle
    }

    /// The number of samples in an epoch, over all ranks. Unless
    /// [chosen otherwise](Self::with_epoch_size), the number of samples in the dataset.
    pub fn epoch_size(&self) -> usize {
        self.epoch_size
    }

    /// The number of steps in an epoch, the same on every rank.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// The number of samples in a full batch of all ranks together.
    pub fn global_batch_size(&self) -> usize {
        self.config.batch_size.saturating_mul(self.config.world_size)
    }

    /// The number of samples that no rank uses in an epoch. With shuffling, these samples differ
    /// from epoch to epoch.
    pub fn dropped_per_epoch(&self) -> usize {
        match self.config.remainder {
            Remainder::Drop => self.epoch_size - self.steps * self.global_batch_size(),
            // All are used, unless the steps are limited.
            Remainder::Pad | Remainder::Keep => {
                self.epoch_size.saturating_sub(self.steps.saturating_mul(self.global_batch_size()))
            }
        }
    }

    /// The number of samples that are used twice in an epoch to fill the last global batch.
    pub fn padded_per_epoch(&self) -> usize {
        match self.config.remainder {
            Remainder::Pad => {
                self.steps.saturating_mul(self.global_batch_size()).saturating_sub(self.epoch_size)
            }
            Remainder::Drop | Remainder::Keep => 0,
        }
    }

    /// The samples of an epoch in their order: a pure function of the seed, the epoch, the number of
    /// samples and the choices above. All samples are one shard.
    pub fn epoch(&self, epoch: usize) -> EpochOrder {
        self.order(epoch, &[self.config.len])
    }

    /// [`epoch`](Self::epoch) for samples that are stored in shards of these lengths, in order.
    ///
    /// # Errors
    /// Lengths whose sum is not the number of samples.
    pub fn epoch_of_shards(&self, epoch: usize, shards: &[usize]) -> Result<EpochOrder> {
        let counted = shards.iter().fold(0_usize, |sum, &len| sum.saturating_add(len));
        if counted != self.config.len {
            return Err(Error::shard_lengths(counted, self.config.len));
        }
        Ok(self.order(epoch, shards))
    }

    fn order(&self, epoch: usize, shards: &[usize]) -> EpochOrder {
        let SamplerConfig { len, seed, .. } = self.config;
        let first = epoch as u128 * self.epoch_size as u128;
        let mut pass = (first / len as u128) as u64;
        let mut skipped = (first % len as u128) as usize;
        let mut order = Vec::with_capacity(self.epoch_size);
        while order.len() < self.epoch_size {
            let missing = self.epoch_size - order.len();
            let batch = self.global_batch_size();
            let samples = permutation(len, shards, self.shuffle, batch, seed, pass).into_iter();
            order.extend(samples.skip(skipped).take(missing));
            (pass, skipped) = (pass.wrapping_add(1), 0);
        }
        EpochOrder { sampler: *self, order: order.into() }
    }
}

/// The samples of one epoch, cut into this rank's batches.
#[derive(Debug, Clone)]
pub struct EpochOrder {
    sampler: DistributedSampler,
    order: Arc<[u32]>,
}

impl EpochOrder {
    /// The samples of all ranks in their order. Unless the
    /// [epoch size](DistributedSampler::with_epoch_size) was chosen, a permutation of all samples.
    pub fn permutation(&self) -> &[u32] {
        &self.order
    }

    /// The number of steps.
    pub fn steps(&self) -> usize {
        self.sampler.steps
    }

    /// The samples of this rank at a step. Empty after the last step, and if [`Remainder::Keep`]
    /// leaves no samples for this rank.
    pub fn batch(&self, step: usize) -> Vec<u32> {
        if step >= self.sampler.steps {
            return Vec::new();
        }
        let SamplerConfig { batch_size, global_rank, .. } = self.sampler.config;
        let first = step * self.sampler.global_batch_size() + global_rank * batch_size;
        let tail = self.order.iter().skip(first).take(batch_size);
        match self.sampler.config.remainder {
            Remainder::Drop | Remainder::Keep => tail.copied().collect(),
            Remainder::Pad => {
                let len = self.order.len();
                (first..first + batch_size).map(|i| self.order[i % len]).collect()
            }
        }
    }

    /// This rank's batches, step by step.
    pub fn batches(&self) -> impl Iterator<Item = Vec<u32>> {
        (0..self.steps()).map(|step| self.batch(step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(len: usize, batch_size: usize, world_size: usize) -> SamplerConfig {
        SamplerConfig {
            len,
            global_rank: 0,
            world_size,
            batch_size,
            seed: 0,
            shuffle: true,
            remainder: Remainder::Drop,
        }
    }

    #[test]
    fn the_permutation_of_a_seed_and_an_epoch_never_changes() {
        let sampler = DistributedSampler::new(config(60_000, 64, 4)).unwrap();
        let prefix = |epoch| sampler.epoch(epoch).permutation()[..6].to_vec();
        assert_eq!(prefix(0), [43_779, 24_198, 56_726, 967, 42_509, 33_132]);
        assert_eq!(prefix(1), [5_009, 50_974, 44_730, 47_077, 11_922, 10_138]);
    }

    #[test]
    fn the_count_of_steps_and_of_dropped_or_padded_samples_is_right() {
        let check = |len, batch, world, remainder, steps, dropped, padded| {
            let sampler =
                DistributedSampler::new(SamplerConfig { remainder, ..config(len, batch, world) })
                    .unwrap();
            assert_eq!(sampler.steps(), steps);
            assert_eq!(sampler.dropped_per_epoch(), dropped);
            assert_eq!(sampler.padded_per_epoch(), padded);
        };
        check(60_000, 64, 1, Remainder::Drop, 937, 32, 0);
        check(60_000, 64, 4, Remainder::Drop, 234, 96, 0);
        check(60_000, 64, 4, Remainder::Pad, 235, 0, 160);
        check(60_000, 64, 4, Remainder::Keep, 235, 0, 0);
        check(60_000, 60_000, 1, Remainder::Drop, 1, 0, 0);
        check(5, 8, 1, Remainder::Keep, 1, 0, 0);
    }

    #[test]
    fn a_limit_of_steps_keeps_the_first_batches_of_each_epoch() {
        for remainder in [Remainder::Drop, Remainder::Pad, Remainder::Keep] {
            let config = SamplerConfig { remainder, ..config(23, 2, 2) };
            let whole = DistributedSampler::new(config).unwrap();
            let limited = whole.with_most_steps(3).unwrap();
            let numbers = (limited.steps(), limited.dropped_per_epoch());
            assert_eq!((numbers, limited.padded_per_epoch()), ((3, 11), 0));
            for epoch in 0..3 {
                let first: Vec<_> = whole.epoch(epoch).batches().take(3).collect();
                assert_eq!(limited.epoch(epoch).batches().collect::<Vec<_>>(), first);
            }
            assert_eq!(whole.with_most_steps(99).unwrap().steps(), whole.steps());
            assert!(whole.with_most_steps(0).is_err());
        }
    }

    #[test]
    fn a_batch_larger_than_a_share_names_batch_rank_and_share() {
        let big = SamplerConfig { global_rank: 1, ..config(60_000, 40_000, 2) };
        let message = DistributedSampler::new(big).unwrap_err().to_string();
        assert!(
            message.starts_with(
                "--batch-size 40000 is larger than a rank's share of 30000 samples: rank 1 of 2"
            ),
            "{message}"
        );
        let pad = SamplerConfig { remainder: Remainder::Pad, ..big };
        assert_eq!(DistributedSampler::new(pad).unwrap_err().to_string(), message);
        let keep = SamplerConfig { remainder: Remainder::Keep, ..big };
        assert_eq!(DistributedSampler::new(keep).unwrap().epoch(0).batch(0).len(), 20_000);
    }

    #[test]
    fn senseless_parameters_are_errors() {
        let outside = SamplerConfig { global_rank: 2, ..config(10, 1, 2) };
        for (config, expected) in [
            (config(10, 0, 1), "--batch-size 0"),
            (config(0, 1, 1), "the dataset is empty"),
            (config(10, 1, 0), "a world of 0 ranks"),
            (outside, "global rank 2 in a world of 2"),
            (config(u32::MAX as usize + 1, 1, 1), "4294967296 samples are more than"),
        ] {
            let message = DistributedSampler::new(config).unwrap_err().to_string();
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn keep_leaves_the_last_ranks_empty_but_in_step() {
        let lengths = |global_rank| -> Vec<usize> {
            let keep =
                SamplerConfig { global_rank, remainder: Remainder::Keep, ..config(10, 2, 4) };
            let order = DistributedSampler::new(keep).unwrap().epoch(0);
            order.batches().map(|batch| batch.len()).collect()
        };
        assert_eq!(lengths(0), [2, 2]);
        assert_eq!(lengths(1), [2, 0]);
        assert_eq!(lengths(3), [2, 0]);
    }

    #[test]
    fn without_shuffling_the_samples_keep_their_order() {
        let order = DistributedSampler::sequential(5, 2).unwrap().epoch(3);
        assert_eq!(order.batches().collect::<Vec<_>>(), [vec![0, 1], vec![2, 3], vec![4]]);
        assert!(order.batch(3).is_empty());
    }
}
