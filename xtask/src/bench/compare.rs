//! Two measurements of the same trials beside each other: what became slower or faster.
//!
//! A change counts if it exceeds the noise: of two runs, if the medians' ranges do not overlap; of
//! contenders that took turns in one run, if the range of the median ratio is on one side of 1. In
//! both cases only from [`LEAST`] on, because builds of the same code differ by a percent.

use std::fmt;

use super::figures::noise;
use super::plan::describe;
use super::report::Report;
use super::sample::{Metric, Row};

/// The least change that counts.
const LEAST: f64 = 0.02;

/// The comparison of a row with its earlier or other self.
#[derive(Debug)]
pub(crate) struct Change {
    what: String,
    /// How many times as good as before: above 1 is better.
    times: f64,
    /// The range of `times` that the noise allows.
    range: (f64, f64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Slower,
    Faster,
    Same,
}

impl Change {
    pub(crate) fn verdict(&self) -> Verdict {
        match self.range {
            (_, high) if high < 1.0 - LEAST => Verdict::Slower,
            (low, _) if low > 1.0 + LEAST => Verdict::Faster,
            _ => Verdict::Same,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.verdict() {
            Verdict::Slower => "SLOWER",
            Verdict::Faster => "faster",
            Verdict::Same => "same",
        };
        let (low, high) = self.range;
        write!(f, "{word:<8}{:>7.3} [{low:.3}-{high:.3}]  {}", self.times, self.what)
    }
}

/// The rows of a report that an earlier report has too.
pub(crate) fn with_earlier(now: &Report, before: &Report, metric: Metric) -> Vec<Change> {
    let change = |row: &Row| {
        let same = |old: &&Row| old.point == row.point && old.contender == row.contender;
        let old = before.rows.iter().find(same)?;
        let ends = |row: &Row| noise(&row.values(metric.figure));
        let ((low, high), (old_low, old_high)) = (ends(row)?, ends(old)?);
        let (new, old) = (row.median(metric.figure)?, old.median(metric.figure)?);
        let what = describe(&row.point, &row.contender);
        Some(match metric.more_is_better {
            true => Change { what, times: new / old, range: (low / old_high, high / old_low) },
            false => Change { what, times: old / new, range: (old_low / high, old_high / low) },
        })
    };
    now.rows.iter().filter_map(change).collect()
}

/// Contenders that took turns with their twins of another commit, whose names end in `suffix`.
pub(crate) fn with_commit(rows: &[Row], suffix: &str, metric: Metric) -> Vec<Change> {
    let change = |row: &Row| {
        let name = format!("{}{suffix}", row.contender);
        let twin = rows.iter().find(|other| other.point == row.point && other.contender == name)?;
        let times = row.times(twin, metric);
        let what = describe(&row.point, &row.contender);
        Some(Change { what, times: super::figures::median(&times)?, range: noise(&times)? })
    };
    rows.iter().filter_map(change).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::host::Host;
    use super::super::sample::{Point, Sample, point};
    use super::*;

    const SPEED: Metric = Metric { figure: "speed", more_is_better: true };

    fn row(contender: &str, speeds: &[f64]) -> Row {
        let mut row = Row::new(point([]), contender);
        row.samples = (0..)
            .zip(speeds)
            .map(|(round, &speed)| {
                let figures = BTreeMap::from([("speed".to_owned(), speed)]);
                Sample { round, others_cpu_share: None, figures }
            })
            .collect();
        row.summarise();
        row
    }

    fn report(speeds: &[f64]) -> Report {
        let mut report = Report::new("bench", Host::look(), Point::new());
        report.rows = vec![row("ours", speeds)];
        report
    }

    #[test]
    fn two_runs_differ_if_their_ranges_do_not_overlap() {
        let verdict = |new: &[f64], old: &[f64], metric| {
            with_earlier(&report(new), &report(old), metric)[0].verdict()
        };
        let old = [100.0, 99.0, 102.0];
        assert_eq!(verdict(&[90.0, 91.0, 89.0], &old, SPEED), Verdict::Slower);
        assert_eq!(verdict(&[110.0, 112.0, 109.0], &old, SPEED), Verdict::Faster);
        assert_eq!(verdict(&[90.0, 100.0, 89.0], &old, SPEED), Verdict::Same);
        let time = Metric { more_is_better: false, ..SPEED };
        assert_eq!(verdict(&[90.0, 91.0, 89.0], &old, time), Verdict::Faster);
        // Beyond the noise, but as little as another build of the same code.
        assert_eq!(verdict(&[98.5, 98.4, 98.6], &[100.0, 99.9, 100.1], SPEED), Verdict::Same);
    }

    #[test]
    fn a_commit_is_compared_within_rounds() {
        // The machine slows down by half in round 1.
        let rows = [
            row("ours", &[90.0, 45.0, 91.0]),
            row("ours@abc", &[100.0, 50.0, 100.0]),
            row("theirs", &[1.0, 1.0, 1.0]),
        ];
        let changes = with_commit(&rows, "@abc", SPEED);
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].verdict(), Verdict::Slower);
        assert_eq!(changes[0].to_string(), "SLOWER    0.900 [0.900-0.910]  ours");
    }
}
