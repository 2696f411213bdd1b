//! Logs of runs that never were: plausible curves for tests and for the pictures of the documentation.
//!
//! Everything is computed from the settings, so a test that looks at a picture always sees the same one.

use std::fs;
use std::path::Path;

use candelabrum_runlog::{
    Checkpoint, EndEvent, EpochEnd, Event, EventKind, JSON_LINES_FILE, Measured, NamedValues,
    ResumePoint, Settings,
};
use serde_json::json;

/// The Unix time at which every run began.
pub(crate) const BEGAN: f64 = 1_795_536_000.0;

/// Steps per epoch.
const EPOCH: u64 = 234;

/// Steps between two training events.
const EVERY: u64 = 6;

/// A run that never was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MadeUp {
    pub(crate) dist_option: &'static str,
    pub(crate) epochs: u64,
    /// Seconds per step: forward, backward, compress, exposed communication, decompress, update.
    pub(crate) phases: [f64; 6],
    pub(crate) bytes_sent: f64,
    /// How much slower than the best run the loss falls.
    pub(crate) slowness: f64,
    /// After which step the run crashes, to go on from the end of the epoch before.
    pub(crate) crash: Option<u64>,
    /// The step at which the log ends, as if the run was still going.
    pub(crate) ends: Option<u64>,
}

impl MadeUp {
    /// Plain averages of gradients.
    pub(crate) fn fp32() -> Self {
        Self {
            dist_option: "fp32",
            epochs: 10,
            phases: [0.0061, 0.0118, 0.0004, 0.0092, 0.0003, 0.0011],
            bytes_sent: 3_444_000.0,
            slowness: 1.0,
            crash: None,
            ends: None,
        }
    }

    /// The largest gradients only, and a crash in the seventh epoch.
    pub(crate) fn sparse_top_k() -> Self {
        Self {
            dist_option: "sparseTopK",
            phases: [0.0061, 0.0119, 0.0031, 0.0013, 0.0006, 0.0012],
            bytes_sent: 345_000.0,
            slowness: 1.35,
            crash: Some(6 * EPOCH + 120),
            ..Self::fp32()
        }
    }

