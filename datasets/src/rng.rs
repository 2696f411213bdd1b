//! Random numbers that are the same in every process and on every platform.
//!
//! A generator is identified by its purpose and never passed around: its 256-bit key *is* the tuple
//! `(seed, purpose, epoch, index)`. So two uses never share a stream, no draw depends on the number
//! of earlier draws elsewhere, and sample i gets the same numbers for any number of ranks or
//! threads. Only integer arithmetic and exactly rounded float operations are used.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore, SeedableRng},
};

/// The purpose of a stream of random numbers. These values must not change, so that runs stay
/// reproducible.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    Shuffle = 1,
    Augment = 2,
    SyntheticTrain = 3,
    SyntheticTest = 4,
    SyntheticTrainLabels = 5,
    SyntheticTestLabels = 6,
    ShuffleShards = 7,
    ShuffleWindow = 8,
    /// The numbers that a user's own code draws for a sample.
    Sample = 9,
    RandomResizedCrop = 10,
    Split = 11,
    ShuffleWithinShards = 12,
    SyntheticColors = 13,
}

/// The generator for one purpose, epoch and index.
pub(crate) fn rng(seed: u64, purpose: Purpose, epoch: u64, index: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    for (bytes, word) in key.chunks_exact_mut(8).zip([seed, purpose as u64, epoch, index]) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// A uniform integer in `0..bound` without bias (Lemire 2019, arXiv:1805.10941, algorithm 5).
/// A `bound` of 0 gives 0.
pub(crate) fn below(rng: &mut impl RngCore, bound: u32) -> u32 {
    let threshold = bound.wrapping_neg().checked_rem(bound).unwrap_or(0);
    loop {
        let product = u64::from(rng.next_u32()) * u64::from(bound);
        if product as u32 >= threshold {
            return (product >> 32) as u32;
        }
    }
}

/// A uniform float in `[low, high)` with 24 random bits.
pub(crate) fn uniform(rng: &mut impl RngCore, low: f32, high: f32) -> f32 {
    let unit = (rng.next_u32() >> 8) as f32 / 16_777_216.0;
    low + (high - low) * unit
}

/// Puts `items` into a uniformly random order (Fisher-Yates).
///
/// This is not the `rand` crate's function: that one may change its order of draws between
/// versions, and a run resumed from a checkpoint after an upgrade would get other batches.
pub(crate) fn shuffle<T>(rng: &mut impl RngCore, items: &mut [T]) {
    for last in (1..items.len()).rev() {
        let chosen = below(rng, last as u32 + 1) as usize;
        items.swap(last, chosen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_below_a_bound_hits_every_value_about_equally() {
        let mut generator = rng(0, Purpose::Shuffle, 0, 0);
        let mut counts = [0; 7];
        for _ in 0..70_000 {
            counts[below(&mut generator, 7) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (9_600..10_400).contains(count)), "{counts:?}");
        assert_eq!(below(&mut generator, 0), 0);
        assert_eq!(below(&mut generator, 1), 0);
    }

    #[test]
    fn each_part_of_the_key_changes_the_stream() {
        let first = |seed, purpose, epoch, index| rng(seed, purpose, epoch, index).next_u64();
        let base = first(1, Purpose::Shuffle, 2, 3);
        assert_eq!(base, first(1, Purpose::Shuffle, 2, 3));
        assert_ne!(base, first(0, Purpose::Shuffle, 2, 3));
        assert_ne!(base, first(1, Purpose::Augment, 2, 3));
        assert_ne!(base, first(1, Purpose::Shuffle, 0, 3));
        assert_ne!(base, first(1, Purpose::Shuffle, 2, 0));
    }

    #[test]
    fn uniform_stays_inside_its_range() {
        let mut generator = rng(5, Purpose::Augment, 0, 0);
        assert!((0..10_000).all(|_| (-2.0..3.0).contains(&uniform(&mut generator, -2.0, 3.0))));
    }
}
