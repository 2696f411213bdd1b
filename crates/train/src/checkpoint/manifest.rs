//! `checkpoint.json`: what a checkpoint is of, and what its files must be.
//!
//! It is written last, so a directory without it is no checkpoint. It begins with its own digest.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use candelabrum_dist::{DistOptState, StrategyConfig};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::digest::{FileDigest, sha256};
use super::position::Position;
use crate::{Error, Result};

/// The name of the file.
pub(super) const NAME: &str = "checkpoint.json";

/// The version of all files of a checkpoint. Another one cannot be read.
const FORMAT: u32 = 1;

/// The contents of `checkpoint.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of the format.
    pub format: u32,
    /// The version of the crate that wrote it.
    pub version: String,
    /// A word that distinguishes the run from others. A resumed run keeps it.
    pub run: String,
    /// Seconds since 1970.
    pub created: u64,
    /// How far the training was.
    pub position: Position,
    /// The number of ranks that trained.
    pub world_size: usize,
    /// What must be the same in a run that continues, by name.
    pub settings: BTreeMap<String, String>,
    /// The optimizers, by the names of their models. The name of a single one is empty.
    pub parts: BTreeMap<String, PartState>,
    /// What the training itself keeps, the same on all ranks: the states of hooks, for instance.
    pub shared: serde_json::Value,
    /// All other files.
    pub files: BTreeMap<String, FileDigest>,
}

/// The state of one model's optimizer, beside its numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PartState {
    /// A [`DistOpt`](candelabrum_dist::DistOpt).
    AllReduce {
        /// What is the same on all ranks.
        state: Box<DistOptState>,
        /// The strategies used so far, in their order.
        strategies: Vec<SavedStrategy>,
        /// Whether each rank has buffers of its own.
        own_buffers: bool,
    },
    /// A [`StoreOpt`](candelabrum_kvstore::StoreOpt). Its servers have files of their own.
    Store {
        /// The steps of the first worker.
        steps: u64,
        /// The directory of the servers' files.
        servers: String,
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
            created: since.map_or(0, |since| since.as_secs()),
            position,
            world_size,
            settings: BTreeMap::new(),
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

    /// Reads the file in `dir`.
    pub(super) fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(NAME);
        let refuse = |what: String| Error::Checkpoint { path: path.clone(), what };
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
        if format != FORMAT {
            return Err(refuse(format!(
                "has the format {format} of candelabrum {version}; this version reads the format {FORMAT}"
            )));
        }
        serde_json::from_str(signed.checkpoint.get()).map_err(|error| damaged(&error))
    }
}
