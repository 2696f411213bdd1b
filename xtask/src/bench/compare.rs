//! Two measurements of the same trials beside each other: what became slower or faster.
//!
//! Other work on a machine, also work that a virtual machine does not see, can only slow a sample down.
//! So the speed of undisturbed samples is compared, that of the best tenth. A change counts if the
//! ranges in which both speeds lie do not overlap, and from [`LEAST`] on, because two builds of the
//! same code differ by a percent.

use std::cmp::Ordering;
use std::fmt;

use super::figures::quantile;
use super::sample::{Metric, ResultRow};

/// The least change that counts.
const LEAST: f64 = 0.02;

/// The comparison of a row with its earlier or other self.
#[derive(Debug)]
pub(crate) struct Comparison {
    what: String,
    /// How many times as good as before: above 1 is better.
    times: f64,
    /// The range of `times` that the noise allows.
    range: (f64, f64),
}

impl Comparison {
    /// Whether its speed is now less than before, greater, or within the noise the same.
    pub(crate) fn speed(&self) -> Ordering {
        match self.range {
            (_, high) if high < 1.0 - LEAST => Ordering::Less,
            (low, _) if low > 1.0 + LEAST => Ordering::Greater,
            _ => Ordering::Equal,
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.speed() {
            Ordering::Less => "SLOWER",
            Ordering::Greater => "faster",
            Ordering::Equal => "same",
        };
        let (low, high) = self.range;
        write!(f, "{word:<8}{:>7.3} [{low:.3}-{high:.3}]  {}", self.times, self.what)
    }
}

/// The changes of all rows that are among the old ones too. `suffix` ends the old contenders' names:
/// those of another commit took turns with ours, and are rows of the same report.
pub(crate) fn changes(
    new: &[ResultRow],
    old: &[ResultRow],
    suffix: &str,
    metric: Metric<'_>,
) -> Vec<Comparison> {
    let change = |row: &ResultRow| {
        let name = format!("{}{suffix}", row.contender);
        let is_same = |old: &&ResultRow| old.point == row.point && old.contender == name;
        change(row, old.iter().find(is_same)?, metric)
    };
    new.iter().filter_map(change).collect()
}

fn change(new: &ResultRow, old: &ResultRow, metric: Metric<'_>) -> Option<Comparison> {
    // As speeds, of which more is better.
    let undisturbed = |row: &ResultRow| {
        let value = |value: f64| if metric.more_is_better { value } else { 1.0 / value };
        let values: Vec<f64> = row.values(metric.figure).into_iter().map(value).collect();
        quantile(&values, 0.9)
    };
    let ((new_speed, [low, high]), (old_speed, [old_low, old_high])) =
        (undisturbed(new)?, undisturbed(old)?);
    let what = new.describe();
    Some(Comparison { what, times: new_speed / old_speed, range: (low / old_high, high / old_low) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEED: Metric<'_> = Metric { figure: "speed", more_is_better: true };

    fn row(contender: &str, speeds: &[f64]) -> ResultRow {
        ResultRow::measured(contender, 0, "speed", speeds)
    }

    #[test]
    fn rows_differ_if_their_ranges_do_not_overlap() {
        let speed = |new: &[f64], old: &[f64], metric| {
            changes(&[row("ours", new)], &[row("ours", old)], "", metric)[0].speed()
        };
        let old = [100.0, 99.0, 102.0];
        assert_eq!(speed(&[90.0, 91.0, 89.0], &old, SPEED), Ordering::Less);
        assert_eq!(speed(&[110.0, 112.0, 109.0], &old, SPEED), Ordering::Greater);
        let time = Metric { more_is_better: false, ..SPEED };
        assert_eq!(speed(&[90.0, 91.0, 89.0], &old, time), Ordering::Greater);
        // Two of three samples were disturbed.
        assert_eq!(speed(&[50.0, 101.0, 70.0], &old, SPEED), Ordering::Equal);
        // Beyond the noise, but as little as another build of the same code.
        assert_eq!(speed(&[98.5, 98.4, 98.6], &[100.0, 99.9, 100.1], SPEED), Ordering::Equal);
    }

    #[test]
    fn a_contender_is_compared_with_its_twin() {
        let rows = [row("ours", &[90.0]), row("ours@abc", &[100.0]), row("theirs", &[1.0])];
        let changes = changes(&rows, &rows, "@abc", SPEED);
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].to_string(), "SLOWER    0.900 [0.900-0.900]  ours");
    }
}