    /// Writes the log.
    pub(crate) fn write(&self, dir: &Path) {
        let lines: Vec<String> =
            self.events().iter().map(|e| serde_json::to_string(e).unwrap()).collect();
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join(JSON_LINES_FILE), lines.join("\n") + "\n").unwrap();
    }

    /// The events of the run.
    pub(crate) fn events(&self) -> Vec<Event> {
        let mut log = Log { time: BEGAN, events: Vec::new() };
        let mut settings = Settings {
            epochs: Some(self.epochs),
            steps: Some(self.epochs * EPOCH),
            ..Settings::new(4, "0.1.0")
        };
        for (name, value) in [
            ("dist_option", json!(self.dist_option)),
            (
                "optimizer",
                json!({"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-5}),
            ),
            ("batch_size", json!(64)),
            ("dataset", json!("mnist")),
            ("backend", json!("local")),
            ("seed", json!(0)),
        ] {
            settings.settings.insert(name.to_owned(), value);
        }
        log.add(0.0, EventKind::Start(settings.clone()));
        log.add(
            0.2,
            EventKind::Note { text: "the made-up data was found in the cache".to_owned() },
        );
        let last = self.ends.unwrap_or(self.epochs * EPOCH);
        let Some(crash) = self.crash.filter(|crash| *crash < last) else {
            self.train(&mut log, 0, last);
            return log.events;
        };
        self.train(&mut log, 0, crash);
        let step = crash / EPOCH * EPOCH;
        let from = format!("checkpoints/step-{step}");
        log.add(95.0, EventKind::Resume(ResumePoint { step, epoch: step / EPOCH, from, settings }));
        self.train(&mut log, step, last);
        log.events
    }

    fn train(&self, log: &mut Log, first: u64, last: u64) {
        let whole: f64 = self.phases.iter().sum();
        for step in first + 1..=last {
            log.time += whole * (1.0 + 0.08 * noise(step, 1));
            let epoch = (step - 1) / EPOCH;
            if step % EVERY == 0 {
                log.add(0.0, EventKind::Train(Measured { step, epoch, values: self.step(step) }));
            }
            if step % EPOCH == 0 {
                self.end_of_epoch(log, epoch, step);
            }
        }
        if last == self.epochs * EPOCH {
            log.add(0.1, EventKind::End(EndEvent { reason: "finished".to_owned(), step: last }));
        }
    }

    fn step(&self, step: u64) -> NamedValues {
        let whole: f64 = self.phases.iter().sum();
        let rate = 256.0 / whole * (1.0 + 0.05 * noise(step, 2));
        let warm = step as f64 / EPOCH as f64;
        let lr = 0.05 * warm.min(1.0) * (1.0 + (warm / self.epochs as f64 * 3.1).cos()) / 2.0;
        let loss = self.loss(step) * (1.0 + 0.35 * noise(step, 3));
        values(&[
            ("loss", loss),
            ("learning_rate", lr),
            ("samples_per_second", rate),
            ("step_seconds", 256.0 / rate),
        ])
    }

    fn loss(&self, step: u64) -> f64 {
        let t = step as f64 / self.slowness;
        0.018 + 0.22 / (1.0 + t / 90.0) + 2.05 * (-t / 28.0).exp()
    }

    fn end_of_epoch(&self, log: &mut Log, epoch: u64, step: u64) {
        let accuracy = 0.9935 - 0.045 * self.loss(step) - 0.001 * noise(step, 4).abs();
        let loss = 0.7 * self.loss(step) + 0.014 + 0.0009 * epoch as f64;
        let evaluation = values(&[("accuracy", accuracy), ("loss", loss)]);
        log.add(0.7, EventKind::Evaluation(Measured { step, epoch, values: evaluation }));
        let steps = EPOCH as f64;
        let [_, backward, compress, exposed, decompress, update] = self.phases.map(|p| p * steps);
        let wobble = 1.0 + 0.06 * noise(step, 5);
        let train = steps * self.phases.iter().sum::<f64>() * wobble;
        let mut figures = values(&[
            ("steps", steps),
            ("train_seconds", train),
            ("backward_seconds", backward * wobble),
            ("compress_seconds", compress),
            ("communication_seconds", exposed + 0.4 * backward),
            ("exposed_seconds", exposed * (1.0 + 0.15 * noise(step, 6))),
            ("decompress_seconds", decompress),
            ("update_seconds", update),
            ("bytes_sent_per_step", self.bytes_sent),
            ("bytes_received_per_step", 3.0 * self.bytes_sent),
            ("samples_per_second", 256.0 * steps / train),
        ]);
        if self.dist_option.starts_with("sparse") {
            figures.insert("residual_norm".to_owned(), 2.6 - 1.9 / (1.0 + epoch as f64 / 2.0));
        }
        let dist_option = Some(self.dist_option.to_owned());
        let end = EpochEnd { epoch, step, seconds: train + 0.7, dist_option, values: figures };
        log.add(0.0, EventKind::Epoch(end));
        let path = format!("checkpoints/step-{step}");
        log.add(0.05, EventKind::Checkpoint(Checkpoint { step, path, seconds: 0.04 }));
    }
}

struct Log {
    time: f64,
    events: Vec<Event>,
}

impl Log {
    /// Adds an event after so many seconds.
    fn add(&mut self, seconds: f64, kind: EventKind) {
        self.time += seconds;
        self.events.push(Event { time: (self.time * 1000.0).round() / 1000.0, kind });
    }
}

fn values(pairs: &[(&str, f64)]) -> NamedValues {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

/// A number between -1 and 1 that looks like chance: SplitMix64.
fn noise(step: u64, stream: u64) -> f64 {
    let mut z = (step ^ (stream << 48)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) as f64 / u64::MAX as f64 * 2.0 - 1.0
}
