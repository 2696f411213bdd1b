//! Sums over long slices, and mean and variance from them.
//!
//! A sum is accumulated in lanes of the element type, which the compiler vectorises. The lanes are
//! added to f64 totals before they have summed many numbers. The order of the additions depends
//! only on the lengths.

use super::float::Float;

/// So many that the loop over them is not unrolled: unrolled, LLVM emits scalar additions.
const LANES: usize = 128;
/// Numbers between two additions to the f64 totals.
const CARRY: usize = 4096;
/// The number of f64 totals.
const WIDE: usize = 16;

/// `N` sums at once.
pub(crate) struct LaneSums<T, const N: usize> {
    lanes: [[T; LANES]; N],
    totals: [[f64; WIDE]; N],
    pending: usize,
}

impl<T: Float, const N: usize> LaneSums<T, N> {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self { lanes: [[T::zero(); LANES]; N], totals: [[0.0; WIDE]; N], pending: 0 }
    }

    /// Adds `f(x, y)` of all pairs. Both slices have the same length.
    #[inline(always)]
    pub(crate) fn add(&mut self, xs: &[T], ys: &[T], f: impl Fn(T, T) -> [T; N]) {
        for (xs, ys) in xs.chunks(LANES).zip(ys.chunks(LANES)) {
            for lane in 0..xs.len().min(ys.len()).min(LANES) {
                let values = f(xs[lane], ys[lane]);
                for (lanes, value) in self.lanes.iter_mut().zip(values) {
                    lanes[lane] += value;
                }
            }
            self.pending += xs.len();
            if self.pending >= CARRY {
                self.carry();
            }
        }
    }

    #[inline(always)]
    fn carry(&mut self) {
        for (totals, lanes) in self.totals.iter_mut().zip(&mut self.lanes) {
            let mut len = LANES / 2;
            while len >= WIDE {
                let (low, high) = lanes.split_at_mut(len);
                low.iter_mut().zip(high).for_each(|(a, b)| *a += *b);
                len /= 2;
            }
            totals.iter_mut().zip(&*lanes).for_each(|(total, lane)| *total += lane.widen());
            lanes.fill(T::zero());
        }
        self.pending = 0;
    }

    #[inline(always)]
    pub(crate) fn totals(mut self) -> [f64; N] {
        self.carry();
        self.totals.map(|totals| totals.iter().sum())
    }
}

/// The sum of `f(x, y)` of all pairs of two slices of the same length.
#[inline(always)]
pub(crate) fn sum_of<T: Float>(xs: &[T], ys: &[T], f: impl Fn(T, T) -> T) -> T {
    let mut sum = LaneSums::new();
    sum.add(xs, ys, |x, y| [f(x, y)]);
    let [sum] = sum.totals();
    T::narrow(sum)
}

/// Mean and variance. The mean has two parts, so that `x - mean`, computed as `(x - shift) - rest`,
/// is precise even if the mean is large compared with the deviation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moments<T> {
    /// The mean, rounded.
    pub(crate) shift: T,
    /// The rounding error of `shift`.
    pub(crate) rest: f64,
    /// The biased variance.
    pub(crate) variance: f64,
}

/// Mean and variance of all `count` elements of the slices. The slices are read twice: first for
/// the mean, then for the squares of the deviations from it.
#[inline(always)]
pub(crate) fn moments<'a, T: Float>(
    slices: impl Iterator<Item = &'a [T]> + Clone,
    count: usize,
) -> Moments<T> {
    let count = count as f64;
    let mut sum = LaneSums::new();
    for xs in slices.clone() {
        sum.add(xs, xs, |x, _| [x]);
    }
    let [sum] = sum.totals();
    let first = T::narrow(sum / count);
    let mut sums = LaneSums::new();
    for xs in slices {
        sums.add(xs, xs, |x, _| {
            let deviation = x - first;
            [deviation, deviation * deviation]
        });
    }
    let [sum, squares] = sums.totals();
    let error = sum / count;
    let mean = first.widen() + error;
    let shift = T::narrow(mean);
    let variance = squares / count - error * error;
    Moments {
        shift,
        rest: (first.widen() - shift.widen()) + error,
        // Not `max`, which would turn NaN into 0.
        variance: if variance < 0.0 { 0.0 } else { variance },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_every_length_are_exact_on_whole_numbers() {
        for len in [0_usize, 1, 31, 32, 33, 1023, 1024, 1025, 3000] {
            let xs: Vec<f32> = (0..len).map(|i| (i % 7) as f32).collect();
            let mut sums = LaneSums::new();
            sums.add(&xs, &xs, |x, y| [x, x * y]);
            sums.add(&xs, &xs, |x, y| [x, x * y]);
            let [sum, squares] = sums.totals();
            assert_eq!(sum, 2.0 * xs.iter().sum::<f32>() as f64, "{len}");
            assert_eq!(squares, 2.0 * xs.iter().map(|x| x * x).sum::<f32>() as f64, "{len}");
        }
    }

    #[test]
    fn a_large_mean_takes_no_digits_from_the_variance() {
        let xs: Vec<f32> = (0..5000).map(|i| 1e4 + (i % 9) as f32 / 8.0).collect();
        let wide: Vec<f64> = xs.iter().map(|x| f64::from(*x)).collect();
        let mean = wide.iter().sum::<f64>() / 5000.0;
        let variance = wide.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 5000.0;
        let found = moments(xs.chunks(49), 5000);
        assert!((found.shift.widen() + found.rest - mean).abs() < 1e-9, "{found:?}, {mean}");
        assert!((found.variance / variance - 1.0).abs() < 1e-6, "{found:?}, {variance}");
    }

    #[test]
    fn nan_stays_nan() {
        let found = moments([1.0_f32, f32::NAN, 2.0].chunks(3), 3);
        assert!(found.shift.is_nan() && found.variance.is_nan());
    }
}
