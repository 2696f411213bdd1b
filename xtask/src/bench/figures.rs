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
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let sorted = sorted(values);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        Some(Self { median: median(values)?, min, max })
    }

    /// The median and both ends, each changed by a function that keeps their order.
    pub(crate) fn map(&self, change: impl Fn(f64) -> f64) -> Self {
        let Self { median, min, max } = *self;
        Self { median: change(median), min: change(min), max: change(max) }
    }

    /// `median [min-max]`.
    pub(crate) fn text(&self, digits: usize) -> String {
        let Self { median, min, max } = self;
        format!("{median:.digits$} [{min:.digits$}-{max:.digits$}]")
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let (sorted, middle) = (sorted(values), values.len() / 2);
    let upper = *sorted.get(middle)?;
    Some(if sorted.len() % 2 == 1 { upper } else { (sorted[middle - 1] + upper) / 2.0 })
}

/// The ends of the range that holds the median of the population with 95 % confidence, whatever its
/// distribution is: two order statistics of the values (the sign test's interval). Fewer than six
/// values give their whole range, whose confidence is lower.
pub(crate) fn noise(values: &[f64]) -> Option<(f64, f64)> {
    let (sorted, n) = (sorted(values), values.len() as i32);
    // The chance that at most `k` of `n` values are below the median is the sum of the binomial
    // coefficients up to `k`, divided by 2^n.
    let (mut outside, mut below, mut chance) = (0, 0.0, 0.5_f64.powi(n));
    for k in 0..n / 2 {
        below += chance;
        if below > 0.025 {
            break;
        }
        outside = k as usize + 1;
        chance *= f64::from(n - k) / f64::from(k + 1);
    }
    let cut = outside.saturating_sub(1);
    Some((*sorted.get(cut)?, *sorted.get(sorted.len() - 1 - cut)?))
}

/// About three digits, with a comma between groups of three.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => HumanCount(value.round().max(0.0) as u64).to_string(),
    }
}

/// The ending of a noun after a number.
pub(crate) fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_median_and_both_ends() {
        let spread = |values: &[f64]| Spread::of(values).map(|s| (s.median, s.min, s.max));
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some((2.0, 1.0, 3.0)));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), Some((2.5, 1.0, 4.0)));
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn the_noise_of_a_median_leaves_out_the_ends_of_many_values() {
        let of = |n: i32| noise(&(1..=n).map(f64::from).collect::<Vec<_>>());
        // The sign test's table: 5 values [1, 5] (93.8 %), 9 values [2, 8], 15 values [4, 12].
        let ends = [1, 5, 6, 9, 15].map(of);
        let expected = [(1.0, 1.0), (1.0, 5.0), (1.0, 6.0), (2.0, 8.0), (4.0, 12.0)];
        assert_eq!(ends, expected.map(Some));
        assert_eq!(of(0), None);
    }

    #[test]
    fn numbers_have_about_three_digits() {
        let numbers = [1.234, 12.34, 123.4, 1_234_567.0].map(short);
        assert_eq!(numbers, ["1.23", "12.3", "123", "1,234,567"]);
    }
}
