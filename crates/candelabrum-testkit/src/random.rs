//! Numbers from an integer hash that `scripts/golden` computes identically.
//!
//! ```text
//! hash(seed, i)          = mix(seed * 0x9E3779B97F4A7C15 + i + 1)      modulo 2^64
//! unit(seed, i)          = (hash(seed, i) >> 40) / 2^24                in [0, 1)
//! uniform(.., lo, hi)[i] = lo + (hi - lo) * unit(seed, i)              in f64, then cast
//! integers(.., n)[i]     = (hash(seed, i) >> 32) mod n
//! ```
//!
//! `mix` is the output function of SplitMix64; `i` counts elements in row-major order.

use candle_core::{DType, Device, Result, Shape, Tensor};

/// A tensor of uniform numbers in `[lo, hi)`.
///
/// # Errors
///
/// If candle cannot cast f64 to `dtype`.
pub fn uniform(
    shape: impl Into<Shape>,
    seed: u64,
    lo: f64,
    hi: f64,
    dtype: DType,
) -> Result<Tensor> {
    let shape = shape.into();
    let values: Vec<f64> = units(seed, shape.elem_count()).map(|u| lo + (hi - lo) * u).collect();
    Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)
}

/// A u32 tensor of whole numbers below `n`.
///
/// # Errors
///
/// None in practice: the data fits the shape.
///
/// # Panics
///
/// If `n` is 0.
pub fn integers(shape: impl Into<Shape>, seed: u64, n: u32) -> Result<Tensor> {
    let shape = shape.into();
    let value = |i| ((hash(seed, i) >> 32) % u64::from(n)) as u32;
    let values: Vec<u32> = (0..shape.elem_count() as u64).map(value).collect();
    Tensor::from_vec(values, shape, &Device::Cpu)
}

/// `unit(seed, i)` for `i` from 0 to `count`.
pub(crate) fn units(seed: u64, count: usize) -> impl Iterator<Item = f64> {
    (0..count as u64).map(move |i| (hash(seed, i) >> 40) as f64 / f64::from(1 << 24))
}

/// 2^64 divided by the golden ratio: the distance of two states of SplitMix64.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

fn hash(seed: u64, i: u64) -> u64 {
    mix(seed.wrapping_mul(GOLDEN).wrapping_add(i).wrapping_add(1))
}

/// The first number of SplitMix64 from this seed.
pub fn split_mix(seed: u64) -> u64 {
    mix(seed.wrapping_add(GOLDEN))
}

/// Random choices that follow from a seed.
#[derive(Clone, Copy, Debug)]
pub struct RandomChoices(pub u64);

impl RandomChoices {
    /// A number below `end`.
    ///
    /// # Panics
    /// If `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = split_mix(self.0);
        (self.0 >> 33) as usize % end
    }

    /// The numbers below `count` in a random order.
    pub fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for end in (1..count).rev() {
            order.swap(end, self.below(end + 1));
        }
        order
    }
}

// As in `candelabrum_nn::seed`: the test kit depends on none of our packages.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_one_of_the_golden_script() -> Result<()> {
        // python: hashes(3, 7); uniform((3,), 7, -1.0, 1.0); integers((5,), 7, 10)
        assert_eq!([hash(7, 0), hash(7, 1), hash(7, 2)], HASHES);
        let values = uniform(3, 7, -1.0, 1.0, DType::F64)?.to_vec1::<f64>()?;
        assert_eq!(values, UNIFORM);
        assert_eq!(integers(5, 7, 10)?.to_vec1::<u32>()?, INTEGERS);
        Ok(())
    }

    const HASHES: [u64; 3] = [0xe099ec6cd7363ca5, 0xb9f24f7bae4a6586, 0x2298eb42cbbefdb8];
    const UNIFORM: [f64; 3] = [0.754697322845459, 0.4527071714401245, -0.7297083139419556];
    const INTEGERS: [u32; 5] = [6, 9, 2, 3, 3];
}
