//! What is measured: a contender at a point, its samples, and their summary.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::figures::Spread;

/// Named values: the settings of a measurement, a request, or what a contender says of itself.
pub(crate) type SettingValues = Map<String, Value>;

/// A value as text, without the quotation marks of JSON.
pub(crate) fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// One measurement and its circumstances.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) round: usize,
    /// The share of the machine's cores that other programs used meanwhile.
    pub(crate) others_cpu_share: Option<f64>,
    #[serde(flatten)]
    pub(crate) figures: BTreeMap<String, f64>,
}

/// The reason why there is no further sample of a contender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct SampleFailure {
    pub(crate) reason: String,
    /// The end of the contender's standard error.
    pub(crate) stderr: Vec<String>,
}

/// A contender at a point, with all samples so far and their summary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ResultRow {
    /// The settings.
    pub(crate) point: SettingValues,
    pub(crate) contender: String,
    /// Of each figure that samples have.
    pub(crate) figures: BTreeMap<String, Spread>,
    /// Of comparisons with other rows, over the rounds that both reached.
    pub(crate) ratios: BTreeMap<String, Spread>,
    /// Its version, its ranks, the losses of its warm-up.
    pub(crate) facts: SettingValues,
    pub(crate) failure: Option<SampleFailure>,
    pub(crate) samples: Vec<Sample>,
}

/// The figure by which contenders are compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric<'a> {
    pub(crate) figure: &'a str,
    pub(crate) more_is_better: bool,
}

/// The figures among values: numbers, and whether something holds.
pub(crate) fn figures(values: &SettingValues) -> BTreeMap<String, f64> {
    let figure = |value: &Value| value.as_f64().or(value.as_bool().map(f64::from));
    values.iter().filter_map(|(name, value)| Some((name.clone(), figure(value)?))).collect()
}

/// A contender's name, and `@` and the commit of its build if that is another one.
pub(crate) fn split_commit(contender: &str) -> (&str, &str) {
    contender.split_at(contender.find('@').unwrap_or(contender.len()))
}

/// These values by these names.
pub(crate) fn values<T: Serialize, const N: usize>(list: [(&str, T); N]) -> SettingValues {
    list.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect()
}

impl ResultRow {
    pub(crate) fn new(point: SettingValues, contender: &str) -> Self {
        let contender = contender.to_owned();
        let (figures, ratios, facts) = (BTreeMap::new(), BTreeMap::new(), SettingValues::new());
        Self { point, contender, figures, ratios, facts, failure: None, samples: Vec::new() }
    }

    /// A row with a sample of a figure in each round from `first` on.
    #[cfg(test)]
    pub(crate) fn measured(contender: &str, first: usize, figure: &str, values: &[f64]) -> Self {
        let sample = |(round, &value): (usize, &f64)| {
            let figures = [(figure.to_owned(), value)].into();
            Sample { round, others_cpu_share: None, figures }
        };
        let mut row = Self::new(SettingValues::new(), contender);
        row.samples = (first..).zip(values).map(sample).collect();
        row.summarise();
        row
    }

    /// A setting as text, empty if the point has none.
    pub(crate) fn text(&self, setting: &str) -> &str {
        self.point.get(setting).and_then(Value::as_str).unwrap_or("")
    }

    /// A setting as a number, 0 if the point has none.
    pub(crate) fn number(&self, setting: &str) -> usize {
        self.point.get(setting).and_then(Value::as_u64).unwrap_or(0) as usize
    }

    /// A fact as text.
    pub(crate) fn fact(&self, name: &str) -> Option<&str> {
        self.facts.get(name)?.as_str()
    }

    /// Its settings and contender in one line, names before numbers: `cnn, batch size 64, ours`.
    pub(crate) fn describe(&self) -> String {
        let names = self.point.values().filter_map(|value| value.as_str().map(str::to_owned));
        let numbers = self.point.iter().filter(|(_, value)| !value.is_string());
        let numbers = numbers.map(|(name, value)| format!("{} {value}", name.replace('_', " ")));
        let parts = names.chain(numbers).chain([self.contender.clone()]);
        parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
    }

    /// The median of a figure.
    pub(crate) fn median(&self, figure: &str) -> Option<f64> {
        Some(self.figures.get(figure)?.median)
    }

    /// The median of a comparison.
    pub(crate) fn ratio(&self, name: &str) -> Option<f64> {
        Some(self.ratios.get(name)?.median)
    }

    /// A figure of every sample that has it.
    pub(crate) fn values(&self, figure: &str) -> Vec<f64> {
        self.samples.iter().filter_map(|sample| sample.figures.get(figure).copied()).collect()
    }

    /// The value of a figure in a round.
    pub(crate) fn at(&self, round: usize, figure: &str) -> Option<f64> {
        let sample = self.samples.iter().find(|sample| sample.round == round)?;
        sample.figures.get(figure).copied()
    }

