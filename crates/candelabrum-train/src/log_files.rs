//! The log of a run in a directory: for the commands `watch` and `report`, for TensorBoard, and as CSV.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use candelabrum_runlog::{
    Checkpoint, EndEvent, EpochEnd, Error as LogError, EventKind, JSON_LINES_FILE, Measured,
    Memory, NamedValues, ResumePoint, RunLog, Settings, TrainWindow, names,
};

use crate::checkpoint::SaveOutcome;
use crate::hooks::{Action, Hook, Run};
use crate::progress::Progress;
use crate::{EpochReport, Error, Metrics, Result};

/// The time between two lines of training steps in the log, each with the averages of its steps.
const STEPS_EVERY: Duration = Duration::from_secs(1);

/// Writes the log of a run into a directory, on the rank that prints. A run that continues from a checkpoint
/// continues the log.
///
/// An error of the log after the first line does not end the training: it is a note.
#[derive(Debug)]
pub struct LogFiles {
    dir: PathBuf,
    settings: serde_json::Map<String, serde_json::Value>,
    may_continue: bool,
    log: Option<RunLog>,
    window: TrainWindow,
    /// The end of the step before, if nothing else has been done since.
    last_step: Option<Instant>,
    step: u64,
    /// Why the training ends, if it ends with an error.
    error: Option<String>,
}

impl LogFiles {
    /// Writes into `dir`, with these settings of the run. A directory that has a log is refused, unless the run
    /// continues from a checkpoint.
    pub fn new(
        dir: impl Into<PathBuf>,
        settings: serde_json::Map<String, serde_json::Value>,
    ) -> Self {
        Self {
            dir: dir.into(),
            settings,
            may_continue: false,
            log: None,
            window: TrainWindow::new(STEPS_EVERY),
            last_step: None,
            step: 0,
            error: None,
        }
    }

    /// Whether a run that begins anew continues a log, too: it may have been killed before its first checkpoint.
    #[must_use]
    pub fn may_continue(mut self, may_continue: bool) -> Self {
        self.may_continue = may_continue;
        self
    }

    fn open(&self, run: &Run<'_, '_>) -> Result<RunLog> {
        let world_size = run.optimizer().map_or(1, |optimizer| optimizer.group().world_size());
        let steps = (run.epochs * run.steps_per_epoch) as u64;
        let settings = Settings {
            epochs: Some(run.epochs as u64),
            steps: Some(run.max_steps.map_or(steps, |max| max.min(steps))),
            settings: self.settings.clone(),
            ..Settings::new(world_size, env!("CARGO_PKG_VERSION"))
        };
        let exists = self.dir.join(JSON_LINES_FILE).exists();
        let log = if exists && (run.position.step > 0 || self.may_continue) {
            let from = run
                .resumed
                .map_or_else(|| "the beginning".to_owned(), |path| path.display().to_string());
            let (step, epoch) = (run.position.step, run.position.epoch as u64);
            RunLog::append(&self.dir, ResumePoint { step, epoch, from, settings })
        } else {
            RunLog::create(&self.dir, settings)
        };
        log.map_err(|error| Error::Log { what: error.to_string() })
    }

    fn event(&mut self, kind: EventKind) {
        let Some(log) = &mut self.log else { return };
        note_errors(log.event(kind));
    }

    /// Writes the averages of steps.
    fn write_steps(&mut self, values: Option<NamedValues>, run: &Run<'_, '_>, epoch: usize) {
        let Some(mut values) = values else { return };
        if let Some(seconds) = values.get(names::STEP_SECONDS).filter(|seconds| **seconds > 0.0) {
            let rate = run.global_batch_size as f64 / seconds;
            values.insert(names::SAMPLES_PER_SECOND.to_owned(), rate);
        }
        let (step, epoch) = (run.position.step, epoch as u64);
        self.event(EventKind::Train(Measured { step, epoch, values }));
    }
}

fn note_errors(errors: Vec<LogError>) {
    for error in errors {
        Progress::note(None, &error.to_string());
    }
}

impl Hook for LogFiles {
    fn name(&self) -> &str {
        "log"
    }

    fn only_reports(&self) -> bool {
        true
    }

    fn on_start(&mut self, run: &mut Run<'_, '_>) -> Result<()> {
        let opened = if run.is_root() { self.open(run).map(Some) } else { Ok(None) };
        let failed = match &opened {
            Err(Error::Log { what }) => what.clone(),
            _ => String::new(),
        };
        // All ranks end if the log cannot be written.
        if let Some(optimizer) = run.optimizer() {
            let told = optimizer.group().all_gather_text(&failed)?;
            if let Some(what) = told.into_iter().find(|text| !text.is_empty()) {
                opened?;
                return Err(Error::Log { what });
            }
        }
        self.log = opened?;
        self.step = run.position.step;
        self.last_step = Some(Instant::now());
        Ok(())
    }

