//! Random numbers that are the same on every machine. Each generator's seed depends on its purpose.
//!
//! candle's CPU generator cannot be seeded. So initial values and dropout masks are drawn from
//! ChaCha8 streams, which this module derives from the run's seed and a purpose.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// A seed for one `purpose` of the run with seed `seed`: FNV-1a over both, finished by
/// SplitMix64.
pub fn derive(seed: u64, purpose: &str) -> u64 {
    let hash = seed
        .to_le_bytes()
        .iter()
        .chain(purpose.as_bytes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    mix(hash)
}

/// The `index`-th seed of a sequence that starts at `seed`.
pub fn nth(seed: u64, index: u64) -> u64 {
    mix(seed.wrapping_add(index.wrapping_mul(GOLDEN)))
}

/// The generator for a derived seed.
pub fn rng(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

/// 2^64 divided by the golden ratio: the distance of two states of SplitMix64.
pub(crate) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64 (Steele, Lea and Flood 2014).
#[inline(always)]
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purpose_and_seed_both_matter() {
        assert_ne!(derive(0, "conv1.weight"), derive(0, "conv2.weight"));
        assert_ne!(derive(0, "conv1.weight"), derive(1, "conv1.weight"));
        assert_eq!(derive(7, "x"), derive(7, "x"));
        assert_ne!(nth(7, 0), nth(7, 1));
    }
}