    /// Adds the figures that follow from others: processor time over time, the tokens of sequences, the first loss and
    /// the one by which contenders are compared.
    pub(crate) fn complete(&mut self, compared_loss: Option<f64>) {
        let length = self.point.get("length").and_then(Value::as_f64);
        for Sample { figures, .. } in &mut self.samples {
            let figure = |name: &str| figures.get(name).copied();
            let cores = figure("cpu_seconds").zip(figure("seconds")).map(|(cpu, time)| cpu / time);
            let tokens = figure("examples_per_second").zip(length).map(|(speed, n)| speed * n);
            let more = [("cores_used", cores), ("tokens_per_second", tokens)];
            figures
                .extend(more.into_iter().filter_map(|(name, value)| Some((name.into(), value?))));
        }
        let first = self.facts.get("warm_up_losses").and_then(|losses| losses.get(0)?.as_f64());
        for (name, loss) in [("first_loss", first), ("compared_loss", compared_loss)] {
            self.facts.extend(loss.map(|loss| (name.to_owned(), json!(loss))));
        }
        self.summarise();
    }

    /// Renews the summary of the samples, and of the facts that are numbers, such as the peak memory.
    pub(crate) fn summarise(&mut self) {
        let names = self.samples.iter().flat_map(|sample| sample.figures.keys());
        let of_samples = names.map(|name| (name, self.values(name)));
        let facts =
            self.facts.iter().filter_map(|(name, value)| Some((name, vec![value.as_f64()?])));
        let spread = |(name, values): (&String, Vec<f64>)| {
            Some((name.clone(), Spread::from_values(&values)?))
        };
        self.figures = facts.chain(of_samples).filter_map(spread).collect();
    }

    /// How many times as good as the other row this one is, in each round that both reached. Other
    /// load on the machine affects both of a round alike.
    pub(crate) fn times(&self, other: &Self, metric: Metric<'_>) -> Vec<f64> {
        let ratio = |sample: &Sample| {
            let (own, theirs) =
                (sample.figures.get(metric.figure)?, other.at(sample.round, metric.figure)?);
            Some(if metric.more_is_better { own / theirs } else { theirs / own })
        };
        self.samples.iter().filter_map(ratio).collect()
    }
}

/// Writes into each row how many times as good as another one it is, round by round. The other one
/// is the best of those that `is_base` admits for it. A row without another one, or without a
/// common round, gets nothing.
pub(crate) fn compare(
    rows: &mut [ResultRow],
    name: &str,
    metric: Metric<'_>,
    is_base: impl Fn(&ResultRow, &ResultRow) -> bool,
) {
    let times = |row: &ResultRow| {
        let base = best(rows, metric, |other| is_base(row, other))?;
        Spread::from_values(&row.times(base, metric))
    };
    let found: Vec<Option<Spread>> = rows.iter().map(times).collect();
    for (row, spread) in rows.iter_mut().zip(found) {
        row.ratios.extend(spread.map(|spread| (name.to_owned(), spread)));
    }
}

/// The row with the best median, of those that `takes_part` admits.
fn best<'a>(
    rows: &'a [ResultRow],
    metric: Metric<'_>,
    takes_part: impl Fn(&ResultRow) -> bool,
) -> Option<&'a ResultRow> {
    let sign = if metric.more_is_better { 1.0 } else { -1.0 };
    let known = rows.iter().filter(|row| takes_part(row));
    let known = known.filter_map(|row| Some((row, sign * row.median(metric.figure)?)));
    known.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(row, _)| row)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEED: Metric<'_> = Metric { figure: "speed", more_is_better: true };

    #[test]
    fn rows_are_compared_within_the_rounds_that_both_reached() {
        // In round 1 the machine has half its speed. The other contender did not reach round 2.
        let mut rows = [
            ResultRow::measured("ours", 0, "speed", &[400.0, 200.0, 410.0]),
            ResultRow::measured("other", 0, "speed", &[100.0, 50.0]),
        ];
        compare(&mut rows, "to_other", SPEED, |_, other| other.contender == "other");
        let expected = Spread { median: 4.0, min: 4.0, max: 4.0 };
        assert_eq!(rows[0].ratios["to_other"], expected);
        assert_eq!(rows[0].figures["speed"], Spread { median: 400.0, min: 200.0, max: 410.0 });
        let time = Metric { more_is_better: false, ..SPEED };
        assert_eq!(rows[0].times(&rows[1], time), [0.25, 0.25]);
        let best = |metric| best(&rows, metric, |_| true).unwrap().contender.as_str();
        assert_eq!([best(SPEED), best(time)], ["ours", "other"]);
    }

    #[test]
    fn a_row_without_a_common_round_is_compared_with_nothing() {
        let row = |contender, round| ResultRow::measured(contender, round, "speed", &[1.0]);
        let mut rows = [row("ours", 0), row("other", 1)];
        compare(&mut rows, "to_other", SPEED, |_, other| other.contender == "other");
        assert!(rows[0].ratios.is_empty());
    }
}