    fn on_step_end(&mut self, run: &mut Run<'_, '_>) -> Result<Action> {
        self.step = run.position.step;
        if self.log.is_none() {
            return Ok(Action::NOTHING);
        }
        let now = Instant::now();
        let mut values = Vec::new();
        // A loss that counts nothing is no loss.
        if run.loss_weight != 0.0 {
            values.push((names::LOSS, f64::from(run.loss)));
        }
        values.extend(run.step_learning_rate.map(|rate| (names::LEARNING_RATE, rate)));
        if let Some(last) = self.last_step.replace(now) {
            values.push((names::STEP_SECONDS, (now - last).as_secs_f64()));
        }
        let averages = self.window.add(&values);
        // After the last step of an epoch the position still has its number.
        self.write_steps(averages, run, run.position.epoch);
        Ok(Action::NOTHING)
    }

    fn on_evaluate(&mut self, run: &mut Run<'_, '_>, metrics: &Metrics) -> Result<Action> {
        let measures = metrics.measures().map(|(name, value)| (name.to_owned(), value));
        let mut values: NamedValues = measures.chain(metrics.measures_of_sets()).collect();
        values.insert(names::LOSS.to_owned(), metrics.mean_loss());
        let (step, epoch) = (run.position.step, run.position.epoch as u64);
        self.event(EventKind::Evaluation(Measured { step, epoch, values }));
        self.last_step = None;
        Ok(Action::NOTHING)
    }

    fn on_epoch_end(&mut self, run: &mut Run<'_, '_>, report: &EpochReport) -> Result<Action> {
        let rest = self.window.finish();
        self.write_steps(rest, run, report.epoch);
        self.event(EventKind::Epoch(EpochEnd {
            epoch: report.epoch as u64,
            step: run.position.step,
            seconds: report.seconds,
            dist_option: Some(report.strategy.dist_option.clone()),
            values: values_of(report),
        }));
        self.last_step = Some(Instant::now());
        Ok(Action::NOTHING)
    }

    fn on_checkpoint(&mut self, run: &mut Run<'_, '_>, saved: &SaveOutcome) -> Result<()> {
        let (step, path) = (run.position.step, saved.path.display().to_string());
        self.event(EventKind::Checkpoint(Checkpoint {
            step,
            path,
            seconds: saved.took.as_secs_f64(),
        }));
        Ok(())
    }

    fn on_note(&mut self, note: &str) {
        self.event(EventKind::Note { text: note.to_owned() });
    }

    fn on_memory(&mut self, _: &mut Run<'_, '_>, memory: &Memory) -> Result<()> {
        self.event(EventKind::Memory(memory.clone()));
        Ok(())
    }

    fn on_error(&mut self, error: &Error) {
        self.error = Some(error.to_string());
    }

    fn on_end(&mut self, run: &mut Run<'_, '_>, reason: Option<&str>) -> Result<()> {
        let rest = self.window.finish();
        self.write_steps(rest, run, run.position.epoch);
        let reason = reason.unwrap_or("finished").to_owned();
        self.event(EventKind::End(EndEvent { reason, step: run.position.step }));
        self.log = None;
        Ok(())
    }
}

impl Drop for LogFiles {
    /// A training that ends with an error does not call [`Hook::on_end`].
    fn drop(&mut self) {
        let step = self.step;
        let reason = self.error.take().map_or_else(
            || "an error".to_owned(),
            // If RUST_BACKTRACE is set, candle appends a backtrace to its errors.
            |error| format!("an error: {}", error.lines().next().unwrap_or_default()),
        );
        self.event(EventKind::End(EndEvent { reason, step }));
    }
}

/// The figures of an epoch by the names that the readers of a log know.
fn values_of(report: &EpochReport) -> NamedValues {
    let strategy = &report.strategy;
    let values = [
        (names::SAMPLES_PER_SECOND, report.images_per_second),
        (names::TRAIN_SECONDS, report.train_seconds),
        (names::STEPS, strategy.steps as f64),
        (names::BACKWARD_SECONDS, strategy.backward_seconds),
        (names::COMPRESS_SECONDS, strategy.compress_seconds),
        (names::COMMUNICATION_SECONDS, strategy.communication_seconds),
        (names::EXPOSED_SECONDS, strategy.exposed_seconds),
        (names::DECOMPRESS_SECONDS, strategy.decompress_seconds),
        (names::UPDATE_SECONDS, strategy.update_seconds),
        (names::BYTES_SENT_PER_STEP, strategy.bytes_sent_per_step),
        (names::BYTES_RECEIVED_PER_STEP, strategy.bytes_received_per_step),
        (names::RESIDUAL_NORM, strategy.residual_norm),
    ];
    let named = values.into_iter().map(|(name, value)| (name.to_owned(), value));
    let measured = report.measures.iter().filter_map(|(name, value)| {
        name.strip_prefix("train/").map(|name| (name.to_owned(), *value))
    });
    named.chain(measured).collect()
}
