//! What can happen in a run. The names in the files are a contract: scripts and later versions read
//! them.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Memory, number};

/// Measured values by name.
pub type NamedValues = BTreeMap<String, f64>;

/// The names of values that the readers of a log know. Any other name is shown too, but without
/// knowledge of its meaning.
pub mod names {
    /// The loss.
    pub const LOSS: &str = "loss";
    /// The share of correct answers, 0 to 1.
    pub const ACCURACY: &str = "accuracy";
    /// The learning rate.
    pub const LEARNING_RATE: &str = "learning_rate";
    /// Samples of all ranks per second of training.
    pub const SAMPLES_PER_SECOND: &str = "samples_per_second";
    /// Seconds per step.
    pub const STEP_SECONDS: &str = "step_seconds";
    /// The number of steps of an epoch.
    pub const STEPS: &str = "steps";
    /// The seconds of an epoch's training, without its evaluation.
    pub const TRAIN_SECONDS: &str = "train_seconds";
    /// The seconds of an epoch's backward passes.
    pub const BACKWARD_SECONDS: &str = "backward_seconds";
    /// The seconds of making messages of gradients.
    pub const COMPRESS_SECONDS: &str = "compress_seconds";
    /// The seconds of an epoch's collectives, whether or not a step waited for them.
    pub const COMMUNICATION_SECONDS: &str = "communication_seconds";
    /// The seconds for which steps waited for collectives.
    pub const EXPOSED_SECONDS: &str = "exposed_seconds";
    /// The seconds of making averages of messages.
    pub const DECOMPRESS_SECONDS: &str = "decompress_seconds";
    /// The seconds of the optimizer.
    pub const UPDATE_SECONDS: &str = "update_seconds";
    /// Payload bytes that a step gave to the transport.
    pub const BYTES_SENT_PER_STEP: &str = "bytes_sent_per_step";
    /// Payload bytes that a step took from the transport.
    pub const BYTES_RECEIVED_PER_STEP: &str = "bytes_received_per_step";
    /// The Euclidean norm of the values that a sparse strategy has not sent yet.
    pub const RESIDUAL_NORM: &str = "residual_norm";
}

/// An event, with its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Unix time in seconds.
    pub time: f64,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

impl Event {
    /// An event that happens now.
    pub fn now(kind: EventKind) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Microseconds would be noise: the events of a step lie apart by more.
        Self { time: since.as_millis() as f64 / 1000.0, kind }
    }
}

/// What happened. Each kind has a stable name, its value of `event` in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// The run begins.
    Start(Settings),
    /// The run goes on from a checkpoint. Events of later steps no longer count.
    Resume(ResumePoint),
    /// A training step, or the average of the steps since the last such event.
    Train(Measured),
    /// An evaluation.
    Evaluation(Measured),
    /// An epoch is over.
    Epoch(EpochEnd),
    /// A checkpoint was written.
    Checkpoint(Checkpoint),
    /// Where the memory of a step was.
    Memory(Memory),
    /// Something that the user should know.
    Note {
        /// The note.
        text: String,
    },
    /// The run is over.
    End(EndEvent),
}

/// The numbers that an event has at a step.
pub(crate) struct Figures<'a> {
    pub(crate) step: u64,
    pub(crate) epoch: Option<u64>,
    /// The name of the kind of event.
    pub(crate) kind: &'static str,
    /// The seconds first, and then the values by name.
    pub(crate) values: Vec<(&'a str, f64)>,
}

impl EventKind {
    /// The numbers of this event, for files of numbers. A resume has none.
    pub(crate) fn figures(&self) -> Option<Figures<'_>> {
        static NONE: NamedValues = NamedValues::new();
        let (step, epoch, kind, seconds, values) = match self {
            Self::Train(at) => (at.step, Some(at.epoch), "train", None, &at.values),
            Self::Evaluation(at) => (at.step, Some(at.epoch), "evaluation", None, &at.values),
            Self::Epoch(end) => {
                (end.step, Some(end.epoch), "epoch", Some(end.seconds), &end.values)
            }
            Self::Checkpoint(made) => (made.step, None, "checkpoint", Some(made.seconds), &NONE),
            Self::Start(_)
            | Self::Resume(_)
            | Self::Memory(_)
            | Self::Note { .. }
            | Self::End(_) => return None,
        };
        let seconds = seconds.map(|seconds| ("seconds", seconds));
        let values = values.iter().map(|(name, value)| (&**name, *value));
        Some(Figures { step, epoch, kind, values: seconds.into_iter().chain(values).collect() })
    }
}

/// What a run intends to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The number of ranks that train.
    pub world_size: usize,
    /// The version of the program or library that trains.
    pub version: String,
    /// The number of epochs that the whole run shall have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,
    /// The number of steps that the whole run shall have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// All other settings: any JSON object.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub settings: Map<String, Value>,
}

