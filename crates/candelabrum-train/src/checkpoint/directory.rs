//! The directory of a run's checkpoints.
//!
//! ```text
//! step-00000120/                a checkpoint: it has this name only if it is whole
//! abandoned-9f3c-step-00000160/ one that a run has left behind: it went back to an older one
//! .partial-00000140-9f3c/       one that is being written, or that was when its run died
//! .removed-00000100-9f3c/       one that is being removed
//! best.json, best-mae.json      which of them was the best by some measure
//! lock                          is locked while a run uses the directory
//! ```
//!
//! **Invariant (branch)** The checkpoints that are named by their steps are of one branch: each was made by the
//! run that continued the one before.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use candelabrum_datasets::write_whole;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::manifest::{self, Best, Manifest};
use crate::{Error, Result};

const STEP: &str = "step-";
const PARTIAL: &str = ".partial-";
const REMOVED: &str = ".removed-";
const ABANDONED: &str = "abandoned-";
pub(super) const BEST: &str = "best";
const JSON: &str = ".json";
const LOCK: &str = "lock";

/// A directory of checkpoints, as one rank sees it.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// A word of this run that no other run has: for the names of partial checkpoints.
    word: String,
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
        let unusable =
            |error: io::Error| Error::checkpoint(&self.path, format!("cannot be used: {error}"));
        let is_new = !self.path.exists();
        fs::create_dir_all(&self.path).map_err(unusable)?;
        if let Some(parent) = self.path.parent().filter(|_| is_new) {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            sync(parent).map_err(unusable)?;
        }
        let lock = File::create(self.path.join(LOCK)).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let what = "is in use by another run: give each run a directory of its own";
                return Err(Error::checkpoint(&self.path, what));
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
        let _span = tracing::debug_span!(target: "candelabrum::checkpoint", "sync").entered();
        sync(&self.path)?;
        Ok(path)
    }

    /// Removes a checkpoint. After an interruption it is whole or has another name.
    pub(super) fn remove(&self, step: u64) -> io::Result<()> {
        let removed = self.path.join(format!("{REMOVED}{step:08}-{}", self.word));
        fs::rename(self.of_step(step), &removed)?;
        fs::remove_dir_all(removed)
    }

    /// The steps of all directories that have a checkpoint's name, in no order.
    fn steps(&self) -> io::Result<Vec<u64>> {
        let step = |name: String| name.strip_prefix(STEP)?.parse::<u64>().ok();
        match self.names() {
            Ok(names) => Ok(names.into_iter().filter_map(step).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Whether there is no checkpoint.
    pub(super) fn is_empty(&self) -> io::Result<bool> {
        Ok(self.steps()?.is_empty())
    }

    /// The steps of the checkpoints, the newest first: in the order of writing. Those whose manifests cannot be read come
    /// before all others: a run that continues says why it skips them.
    pub(super) fn newest_first(&self) -> io::Result<Vec<u64>> {
        let number = |step: u64| (self.number_of(step).unwrap_or(u64::MAX), step);
        let mut steps = self.steps()?;
        steps.sort_by_cached_key(|&step| Reverse(number(step)));
        Ok(steps)
    }

    /// The number in the order of writing.
    fn number_of(&self, step: u64) -> Option<u64> {
        Manifest::read(&self.of_step(step)).ok().map(|manifest| manifest.number)
    }

    /// The number of the next checkpoint.
    pub(super) fn next_number(&self) -> io::Result<u64> {
        let numbers = self.steps()?.into_iter().filter_map(|step| self.number_of(step));
        Ok(numbers.max().unwrap_or(0) + 1)
    }

    /// Removes all checkpoints but the newest `keep`, the best ones, and `source`, from which the run began.
    pub(super) fn prune(&self, keep: usize, source: Option<u64>) -> io::Result<()> {
        let best = self.best()?;
        let best: Vec<u64> =
            best.values().flat_map(Best::ranked).map(|ranked| ranked.step).collect();
        let stays = |step: &u64| Some(*step) == source || best.contains(step);
        // One that cannot be read counts as the oldest.
        let mut steps = self.newest_first()?;
        steps.sort_by_key(|&step| self.number_of(step).is_none());
        for step in steps.into_iter().skip(keep).filter(|step| !stays(step)) {
            self.remove(step)?;
        }
        Ok(())
    }

    /// Gives all checkpoints but those up to step `last` another name, and goes back to the `best` ones of then. For a
    /// run that continues an older one. Returns the number of the checkpoints.
    pub(super) fn abandon(
        &self,
        last: Option<u64>,
        best: &BTreeMap<String, Best>,
    ) -> io::Result<usize> {
        let steps = self.steps()?;
        let later: Vec<u64> =
            steps.iter().copied().filter(|step| last.is_none_or(|last| *step > last)).collect();
        let other = |name: &str| self.path.join(format!("{ABANDONED}{}-{name}", self.word));
        for &step in &later {
            fs::rename(self.of_step(step), other(&format!("{STEP}{step:08}")))?;
        }
        for name in self.best()?.into_keys().filter(|_| !later.is_empty()) {
            let file = format!("{name}{JSON}");
            fs::rename(self.path.join(&file), other(&file))?;
        }
        if !later.is_empty() {
            for (name, best) in best {
                self.record_best(name, best)?;
            }
            sync(&self.path)?;
        }
        Ok(later.len())
    }

    /// The best checkpoints, by the names of their files.
    pub(super) fn best(&self) -> io::Result<BTreeMap<String, Best>> {
        let mut all = BTreeMap::new();
        for name in self.names()? {
            let Some(name) = name.strip_suffix(JSON).filter(|name| name.starts_with(BEST)) else {
                continue;
            };
            let text = fs::read_to_string(self.path.join(format!("{name}{JSON}")))?;
            // One that cannot be read protects nothing.
            if let Ok(best) = serde_json::from_str(&text) {
                all.insert(name.to_owned(), best);
            }
        }
        Ok(all)
    }

    /// Notes those of the best checkpoints that are still here in the file `name`.
    pub(super) fn record_best(&self, name: &str, best: &Best) -> io::Result<()> {
        let here = best.ranked().filter(|ranked| self.of_step(ranked.step).exists());
        let Some(best) = Best::of(best.measure.clone(), here) else { return Ok(()) };
        write_whole(&self.path.join(format!("{name}{JSON}")), |out| {
            serde_json::to_writer(&mut *out, &best)?;
            out.write_all(b"\n")
        })?;
        sync(&self.path)
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
