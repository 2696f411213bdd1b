//! The report of a run in a file, written after each epoch: the failure of a later one does not lose it.

use std::path::PathBuf;

use crate::hooks::{Action, Hook, Run, read_state};
use crate::trainer_opt::digests;
use crate::{EpochReport, Report, Result};

/// Writes a [`Report`] after each epoch, and at the end, on the rank that prints. A run that continues from a
/// checkpoint keeps the epochs before it.
#[derive(Clone, Debug)]
pub struct ReportFile {
    path: PathBuf,
    report: Report,
}

impl ReportFile {
    /// Writes `report`, with the epochs, to `path`.
    pub fn new(path: impl Into<PathBuf>, report: Report) -> Self {
        Self { path: path.into(), report }
    }

    fn write(&self, run: &Run<'_, '_>) -> Result<()> {
        if run.is_root() { self.report.write(&self.path) } else { Ok(()) }
    }
}

impl Hook for ReportFile {
    fn name(&self) -> &str {
        "report"
    }

    fn after_epoch(&mut self, run: &mut Run<'_, '_>, report: &EpochReport) -> Result<Action> {
        self.report.epochs.retain(|earlier| earlier.epoch != report.epoch);
        self.report.epochs.push(report.clone());
        self.report.parameters_sha256.clone_from(&report.parameters_sha256);
        self.write(run)?;
        Ok(Action::NOTHING)
    }

    fn on_end(&mut self, run: &mut Run<'_, '_>, reason: Option<&str>) -> Result<()> {
        self.report.ended_early = reason.map(str::to_owned);
        self.report.parameters_sha256 = digests(run.parts)?;
        self.write(run)
    }

    fn state(&self) -> serde_json::Value {
        serde_json::json!(self.report.epochs)
    }

    fn restore(&mut self, state: &serde_json::Value) -> Result<()> {
        self.report.epochs = read_state(self.name(), state)?;
        Ok(())
    }
}
