//! Writes the weights of the best checkpoint into a file when a training ends.

use std::path::{Path, PathBuf};

use super::hook::{Hook, Run};
use crate::agreement::agree;
use crate::checkpoint::{
    BestCheckpoint, best_checkpoint, export_best, export_best_average, has_average,
};
use crate::progress::Progress;
use crate::report::writable;
use crate::{Error, Result};

/// When the training ends, rank 0 writes parameters and buffers of the best checkpoint into a safetensors file, as
/// [`export_best`] does. It needs a [`BestModel`](super::BestModel) and a directory of checkpoints.
///
/// A call that ends early, before the first evaluation, writes no file.
#[derive(Clone, Debug)]
pub struct ExportBest {
    path: PathBuf,
    measure: Option<String>,
    average: Option<String>,
}

impl ExportBest {
    /// Writes the weights of the best checkpoint of the first [`BestModel`](super::BestModel) to `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), measure: None, average: None }
    }

    /// Takes the best checkpoint by this measure, where there are several hooks [`BestModel`](super::BestModel).
    #[must_use]
    pub fn measure(mut self, measure: &str) -> Self {
        self.measure = Some(measure.to_owned());
        self
    }

    /// Writes this average of the weights, `"ema"` or `"swa"`, in place of the weights. A checkpoint that was made before
    /// the average began has none: then the weights, which were evaluated, are written.
    #[must_use]
    pub fn average(mut self, average: &str) -> Self {
        self.average = Some(average.to_owned());
        self
    }

    /// Refuses a path to which the file could not be written.
    pub(crate) fn check_path(path: &Path) -> Result<()> {
        writable(path).map_err(Error::write("weights", path))
    }

    fn export(&self, dir: &Path, ended_early: bool) -> Result<()> {
        let measure = self.measure.as_deref();
        let best = best_checkpoint(dir, measure)?;
        if best.is_none() && ended_early {
            return Ok(());
        }
        let is_averaged = |average: &&String| best.is_some_and(|best| has_average(&best, average));
        let average = self.average.as_ref().filter(is_averaged);
        let BestCheckpoint { step, value, measure, .. } = match average {
            Some(average) => export_best_average(dir, measure, average, &self.path)?,
            None => export_best(dir, measure, &self.path)?,
        };
        let what = average.map_or("the weights".to_owned(), |name| format!("the average `{name}`"));
        let path = self.path.display();
        Progress::note(None, &format!("wrote {what} of step {step} ({measure} {value}) to {path}"));
        Ok(())
    }
}

impl Hook for ExportBest {
    fn name(&self) -> &str {
        "export_best"
    }

    fn needs_evaluations(&self) -> bool {
        true
    }

    fn on_start(&mut self, run: &mut Run<'_, '_>) -> Result<()> {
        if run.checkpoint_dir.is_none() {
            let range = "used with a directory of checkpoints (--checkpoint-dir)";
            return Err(Error::option("ExportBest (--export-best)", &self.path.display(), range));
        }
        on_root(run, || Self::check_path(&self.path))
    }

    fn on_end(&mut self, run: &mut Run<'_, '_>, reason: Option<&str>) -> Result<()> {
        let Some(dir) = run.checkpoint_dir else { return Ok(()) };
        on_root(run, || self.export(dir, reason.is_some()))
    }
}

/// Does `work` on the rank that writes files. Its error is an error on all ranks.
fn on_root(run: &Run<'_, '_>, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let own = if run.is_root() { work() } else { Ok(()) };
    run.optimizer().map_or(Ok(()), |optimizer| agree(optimizer.group(), own))
}
