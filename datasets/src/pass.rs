//! One pass over the data, from which the random numbers of augmentation come.
//!
//! An augmentation must not depend on the order in which threads or ranks read samples. So it draws
//! from a generator that is a function of (seed, epoch, sample) alone, and no generator is passed
//! around. A pass for an evaluation changes nothing at random.

use rand_chacha::{ChaCha8Rng, rand_core::RngCore};

use crate::rng::{Purpose, below, rng, uniform};

/// One pass over a dataset, for training or for an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// The seed of the run, the same on every rank.
    pub seed: u64,
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// Whether the model is trained with the samples. Otherwise no sample is augmented.
    pub training: bool,
}

impl Pass {
    /// A pass in which samples are augmented.
    pub const fn training(seed: u64, epoch: u64) -> Self {
        Self { seed, epoch, training: true }
    }

    /// A pass in which samples stay as they are.
    pub const fn evaluation() -> Self {
        Self { seed: 0, epoch: 0, training: false }
    }

    /// The random numbers of a sample in this pass. They depend on (seed, epoch, sample) only, and
    /// are independent of those with which this crate shuffles and augments.
    pub fn rng(&self, sample: usize) -> SampleRng {
        SampleRng(rng(self.seed, Purpose::Sample, self.epoch, sample as u64))
    }
}

/// The random numbers of one sample in one pass: see [`Pass::rng`].
///
/// The numbers are the same in every process, on every platform and in every version of this crate.
/// It is also a generator (`RngCore`) of the crates `rand` 0.9 and `rand_core` 0.9. Their
/// distributions may change between versions.
#[derive(Debug, Clone)]
pub struct SampleRng(ChaCha8Rng);

impl SampleRng {
    /// A uniform integer in `0..bound`. A bound of 0 gives 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        below(&mut self.0, bound)
    }

    /// A uniform number in `[low, high)` with 24 random bits.
    pub fn uniform(&mut self, low: f32, high: f32) -> f32 {
        uniform(&mut self.0, low, high)
    }
}

impl RngCore for SampleRng {
    fn next_u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_from_seed_epoch_and_sample_and_never_change() {
        let first = |seed, epoch, sample| Pass::training(seed, epoch).rng(sample).next_u64();
        assert_eq!(first(1, 2, 3), first(1, 2, 3));
        let others = [first(0, 2, 3), first(1, 0, 3), first(1, 2, 0), first(2, 1, 3)];
        assert!(!others.contains(&first(1, 2, 3)));
        let mut rng = Pass::training(1, 2).rng(3);
        assert_eq!((0..4).map(|_| rng.below(100)).collect::<Vec<_>>(), [0; 4]);
        assert!((0..100).all(|_| (0.0..1.0).contains(&rng.uniform(0.0, 1.0))));
    }
}
