//! The report of a run: as JSON, which later runs compare themselves with, and as CSV.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tempfile::NamedTempFile;

use super::figures::counted;
use super::host::Host;
use super::sample::{Row, Values};
use crate::checkout::repo_root;

/// The version of the JSON file.
const VERSION: u32 = 2;

/// The sentence in the file for readers of the first version.
const CHANGES: &str = "Since version 2 all benchmarks write one form: a row per contender and point, \
    with the spread of every figure (median, min, max) under `figures`, of every comparison within \
    rounds under `ratios`, and its samples. Version 1 had no `version`, and another form in each \
    benchmark.";

/// The content of the JSON file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BenchReport {
    pub(crate) version: u32,
    pub(crate) about_version: String,
    /// The command, such as `bench-step`.
    pub(crate) bench: String,
    pub(crate) machine: Host,
    /// The settings.
    pub(crate) plan: Values,
    pub(crate) notes: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

impl BenchReport {
    pub(crate) fn new(bench: &str, machine: Host, plan: Values) -> Self {
        let (notes, rows) = (Vec::new(), Vec::new());
        let (bench, about_version) = (bench.to_owned(), CHANGES.to_owned());
        Self { version: VERSION, about_version, bench, machine, plan, notes, rows }
    }

    /// The report in the JSON file of an earlier run of this benchmark.
    pub(crate) fn read(path: &Path, bench: &str) -> Result<Self> {
        let read = || {
            let report: Self = serde_json::from_slice(&fs::read(path)?)?;
            ensure!(report.version == VERSION, "its version is {}, not {VERSION}", report.version);
            ensure!(report.bench == bench, "it is of {}, not of {bench}", report.bench);
            Ok(report)
        };
        read().with_context(|| format!("cannot compare with {}", path.display()))
    }

    /// The line below the title of a picture: the machine and the rounds, without a date, so that the
    /// same figures make the same file.
    pub(crate) fn circumstances(&self) -> String {
        let Host { cpu, cores, commit, .. } = &self.machine;
        let rounds = self.plan.get("rounds").and_then(Value::as_u64).unwrap_or(0) as usize;
        let rounds = counted(rounds, "round");
        format!("{cpu}, {cores} cores; medians of {rounds}; commit {commit}")
    }

    /// A line per row: the point, the contender, every figure's and every comparison's spread. A cell
    /// without a value is empty, and no cell needs quotes.
    pub(crate) fn csv(&self) -> String {
        let every = |names: fn(&Row) -> Vec<String>| -> BTreeSet<String> {
            self.rows.iter().flat_map(names).collect()
        };
        let settings = every(|row| row.point.keys().cloned().collect());
        let spreads = every(|row| row.figures.keys().chain(row.ratios.keys()).cloned().collect());
        let ends = spreads
            .iter()
            .flat_map(|name| ["median", "min", "max"].map(|end| format!("{name}_{end}")));
        let heads =
            settings.iter().cloned().chain(["contender".into(), "samples".into()]).chain(ends);
        let line = |row: &Row| -> Vec<String> {
            let setting = |name| match row.point.get(name) {
                Some(Value::String(text)) => text.clone(),
                value => value.map(Value::to_string).unwrap_or_default(),
            };
            let spread = |name| match row.figures.get(name).or(row.ratios.get(name)) {
                Some(spread) => [spread.median, spread.min, spread.max].map(|end| end.to_string()),
                None => Default::default(),
            };
            let about = [row.contender.clone(), row.samples.len().to_string()];
            settings
                .iter()
                .map(setting)
                .chain(about)
                .chain(spreads.iter().flat_map(spread))
                .collect()
        };
        let lines = [heads.collect()].into_iter().chain(self.rows.iter().map(line));
        lines.map(|cells: Vec<String>| cells.join(",") + "\n").collect()
    }
}

/// The folder of the results.
#[derive(Debug)]
pub(crate) struct Output(PathBuf);

impl Output {
    /// Makes the folder: `asked`, or a folder of this name in `target`.
    pub(crate) fn new(asked: Option<&Path>, name: &str) -> Result<Self> {
        let folder = asked.map_or_else(|| repo_root().join("target").join(name), Path::to_path_buf);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let folder = fs::canonicalize(&folder);
        Ok(Self(folder.with_context(|| format!("cannot find the folder of {name}"))?))
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    /// Writes a file and returns its path. If this program is stopped while it writes, the previous
    /// file is still there.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        let write = || {
            let mut file = NamedTempFile::new_in(&self.0)?;
            file.write_all(text.as_bytes())?;
            file.persist(&path).map_err(|error| error.error)
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// [`Self::write`] for a value as JSON.
    pub(crate) fn json(&self, name: &str, value: &impl Serialize) -> Result<PathBuf> {
        self.write(name, &(serde_json::to_string_pretty(value)? + "\n"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::figures::Spread;
    use super::super::sample::values;
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let output = Output::new(Some(&folder.path().join("made")), "unused").unwrap();
        for text in ["one", "two"] {
            let path = output.write("file.csv", text).unwrap();
            assert_eq!(fs::read_to_string(path).unwrap(), text);
        }
        assert_eq!(fs::read_dir(output.folder()).unwrap().count(), 1);
    }

    #[test]
    fn every_line_of_the_csv_has_a_cell_for_every_column() {
        let mut report = BenchReport::new("bench", Host::look(), Values::new());
        let mut row = Row::new(values([("network", json!("cnn")), ("workers", json!(4))]), "ours");
        row.figures.insert("speed".into(), Spread { median: 2.0, min: 1.5, max: 3.0 });
        report.rows = vec![row, Row::new(values([("workers", json!(1))]), "other")];
        let expected = "network,workers,contender,samples,speed_median,speed_min,speed_max\n\
            cnn,4,ours,0,2,1.5,3\n,1,other,0,,,\n";
        assert_eq!(report.csv(), expected);
    }
}
