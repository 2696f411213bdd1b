//! Vectors of zeros, for results.

use super::float::Float;
use super::parallel::{in_blocks, worth_threads};

/// `len` zeros. The threads of the pool write them, so that each has a part of the pages of new memory.
pub(crate) fn zeros<T: Float>(len: usize) -> Vec<T> {
    if !worth_threads(len) {
        return vec![T::default(); len];
    }
    let mut values = Vec::with_capacity(len);
    in_blocks(&mut values.spare_capacity_mut()[..len], |_, places| {
        for place in places {
            place.write(T::default());
        }
    });
    // SAFETY: the capacity is at least `len`, and the blocks are all of the first `len` elements.
    unsafe { values.set_len(len) };
    values
}

#[cfg(test)]
mod tests {
    use rayon::ThreadPoolBuilder;

    use super::*;

    #[test]
    fn every_element_is_zero_on_any_number_of_threads() {
        for threads in [1, 2, 5] {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
            for len in [0, 1, 4096, 36_864, 36_865] {
                // Memory that was used before is likely to be used again.
                drop(vec![1.0_f32; len]);
                assert_eq!(pool.install(|| zeros::<f32>(len)), vec![0.0; len]);
            }
        }
    }
}
