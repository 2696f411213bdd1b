//! Vectors for results, whose contents are unspecified until a kernel writes all of them.
//!
//! Zeros would be written only to be written over. On a processor with matrix units that took 8% of a step of ResNet-50
//! (docs/log/2026-11-29-amx.md).

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[path = "unspecified/zeros.rs"]
mod contents;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[path = "unspecified/opaque.rs"]
mod contents;

use super::float::Float;
use super::parallel::in_blocks;

/// `len` elements. With debug assertions they are NaN, so that a test fails where a kernel leaves an element out.
pub(crate) fn unspecified<T: Float>(len: usize) -> Vec<T> {
    let mut values = contents::vector(len);
    if cfg!(debug_assertions) {
        in_blocks(&mut values, |_, values| values.fill(T::from_f64(f64::NAN)));
    }
    values
}

#[cfg(test)]
mod tests {
    use rayon::ThreadPoolBuilder;

    use super::*;

    #[test]
    fn contents_stay_as_they_are_until_they_are_written_on_any_number_of_threads() {
        for threads in [1, 2, 5] {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
            for len in [0, 1, 4096, 36_864, 36_865] {
                // Memory that was used before is likely to be used again.
                drop(vec![1.0_f32; len]);
                let mut values = pool.install(|| contents::vector::<f32>(len));
                assert_eq!(values.len(), len);
                let bits: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
                assert!(values.iter().zip(bits).all(|(value, bits)| value.to_bits() == bits));
                values.fill(2.0);
                assert!(values.iter().all(|&value| value == 2.0));
            }
        }
    }
}
