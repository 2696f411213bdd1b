//! Numbers of a benchmark: medians of noisy samples, ratios within a round, and their text form.

use serde::Serialize;

/// The summary of several samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// `None` if there is no sample.
    pub(crate) fn of(values: Vec<f64>) -> Option<Self> {
        let min = values.iter().copied().reduce(f64::min)?;
        let max = values.iter().copied().reduce(f64::max)?;
        Some(Self { median: median(values)?, min, max })
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len() % 2 == 1 { upper } else { (values[middle - 1] + upper) / 2.0 })
}

/// The median of the ratios within each round. `None` if there is nothing to compare with.
pub(crate) fn paired_ratio(ours: &[f64], theirs: &[f64]) -> Option<f64> {
    median(ours.iter().zip(theirs).map(|(a, b)| a / b).collect())
}

/// [`paired_ratio`] of samples with the numbers of their rounds, over the rounds that both contain.
pub(crate) fn ratio_by_round(ours: &[(usize, f64)], theirs: &[(usize, f64)]) -> Option<f64> {
    let of_round = |round: usize| theirs.iter().find(|(other, _)| *other == round);
    let both = ours.iter().filter_map(|&(round, value)| Some((value, of_round(round)?.1)));
    let (ours, theirs): (Vec<f64>, Vec<f64>) = both.unzip();
    paired_ratio(&ours, &theirs)
}

/// A number for a table, or a dash for `None`.
pub(crate) fn or_dash(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
}

/// A whole number with a comma between groups of three digits.
pub(crate) fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let grouped: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| str::from_utf8(group).unwrap_or(""))
        .collect();
    grouped.join(",")
}

/// A round distance between grid lines that results in three to seven lines.
pub(crate) fn tick_step(largest: f64) -> f64 {
    let power = 10_f64.powf((largest / 3.0).log10().floor());
    let fits = |step: &f64| largest / step >= 3.0;
    [5.0, 2.0, 1.0].map(|factor| factor * power).into_iter().find(fits).unwrap_or(power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_even_and_odd_counts() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(vec![]), None);
    }

    #[test]
    fn a_spread_has_both_ends() {
        let spread = Spread::of(vec![3.0, 1.0, 2.0]).unwrap();
        assert_eq!(spread, Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of(vec![]), None);
    }

    #[test]
    fn ratios_are_paired_within_rounds() {
        // The machine slows down by half in round 1. The ratio stays the same, unlike that of the
        // minima.
        assert_eq!(paired_ratio(&[400.0, 200.0, 410.0], &[100.0, 50.0, 100.0]), Some(4.0));
        assert_eq!(paired_ratio(&[400.0], &[]), None);
    }

    #[test]
    fn large_numbers_are_grouped() {
        let numbers = [0.0, 999.4, 1000.0, 1_234_567.0].map(thousands);
        assert_eq!(numbers, ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn grid_lines_are_round_and_few() {
        for largest in [0.003, 1.0, 37.0, 540.0, 2999.0, 3000.0, 5718.0, 12_000.0, 99_999.0] {
            let lines = largest / tick_step(largest);
            assert!((3.0..=7.5).contains(&lines), "{largest}: {lines}");
        }
    }
}