impl Settings {
    /// The settings of a run whose length is not known.
    pub fn new(world_size: usize, version: &str) -> Self {
        let (epochs, steps, settings) = (None, None, Map::new());
        Self { world_size, version: version.to_owned(), epochs, steps, settings }
    }
}

/// Where a run goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResumePoint {
    /// The number of steps that are already done.
    pub step: u64,
    /// The epoch that goes on, from 0.
    pub epoch: u64,
    /// The checkpoint.
    pub from: String,
    /// The settings from now on. They may differ from those at the start, such as the number of ranks.
    #[serde(flatten)]
    pub settings: Settings,
}

/// Values measured at a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The number of steps done since the beginning of the run.
    pub step: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// The values, by name.
    #[serde(with = "number::by_name")]
    pub values: NamedValues,
}

/// The figures of an epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochEnd {
    /// The epoch, from 0.
    pub epoch: u64,
    /// The number of steps done since the beginning of the run.
    pub step: u64,
    /// The time of the epoch, with its evaluation.
    #[serde(with = "number::single")]
    pub seconds: f64,
    /// The strategy by which ranks exchanged gradients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dist_option: Option<String>,
    /// Throughput, bytes, the phases of a step (on rank 0, summed over the epoch), by name.
    #[serde(with = "number::by_name")]
    pub values: NamedValues,
}

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The number of steps that it contains.
    pub step: u64,
    /// Where it is.
    pub path: String,
    /// The time for which the training waited for it.
    #[serde(with = "number::single")]
    pub seconds: f64,
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndEvent {
    /// Why it ended: `finished`, or an error.
    pub reason: String,
    /// The number of steps done.
    pub step: u64,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Amount;

    fn values(pairs: &[(&str, f64)]) -> NamedValues {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn the_names_in_the_file_are_those_of_the_documentation() {
        let mut settings =
            Settings { epochs: Some(2), steps: Some(8), ..Settings::new(4, "0.1.0") };
        settings.settings.insert("lr".into(), json!(0.005));
        let loss = Measured { step: 3, epoch: 0, values: values(&[("loss", f64::NAN)]) };
        let cases = [
            (
                EventKind::Start(settings.clone()),
                json!({"event": "start", "world_size": 4, "version": "0.1.0", "epochs": 2, "steps": 8,
                    "settings": {"lr": 0.005}}),
            ),
            (
                EventKind::Resume(ResumePoint {
                    step: 4,
                    epoch: 1,
                    from: "step-4".into(),
                    settings: Settings::new(2, "1"),
                }),
                json!({"event": "resume", "step": 4, "epoch": 1, "from": "step-4", "world_size": 2,
                    "version": "1"}),
            ),
            (
                EventKind::Train(loss.clone()),
                json!({"event": "train", "step": 3, "epoch": 0, "values": {"loss": "NaN"}}),
            ),
            (
                EventKind::Evaluation(Measured { values: values(&[("accuracy", 0.5)]), ..loss }),
                json!({"event": "evaluation", "step": 3, "epoch": 0, "values": {"accuracy": 0.5}}),
            ),
            (
                EventKind::Epoch(EpochEnd {
                    epoch: 0,
                    step: 4,
                    seconds: 1.5,
                    dist_option: Some("fp16".into()),
                    values: values(&[("residual_norm", f64::NEG_INFINITY)]),
                }),
                json!({"event": "epoch", "epoch": 0, "step": 4, "seconds": 1.5, "dist_option": "fp16",
                    "values": {"residual_norm": "-Infinity"}}),
            ),
            (
                EventKind::Checkpoint(Checkpoint { step: 4, path: "a".into(), seconds: 0.25 }),
                json!({"event": "checkpoint", "step": 4, "path": "a", "seconds": 0.25}),
            ),
            (
                EventKind::Memory(Memory {
                    step: 3,
                    place: "heap".into(),
                    parts: vec![Amount::new("parameters", 8)],
                    peak: Some(9),
                    ..Memory::default()
                }),
                json!({"event": "memory", "step": 3, "place": "heap",
                    "parts": [{"name": "parameters", "bytes": 8}], "peak": 9}),
            ),
            (EventKind::Note { text: "n".into() }, json!({"event": "note", "text": "n"})),
            (
                EventKind::End(EndEvent { reason: "finished".into(), step: 8 }),
                json!({"event": "end", "reason": "finished", "step": 8}),
            ),
        ];
        for (kind, mut expected) in cases {
            expected["time"] = json!(1.25);
            let event = Event { time: 1.25, kind };
            assert_eq!(serde_json::to_value(&event).unwrap(), expected);
            let back: Event = serde_json::from_str(&expected.to_string()).unwrap();
            // NaN differs from itself, but not its text.
            assert_eq!(format!("{back:?}"), format!("{event:?}"));
        }
    }
}
