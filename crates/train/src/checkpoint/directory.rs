//! The directory of a run's checkpoints.
//!
//! ```text
//! step-00000120/          a checkpoint: it has this name only if it is whole
//! .partial-00000140-9f3c/ one that is being written, or that was when its run died
//! .removed-00000100-9f3c/ one that is being removed
//! best.json               which of them was the best
//! lock                    is locked while a run uses the directory
//! ```

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use candelabrum_datasets::write_whole;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};

use super::manifest;
use crate::{Error, Result};

const STEP: &str = "step-";
const PARTIAL: &str = ".partial-";
const REMOVED: &str = ".removed-";
const BEST: &str = "best.json";
const LOCK: &str = "lock";

/// A directory of checkpoints, as one rank sees it.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// A word of this run that no other run has: for the names of partial checkpoints.
    word: String,
}

/// The best checkpoint so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Best {
    pub(super) step: u64,
    pub(super) value: f64,
}

impl Directory {
    pub(super) fn new(path: &Path, word: String) -> Self {
        Self { path: path.to_owned(), word }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn word(&self) -> &str {
        &self.word
    }

    /// Makes the directory, locks it for this run, and removes what dead runs have left. For rank 0.
    pub(super) fn take(&self) -> Result<File> {
        let refuse = |what: String| Error::Checkpoint { path: self.path.clone(), what };
        let unusable = |error: io::Error| refuse(format!("cannot be used: {error}"));
        fs::create_dir_all(&self.path).map_err(unusable)?;
        let lock = File::create(self.path.join(LOCK)).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(refuse(
                    "is in use by another run: give each run a directory of its own".into(),
                ));
            }
            Err(TryLockError::Error(error)) => return Err(unusable(error)),
        }
        for name in self.names().map_err(unusable)? {
            if name.starts_with(PARTIAL) || name.starts_with(REMOVED) {
                fs::remove_dir_all(self.path.join(name)).map_err(unusable)?;
            }
        }
        Ok(lock)
    }

    /// The checkpoint of a step.
    pub(super) fn of_step(&self, step: u64) -> PathBuf {
        self.path.join(format!("{STEP}{step:08}"))
    }

    /// The place in which the checkpoint of a step is written.
    pub(super) fn partial(&self, step: u64) -> PathBuf {
        self.path.join(format!("{PARTIAL}{step:08}-{}", self.word))
    }

    /// Gives a checkpoint that has been written its name. It replaces one of the same step, for instance a
    /// damaged one: both change their names in one operation, so one of them has the name at any time.
    pub(super) fn publish(&self, step: u64) -> io::Result<PathBuf> {
        let (partial, path) = (self.partial(step), self.of_step(step));
        sync(&partial)?;
        if path.exists() {
            let exchanged = renameat_with(CWD, &partial, CWD, &path, RenameFlags::EXCHANGE);
            // Some file systems cannot do it.
            if exchanged.is_err() {
                self.remove(step)?;
                fs::rename(&partial, &path)?;
            } else {
                fs::remove_dir_all(&partial)?;
            }
        } else {
            fs::rename(&partial, &path)?;
        }
        sync(&self.path)?;
        Ok(path)
    }

    /// Removes a checkpoint. After an interruption it is whole or has another name.
    pub(super) fn remove(&self, step: u64) -> io::Result<()> {
        let removed = self.path.join(format!("{REMOVED}{step:08}-{}", self.word));
        fs::rename(self.of_step(step), &removed)?;
        fs::remove_dir_all(removed)
    }

    /// The steps of all directories that have a checkpoint's name and its manifest, the newest first.
    pub(super) fn steps(&self) -> io::Result<Vec<u64>> {
        let step = |name: String| name.strip_prefix(STEP)?.parse::<u64>().ok();
        let mut steps: Vec<u64> = match self.names() {
            Ok(names) => names.into_iter().filter_map(step).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        steps.sort_unstable_by(|a, b| b.cmp(a));
        Ok(steps)
    }

    /// Removes all checkpoints but the newest `keep` and the best one.
    pub(super) fn prune(&self, keep: usize) -> io::Result<()> {
        let best = self.best().map(|best| best.step);
        for step in self.steps()?.into_iter().skip(keep).filter(|step| Some(*step) != best) {
            self.remove(step)?;
        }
        Ok(())
    }

    /// The best checkpoint, if one has been noted.
    pub(super) fn best(&self) -> Option<Best> {
        let text = fs::read_to_string(self.path.join(BEST)).ok()?;
        serde_json::from_str(&text).ok()
    }

    pub(super) fn note_best(&self, best: &Best) -> io::Result<()> {
        write_whole(&self.path.join(BEST), |out| {
            serde_json::to_writer(&mut *out, best)?;
            out.write_all(b"\n")
        })
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }
}

/// Whether `path` is a checkpoint itself, and not a directory of several.
pub(super) fn is_checkpoint(path: &Path) -> bool {
    path.join(manifest::NAME).is_file()
}

/// Waits until the names in a directory are on the disk.
pub(super) fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
