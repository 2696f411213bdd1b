//! The integer hash from which initial weights and batches are drawn: scripts/bench_step.py has the same one.

/// Streams of the hash: one for each batch of each of up to 12 ranks, and for those of evaluations. The first
/// hundred parameters have the lower streams, the others those from [`MORE_PARAMETERS`] on.
pub(crate) const NOISE: usize = 100;
pub(crate) const LABELS: usize = 200;
pub(crate) const PATTERNS: usize = 300;
pub(crate) const TOKENS: usize = 400;
pub(crate) const MORE_PARAMETERS: usize = 1000;

/// A number in [0, 1), exact in f32.
pub(crate) fn uniform(stream: usize, index: usize) -> f32 {
    (hash(stream, index) >> 8) as f32 / (1 << 24) as f32
}

/// MurmurHash3's finalizer over a counter that starts at the stream.
pub(crate) fn hash(stream: usize, index: usize) -> u32 {
    let mut h = (index as u32).wrapping_add((stream as u32).wrapping_mul(0x9E37_79B9));
    h = (h ^ (h >> 16)).wrapping_mul(0x85EB_CA6B);
    h = (h ^ (h >> 13)).wrapping_mul(0xC2B2_AE35);
    h ^ (h >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_one_of_the_python_script() {
        // hashes(stream, 2) of scripts/bench_step.py
        let expected = [
            [0, 0x514E_28B7],
            [0x1B14_7DCC, 0x971E_9964],
            [0xCBAD_538B, 0xE37A_AB19],
            [0x7AB1_197E, 0x6359_8FD3],
            [0x0038_5B85, 0x08BE_C8E4],
        ];
        let got = [0, 3, PATTERNS, TOKENS, TOKENS + 7].map(|s| [hash(s, 0), hash(s, 1)]);
        assert_eq!(got, expected);
    }
}
