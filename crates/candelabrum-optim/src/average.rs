//! A moving average: the step from the old average towards a new number by a share.
//!
//! ```text
//! a + share · (x - a)             share ≤ 1/2
//! x + (1 - share) · (a - x)       otherwise
//! ```
//!
//! Both are the same average, and the second one is exact where the first one is not: with a share of 1 it
//! is x, whatever a was. In the first one a difference to a large a has lost the digits of x. PyTorch's
//! `lerp` does the same. The kernels' `moved` in formula.cu computes the same bits.

/// The factors of a moving average.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MovingAverage {
    /// The share of the new number.
    take: f32,
    /// The share of the old average.
    keep: f32,
    starts_at_new: bool,
}

impl MovingAverage {
    /// An average that moves by this share.
    pub(crate) fn new(share: f64) -> Self {
        Self { take: share as f32, keep: (1.0 - share) as f32, starts_at_new: share > 0.5 }
    }

    #[inline(always)]
    pub(crate) fn moved(self, old: f32, new: f32) -> f32 {
        if self.starts_at_new {
            new + self.keep * (old - new)
        } else {
            old + self.take * (new - old)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_a_half_down_the_bits_are_those_of_the_plain_formula() {
        let numbers = [0.0_f32, 1.0, -1e-3, 1e12, 3.7e-20, -1.0 / 3.0];
        for share in [0.0, 0.001, 1.0 - 0.9, 0.5] {
            let average = MovingAverage::new(share);
            for (old, new) in numbers.into_iter().flat_map(|a| numbers.map(|b| (a, b))) {
                let plain = old + share as f32 * (new - old);
                assert_eq!(average.moved(old, new).to_bits(), plain.to_bits(), "{old} {new}");
            }
        }
    }

    #[test]
    fn a_large_share_is_as_precise_as_the_larger_of_both_parts() {
        for share in [0.51, 0.7, 0.999, 1.0] {
            for (old, new) in [(1e12_f32, 0.5_f32), (1.0, 1e-6), (-3.0, 2.0), (1e-6, 1.0)] {
                let exact = f64::from(old) * (1.0 - share) + f64::from(new) * share;
                let parts = (f64::from(old) * (1.0 - share)).abs() + (f64::from(new) * share).abs();
                let error = (f64::from(MovingAverage::new(share).moved(old, new)) - exact).abs();
                assert!(error <= 2e-7 * parts, "{share} {old} {new}: {error:e}");
            }
        }
    }
}
