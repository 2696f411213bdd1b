//! Numbers of a benchmark: medians of noisy samples, the noise of a median, and their text form.

use indicatif::HumanCount;
use serde::{Deserialize, Serialize};

/// The summary of several values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// `None` if there is no value.
    pub(crate) fn from_values(values: &[f64]) -> Option<Self> {
        let sorted = sorted(values);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let median = sorted[sorted.len() / 2].midpoint(sorted[(sorted.len() - 1) / 2]);
        Some(Self { median, min, max })
    }

    /// The median and both ends, each changed by a function that keeps their order.
    pub(crate) fn map(&self, change: impl Fn(f64) -> f64) -> Self {
        let Self { median, min, max } = *self;
        Self { median: change(median), min: change(min), max: change(max) }
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The value below which this share of the values lies, and the ends of the range that holds it for
/// the whole population with 95 % confidence, whatever its distribution is: two order statistics of
/// the values, by the binomial distribution. The range of few values is their own end.
pub(crate) fn quantile(values: &[f64], share: f64) -> Option<(f64, [f64; 2])> {
    let (sorted, n) = (sorted(values), values.len());
    let last = n.checked_sub(1)?;
    // `chance` is that of `k` values below the quantile, `below` that of at most `k`. It is kept as a logarithm: that of
    // none below is less than the least f64 from 308 values on.
    let (mut chance, mut below) = (n as f64 * (1.0 - share).ln(), 0.0);
    let (mut low, mut high) = (0, last);
    for k in 0..n {
        below += chance.exp();
        if below <= 0.025 {
            low = k;
        }
        if below >= 0.975 {
            high = high.min(k);
        }
        chance += ((n - k) as f64 / (k + 1) as f64 * share / (1.0 - share)).ln();
    }
    let middle = (share * n as f64) as usize;
    Some((sorted[middle.min(last)], [sorted[low], sorted[high]]))
}

/// About three digits, with a comma between groups of three.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => HumanCount(value.round().max(0.0) as u64).to_string(),
    }
}

/// A number and its noun: `1 rank`, `2 ranks`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_median_and_both_ends() {
        let spread = |values: &[f64]| Spread::from_values(values).map(|s| (s.median, s.min, s.max));
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some((2.0, 1.0, 3.0)));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), Some((2.5, 1.0, 4.0)));
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn a_quantile_has_the_range_of_the_binomial_distribution() {
        let of = |n: i32, share| quantile(&(1..=n).map(f64::from).collect::<Vec<_>>(), share);
        // The sign test's table of 15 values has the median between the 4th and the 12th.
        assert_eq!(of(15, 0.5), Some((8.0, [4.0, 12.0])));
        assert_eq!(of(151, 0.9), Some((136.0, [128.0, 144.0])));
        // About 1.96 standard deviations of 30 on each side.
        assert_eq!(of(10_000, 0.9), Some((9_001.0, [8_941.0, 9_059.0])));
        assert_eq!([of(1, 0.9), of(0, 0.9)], [Some((1.0, [1.0, 1.0])), None]);
    }
}
