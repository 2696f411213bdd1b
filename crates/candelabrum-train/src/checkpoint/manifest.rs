//! `checkpoint.json`: what a checkpoint is of, and what its files must be.
//!
//! It is written last, so a directory without it is no checkpoint. It begins with its own digest.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Component, Path};

use candelabrum_dist::{DistOptState, StrategyConfig};
use candelabrum_runlog::number;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::digest::{FileDigest, sha256};
use super::position::Position;
use super::settings::RunSettings;
use crate::{Error, Result};

/// The name of the file.
pub(super) const NAME: &str = "checkpoint.json";

/// The version of all files of a checkpoint. This version of the crate reads it and the one before, 1, whose
/// settings have sentences as names, and which knows neither its parent nor its number.
const FORMAT: u32 = 2;

/// The contents of `checkpoint.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of the format.
    pub format: u32,
    /// The version of the crate that wrote it.
    pub version: String,
    /// A word that distinguishes the run from others. A resumed run keeps it, unless it went back to an older
    /// checkpoint: then it is another branch.
    pub run: String,
    /// The number of this checkpoint in its directory, in the order of writing.
    #[serde(default)]
    pub number: u64,
    /// The checkpoint from which this run began, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// The best checkpoints so far, by the names of their files.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub best: BTreeMap<String, BestCheckpoint>,
    /// Seconds since 1970.
    pub created: u64,
    /// How far the training was.
    pub position: Position,
    /// The number of ranks that trained.
    pub world_size: usize,
    /// The settings of the run.
    #[serde(deserialize_with = "read_settings")]
    pub settings: RunSettings,
    /// The optimizers, by the names of their models. The name of a single one is empty.
    pub parts: BTreeMap<String, PartState>,
    /// What the training itself keeps, the same on all ranks: the states of hooks, for instance.
    pub shared: serde_json::Value,
    /// All other files.
    pub files: BTreeMap<String, FileDigest>,
}

/// The checkpoint from which a run began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// The word of its run.
    pub run: String,
    /// Its step.
    pub step: u64,
}

/// A checkpoint that was the best one by some value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BestCheckpoint {
    /// Its step.
    pub step: u64,
    /// The value.
    #[serde(with = "number::single")]
    pub value: f64,
    /// The name of the value.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub measure: String,
    /// The other best checkpoints, the better one first, if the hook keeps several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<Ranked>,
}

/// One of the best checkpoints by some value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranked {
    /// Its step.
    pub step: u64,
    /// The value.
    #[serde(with = "number::single")]
    pub value: f64,
}

impl BestCheckpoint {
    /// The best ones of this list, which begins with the best. `None` if it is empty.
    pub(crate) fn from_ranked(
        measure: String,
        ranked: impl IntoIterator<Item = Ranked>,
    ) -> Option<Self> {
        let mut ranked = ranked.into_iter();
        let Ranked { step, value } = ranked.next()?;
        Some(Self { step, value, measure, next: ranked.collect() })
    }

    /// All of them, the best one first.
    pub fn ranked(&self) -> impl Iterator<Item = Ranked> {
        let &Self { step, value, ref next, .. } = self;
        [Ranked { step, value }].into_iter().chain(next.iter().copied())
    }
}

/// Settings by their names, or by the sentences of format 1.
#[derive(Deserialize)]
#[serde(untagged)]
enum SavedSettings {
    ByName(RunSettings),
    BySentence(BTreeMap<String, String>),
}

fn read_settings<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<RunSettings, D::Error> {
    Ok(match SavedSettings::deserialize(from)? {
        SavedSettings::ByName(settings) => settings,
        SavedSettings::BySentence(sentences) => sentences.into_iter().collect(),
    })
}

/// The state of one model's optimizer, beside its numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PartState {
    /// Ranks, or the servers of their steps, have the state of the optimizer.
    AllReduce {
        /// What is the same on all ranks.
        state: Box<DistOptState>,
        /// The strategies used so far, in their order.
        strategies: Vec<SavedStrategy>,
        /// Whether each rank has buffers of its own.
        own_buffers: bool,
        /// The digest of what the model has from its files and nothing trains: the checkpoint does not contain that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        constants: Option<String>,
    },
    /// Servers that update at once have it, and have files of their own.
    Store {
        /// The steps of the first worker.
        steps: u64,
        /// The directory of the servers' files.
        servers: String,
        /// As of [`AllReduce`](Self::AllReduce).
        #[serde(default)]
        strategies: Vec<SavedStrategy>,
        /// What workers have beside the servers: the scale of the loss.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<Box<DistOptState>>,
        /// As of [`AllReduce`](Self::AllReduce).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        constants: Option<String>,
    },
}

impl PartState {
    /// The directory of servers' files, within that of the checkpoint.
    pub(super) fn servers(&self) -> Option<&str> {
        match self {
            Self::AllReduce { .. } => None,
            Self::Store { servers, .. } => Some(servers),
        }
    }
}

/// A strategy without its memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedStrategy {
    /// Its name.
    pub option: String,
    /// Its settings.
    pub config: StrategyConfig,
    /// Its steps.
    pub steps: u64,
}

/// The file: the digest of the text of the manifest, and the manifest.
#[derive(Serialize, Deserialize)]
struct Signed<'a> {
    sha256: String,
    #[serde(borrow)]
    checkpoint: &'a RawValue,
}

