//! Random numbers that are the same on every machine. Each generator's seed depends on its purpose.
//!
//! candle's CPU generator cannot be seeded. So initial values and dropout masks are drawn from
//! ChaCha8 streams, which this module derives from the run's seed and a purpose.

use candelabrum_memory::hash::{GOLDEN, fnv1a, mix};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// A seed for one `purpose` of the run with seed `seed`: FNV-1a over both, finished by
/// SplitMix64.
pub fn derive(seed: u64, purpose: &str) -> u64 {
    mix(fnv1a(seed.to_le_bytes().into_iter().chain(purpose.bytes())))
}

/// The `index`-th seed of a sequence that starts at `seed`.
pub fn nth(seed: u64, index: u64) -> u64 {
    mix(seed.wrapping_add(index.wrapping_mul(GOLDEN)))
}

/// The generator for a derived seed.
pub fn rng(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
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
