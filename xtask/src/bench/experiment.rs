//! What a benchmark is: a table of `xtask/benches.toml`, where the words of the fields are explained.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::bindings::Bindings;
use super::sample::{Metric, ResultRow, compare, split_commit};
use super::table::TableColumn;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Experiment {
    /// Its name on the command line, and that of its JSON file.
    #[serde(skip)]
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) legend: Vec<String>,
    /// The figure by which contenders are compared, with `-` before it if less is better.
    metric: String,
    pub(crate) rounds: usize,
    /// Of a sample.
    pub(crate) seconds: f64,
    /// The seconds that a contender may take to get ready, and for each sample.
    pub(crate) deadline: u64,
    /// How far losses may differ besides the tolerance of the network.
    pub(crate) loss_tolerance: f64,
    /// Without the setting `hosts` it runs on hosts whose wires it sets itself.
    pub(crate) needs_hosts: bool,
    whole: BTreeMap<String, String>,
    block: BTreeMap<String, String>,
    leg: BTreeMap<String, String>,
    row: BTreeMap<String, String>,
    contender: BTreeMap<String, String>,
    /// The values of settings, where not all of them are possible here.
    limits: BTreeMap<String, String>,
    /// Values that belong to a row besides its settings.
    pub(crate) facts: Vec<String>,
    pub(crate) arguments: Vec<String>,
    /// A JSON object for contenders without one of their own. The seconds of a sample are added unless it has its own
    /// or asks for steps.
    pub(crate) request: String,
    pub(crate) contenders: Vec<Contender>,
    ratios: Vec<RowRatio>,
    columns: Vec<String>,
}

/// A program with its arguments and requests.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) run: String,
    pub(crate) script: Option<String>,
    /// Whether it is benches/player/allreduce.c.
    pub(crate) c: bool,
    pub(crate) request: Option<String>,
    /// The number of ranks. Without it, it is one process.
    pub(crate) ranks: Option<String>,
    /// The backend by which ranks find each other, `local` if it is empty.
    pub(crate) backend: String,
    /// How many of the ranks are servers of a key-value store.
    pub(crate) servers: usize,
    /// Whether each process has one compute thread, whatever the threads of the others are.
    pub(crate) one_thread: bool,
    pub(crate) bound: bool,
    pub(crate) only: Vec<String>,
    plain: Option<String>,
    peer: Option<String>,
    /// Contenders with the same word have the same losses.
    losses: Option<String>,
}

/// A comparison of the rows of a leg.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RowRatio {
    name: String,
    to: Vec<String>,
    of: Option<Vec<String>>,
    metric: Option<String>,
    r#where: Option<String>,
    same: bool,
}

/// A setting, which is an option of the command line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting<'a> {
    pub(crate) name: &'a str,
    pub(crate) part: Expansion,
    pub(crate) default: &'a str,
    /// The possible values: `1..9`, `a|b`, or a word that says where they are known.
    pub(crate) values: &'a str,
    pub(crate) help: &'a str,
}

/// What a value of a setting makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expansion {
    Whole,
    Block,
    Leg,
    Row,
    Contender,
}

#[derive(Debug, Deserialize)]
struct SettingText {
    values: String,
    help: String,
}

/// The whole file.
#[derive(Debug, Deserialize)]
struct Benches {
    settings: BTreeMap<String, SettingText>,
    #[serde(flatten)]
    experiments: BTreeMap<String, Experiment>,
}

static BENCHES: LazyLock<Benches> = LazyLock::new(|| {
    let mut benches: Benches =
        toml::from_str(include_str!("../../benches.toml")).expect("a test reads the file");
    for (name, experiment) in &mut benches.experiments {
        experiment.name.clone_from(name);
    }
    benches
});

/// All benchmarks.
pub(crate) fn all() -> impl Iterator<Item = &'static Experiment> {
    BENCHES.experiments.values()
}

/// The benchmark of a name.
pub(crate) fn find(name: &str) -> Result<&'static Experiment> {
    BENCHES.experiments.get(name).with_context(|| format!("there is no benchmark {name}"))
}

/// A metric of its text.
fn metric(text: &str) -> Metric<'_> {
    match text.strip_prefix('-') {
        Some(figure) => Metric { figure, more_is_better: false },
        None => Metric { figure: text, more_is_better: true },
    }
}

/// Whether a name is the pattern, or begins as a pattern that ends in `*`.
fn fits(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start))
}