impl Manifest {
    /// A manifest of this version.
    pub(super) fn new(run: &str, position: Position, world_size: usize) -> Self {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            run: run.to_owned(),
            number: 0,
            parent: None,
            best: BTreeMap::new(),
            created: since.map_or(0, |since| since.as_secs()),
            position,
            world_size,
            settings: RunSettings::default(),
            parts: BTreeMap::new(),
            shared: serde_json::Value::Null,
            files: BTreeMap::new(),
        }
    }

    /// Writes the file into `dir`, and waits until it is on the disk.
    pub(super) fn write(&self, dir: &Path) -> io::Result<()> {
        let checkpoint = serde_json::value::to_raw_value(self)?;
        let sha256 = sha256(checkpoint.get().as_bytes());
        let mut file = fs::File::create(dir.join(NAME))?;
        let text = serde_json::to_string(&Signed { sha256, checkpoint: &checkpoint })?;
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()
    }

    /// Reads the manifest of the checkpoint in `dir`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for a file that is missing, damaged, or of a later version.
    pub fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(NAME);
        let refuse = |what: String| Error::checkpoint(&path, what);
        let text = fs::read_to_string(&path)
            .map_err(|error| refuse(format!("cannot be read: {error}")))?;
        let damaged = |error: &dyn std::fmt::Display| refuse(format!("is damaged: {error}"));
        let signed: Signed<'_> = serde_json::from_str(&text).map_err(|error| damaged(&error))?;
        if sha256(signed.checkpoint.get().as_bytes()) != signed.sha256 {
            return Err(damaged(&"its text is not the one that was written"));
        }
        #[derive(Deserialize)]
        struct Version {
            format: u32,
            version: String,
        }
        let Version { format, version } =
            serde_json::from_str(signed.checkpoint.get()).map_err(|error| damaged(&error))?;
        if !(1..=FORMAT).contains(&format) {
            return Err(refuse(format!(
                "has the format {format} of candelabrum {version}; this version reads the formats 1 to {FORMAT}"
            )));
        }
        let manifest: Self =
            serde_json::from_str(signed.checkpoint.get()).map_err(|error| damaged(&error))?;
        if let Some(name) = manifest.names().find(|name| !is_below(name)) {
            return Err(refuse(format!("names the file {name:?}, which is not in it")));
        }
        Ok(manifest)
    }

    /// The names of all files and folders that it says it has.
    fn names(&self) -> impl Iterator<Item = &str> {
        let folders = self.parts.values().filter_map(PartState::servers);
        self.files.keys().map(String::as_str).chain(folders)
    }
}

/// Whether a name stands for something in the folder of a checkpoint.
fn is_below(name: &str) -> bool {
    !name.is_empty()
        && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(change: impl FnOnce(&mut Manifest)) -> Result<Manifest> {
        let dir = tempfile::tempdir().unwrap();
        let mut manifest = Manifest::new("run", Position::default(), 1);
        change(&mut manifest);
        manifest.write(dir.path()).unwrap();
        Manifest::read(dir.path())
    }

    #[test]
    fn a_manifest_comes_back_with_every_number() {
        let ranked = [(3, f64::INFINITY), (9, 0.5)].map(|(step, value)| Ranked { step, value });
        let best = BestCheckpoint::from_ranked("perplexity".to_owned(), ranked).unwrap();
        let change = |manifest: &mut Manifest| {
            manifest.number = 7;
            manifest.parent = Some(Parent { run: "other".to_owned(), step: 40 });
            manifest.best = [("best".to_owned(), best.clone())].into();
            manifest.settings.seed = Some(u64::MAX);
        };
        let read = written(change).unwrap();
        assert_eq!((read.number, read.settings.seed), (7, Some(u64::MAX)));
        assert_eq!(read.parent.unwrap().step, 40);
        assert_eq!(read.best["best"], best);
        assert_eq!(best.ranked().collect::<Vec<_>>(), ranked);
        let before: BestCheckpoint = serde_json::from_str(r#"{"step":3,"value":0.5}"#).unwrap();
        assert_eq!(
            before,
            BestCheckpoint { step: 3, value: 0.5, measure: String::new(), next: Vec::new() }
        );
    }

    #[test]
    fn files_outside_of_the_checkpoint_are_refused() {
        for name in ["../secret", "/etc/passwd", "servers/../../x", ""] {
            let change = |manifest: &mut Manifest| {
                manifest.files.insert(name.to_owned(), FileDigest::from_bytes(b""));
            };
            let error = written(change).unwrap_err().to_string();
            assert!(error.contains("which is not in it"), "{error}");
            let change = |manifest: &mut Manifest| {
                let servers = name.to_owned();
                let strategies = Vec::new();
                let part = PartState::Store {
                    steps: 0,
                    servers,
                    strategies,
                    state: None,
                    constants: None,
                };
                manifest.parts.insert(String::new(), part);
            };
            assert!(written(change).is_err(), "{name}");
        }
        assert!(written(|_| {}).is_ok());
    }

    #[test]
    fn a_manifest_of_format_1_is_read() {
        let text = r#"{"format":1,"version":"0.1.0","run":"9f3c","created":5,
            "position":{"epoch":1,"step_in_epoch":2,"step":3},"world_size":2,
            "settings":{"the seed":"4","the global batch size":"8"},
            "parts":{},"shared":{"report":[]},"files":{}}"#;
        let raw = RawValue::from_string(text.replace('\n', "")).unwrap();
        let signed = Signed { sha256: sha256(raw.get().as_bytes()), checkpoint: &raw };
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(NAME), serde_json::to_string(&signed).unwrap()).unwrap();
        let read = Manifest::read(dir.path()).unwrap();
        let RunSettings { seed, global_batch_size, .. } = read.settings;
        assert_eq!((seed, global_batch_size), (Some(4), Some(8)));
        assert_eq!((read.number, read.parent, read.position.step), (0, None, 3));
    }
}
