//! The report of a run in a file, written while the run goes on: the failure of a later epoch does not lose it.

use std::path::PathBuf;
use std::time::Instant;

use crate::hooks::{Action, Hook, Run, read_state};
use crate::report::digests;
use crate::{EpochReport, Report, Result};

/// A write is followed by at least so many times its own duration without one: the file has all epochs, so
/// short epochs would otherwise spend most of their time on it.
const PAUSE: u32 = 20;

/// Writes a [`Report`] after epochs, and at the end, on the rank that prints. Writing takes at most a twentieth of
/// the run's time. A run that continues from a checkpoint keeps the epochs before it.
#[derive(Debug)]
pub struct ReportFile {
    path: PathBuf,
    report: Report,
    /// Before this time it is not written.
    next: Option<Instant>,
    /// Whether this rank writes, and the file does not have the last epochs yet.
    is_behind: bool,
}

impl ReportFile {
    /// Writes `report`, with the epochs, to `path`.
    pub fn new(path: impl Into<PathBuf>, report: Report) -> Self {
        Self { path: path.into(), report, next: None, is_behind: false }
    }

    fn write(&mut self) -> Result<()> {
        let begin = Instant::now();
        self.report.write(&self.path)?;
        let end = Instant::now();
        self.next = Some(end + (end - begin) * PAUSE);
        self.is_behind = false;
        Ok(())
    }
}

/// A run that ends by an error leaves its last epochs in the file, too.
impl Drop for ReportFile {
    fn drop(&mut self) {
        if self.is_behind {
            drop(self.write());
        }
    }
}

impl Hook for ReportFile {
    fn name(&self) -> &str {
        "report"
    }

    fn only_reports(&self) -> bool {
        true
    }

    fn on_epoch_end(&mut self, run: &mut Run<'_, '_>, report: &EpochReport) -> Result<Action> {
        self.report.epochs.retain(|earlier| earlier.epoch != report.epoch);
        self.report.epochs.push(report.clone());
        self.report.parameters_sha256.clone_from(&report.parameters_sha256);
        self.is_behind = run.is_root();
        if self.is_behind && self.next.is_none_or(|next| next <= Instant::now()) {
            self.write()?;
        }
        Ok(Action::NOTHING)
    }

    fn on_end(&mut self, run: &mut Run<'_, '_>, reason: Option<&str>) -> Result<()> {
        self.report.ended_early = reason.map(str::to_owned);
        self.report.parameters_sha256 = digests(run.optimizers)?;
        if run.is_root() { self.write() } else { Ok(()) }
    }

    fn state(&self) -> serde_json::Value {
        serde_json::json!(self.report.epochs)
    }

    fn restore(&mut self, state: &serde_json::Value) -> Result<()> {
        self.report.epochs = read_state(self.name(), state)?;
        Ok(())
    }
}