impl Experiment {
    pub(crate) fn metric(&self) -> Metric<'_> {
        metric(&self.metric)
    }

    pub(crate) fn columns(&self) -> Result<Vec<TableColumn<'_>>> {
        let columns = self.columns.iter().map(|text| {
            TableColumn::read(text)
                .with_context(|| format!("{} has the column `{text}`", self.name))
        });
        columns.collect()
    }

    /// Its settings. The network is the first one, because others have values of it.
    pub(crate) fn settings(&self) -> Vec<Setting<'_>> {
        let parts = [
            (Expansion::Whole, &self.whole),
            (Expansion::Block, &self.block),
            (Expansion::Leg, &self.leg),
            (Expansion::Contender, &self.contender),
            (Expansion::Row, &self.row),
        ];
        let mut settings: Vec<Setting<'_>> = Vec::new();
        for (part, list) in parts {
            for (name, default) in list {
                let SettingText { values, help } = &BENCHES.settings[name];
                let values = self.limits.get(name).unwrap_or(values);
                settings.push(Setting { name, part, default, values, help });
            }
        }
        settings.sort_by_key(|setting| setting.name != "network");
        settings
    }

    /// The declaration of a row's contender, of whatever commit.
    fn declared(&self, row: &ResultRow) -> Option<&Contender> {
        let (name, _) = split_commit(&row.contender);
        self.contenders.iter().find(|contender| contender.name == name)
    }

    /// Whether two rows must have the same losses.
    pub(crate) fn trains_same(&self, row: &ResultRow, other: &ResultRow) -> bool {
        let losses = |row| self.declared(row).and_then(|contender| contender.losses.as_deref());
        row.point == other.point && losses(row) == losses(other)
    }

    /// Compares the rows of a leg with each other.
    pub(crate) fn compare(&self, rows: &mut [ResultRow]) {
        for ratio in &self.ratios {
            let metric = metric(ratio.metric.as_ref().unwrap_or(&self.metric));
            compare(rows, &ratio.name, metric, |row, other| self.is_base(ratio, row, other));
        }
    }

    /// Whether a row can be compared with the other one.
    fn is_base(&self, ratio: &RowRatio, row: &ResultRow, other: &ResultRow) -> bool {
        let declared = self.declared(row);
        let is_to = |pattern: &String| match pattern.as_str() {
            "@plain" => declared.and_then(|own| own.plain.as_ref()) == Some(&other.contender),
            "@peer" => declared.and_then(|own| own.peer.as_ref()) == Some(&other.contender),
            pattern => fits(pattern, &other.contender),
        };
        let holds = |condition: &String| Bindings::new(other.point.clone()).holds(condition);
        ratio.to.iter().any(is_to)
            && ratio.of.as_ref().is_none_or(|of| of.contains(&row.contender))
            && ratio.r#where.as_ref().is_none_or(holds)
            && (!ratio.same || row.point == other.point)
    }

    /// Refuses names of contenders that are not here. A name of a template is known when it is filled.
    pub(crate) fn check_names(&self, chosen: &[String]) -> Result<()> {
        let names: Vec<&str> = self.contenders.iter().map(|known| &*known.name).collect();
        let has_templates = names.iter().any(|name| name.contains('{'));
        let unknown = chosen.iter().find(|name| !has_templates && !names.contains(&&***name));
        ensure!(
            unknown.is_none(),
            "--contenders has no `{}`: there is {}",
            unknown.map_or("", String::as_str),
            names.join(", ")
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_benchmark_is_read_and_names_what_it_has() {
        assert_eq!(all().count(), 13);
        for experiment in all() {
            let Experiment { name, title, rounds, seconds, deadline, metric, .. } = experiment;
            assert!(!title.is_empty() && !metric.is_empty() && *rounds > 0, "{name}");
            assert!(*seconds > 0.0 && *deadline > 0, "{name}");
            assert_eq!(experiment.settings().is_empty(), name == "kvstore-transfer");
            let names: Vec<&str> = experiment.contenders.iter().map(|c| &*c.name).collect();
            for contender in &experiment.contenders {
                for other in [&contender.plain, &contender.peer].into_iter().flatten() {
                    assert!(names.contains(&&**other), "{name}: {other}");
                }
            }
            let columns = experiment.columns().unwrap();
            for ratio in &experiment.ratios {
                assert!(columns.iter().any(|column| column.name == ratio.name), "{}", ratio.name);
                let is_known = |to: &String| {
                    to.starts_with('@') || to == "fp32" || names.iter().any(|name| fits(to, name))
                };
                assert!(ratio.to.iter().all(is_known), "{name}: {ratio:?}");
            }
        }
    }
}
