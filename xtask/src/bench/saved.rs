//! Reports of earlier runs.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::report::{Report, VERSION};

/// Reads the JSON file of an earlier run of this benchmark.
pub(crate) fn read(path: &Path, bench: &str) -> Result<Report> {
    let read = || {
        let file: Value = serde_json::from_slice(&fs::read(path)?)?;
        let report: Report = serde_json::from_value(file)?;
        ensure!(report.version == VERSION, "its version is {}, not {VERSION}", report.version);
        ensure!(report.bench == bench, "it is of {}, not of {bench}", report.bench);
        Ok(report)
    };
    read().with_context(|| format!("cannot compare with {}", path.display()))
}
