//! The report of a run as JSON, which later runs compare themselves with, and which scripts/figures.py draws.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use super::host::Machine;
use super::sample::{ResultRow, SettingValues};
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
    /// The benchmark, such as `step`, or `bench-step` in files of earlier commands.
    pub(crate) bench: String,
    pub(crate) machine: Machine,
    /// The settings.
    pub(crate) plan: SettingValues,
    pub(crate) notes: Vec<String>,
    pub(crate) rows: Vec<ResultRow>,
}

impl BenchReport {
    pub(crate) fn new(bench: &str, machine: Machine, plan: SettingValues) -> Self {
        let (notes, rows) = (Vec::new(), Vec::new());
        let (bench, about_version) = (bench.to_owned(), CHANGES.to_owned());
        Self { version: VERSION, about_version, bench, machine, plan, notes, rows }
    }

    /// Writes the file and returns its path. If this program is killed while it writes, the previous file is still
    /// there.
    pub(crate) fn write(&self, folder: &Path) -> Result<PathBuf> {
        let path = folder.join(format!("{}.json", self.bench));
        let write = || -> Result<()> {
            let mut file = NamedTempFile::new_in(folder)?;
            serde_json::to_writer_pretty(&mut file, self)?;
            writeln!(file)?;
            file.persist(&path)?;
            Ok(())
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// The report in the JSON file of an earlier run of this benchmark.
    pub(crate) fn read(path: &Path, bench: &str) -> Result<Self> {
        let read = || {
            let report: Self = serde_json::from_slice(&fs::read(path)?)?;
            ensure!(report.version == VERSION, "its version is {}, not {VERSION}", report.version);
            let name = report.bench.strip_prefix("bench-").unwrap_or(&report.bench);
            ensure!(name == bench, "it is of {name}, not of {bench}");
            Ok(report)
        };
        read().with_context(|| format!("cannot compare with {}", path.display()))
    }
}

/// Makes the folder of the results: `asked`, or `bench` in `target`.
pub(crate) fn folder(asked: Option<&Path>) -> Result<PathBuf> {
    let folder = asked.map_or_else(|| repo_root().join("target/bench"), Path::to_path_buf);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::canonicalize(&folder).with_context(|| format!("cannot find {}", folder.display()))
}
