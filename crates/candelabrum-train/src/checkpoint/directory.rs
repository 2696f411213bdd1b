//! The directory of a run's checkpoints.
//!
//! ```text
//! step-00000120/                a checkpoint: it has this name only if it is whole
//! abandoned-9f3c-step-00000160/ one that a run has left behind: it went back to an older one
//! .partial-00000140-9f3c/       one that is being written, or that was when its run died
//! .removed-00000100-9f3c/       one that is being removed
//! best.json, best-mae.json      which of them was the best by some measure, for people and other programs
//! lock                          is locked while a run uses the directory
//! ```
//!
//! **Invariant (branch)** The checkpoints that are named by their steps are of one branch: each was made by the
//! run that continued the one before.
//! **Invariant (best)** The newest manifest says which checkpoints are the best ones, so a checkpoint gets its name
//! and its rank by one rename. The files `best.json` repeat it, and may be older after a kill.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use candelabrum_datasets::write_whole;
use candelabrum_dist::note;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::manifest::{self, BestCheckpoint, Manifest};
use crate::{Error, Result};

const STEP: &str = "step-";
const PARTIAL: &str = ".partial-";
const REMOVED: &str = ".removed-";
const MARK: &str = ".mark-";
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
            Err(TryLockError::Error(error)) if has_no_locks(&error) => note(&format!(
                "{}: this file system has no locks ({error}), so nothing keeps another run out of the directory",
                self.path.display()
            )),
            Err(TryLockError::Error(error)) => return Err(unusable(error)),
        }
        self.name_whole_ones().map_err(unusable)?;
        for name in self.names().map_err(unusable)? {
            if [PARTIAL, REMOVED, MARK].iter().any(|left| name.starts_with(left)) {
                let path = self.path.join(name);
                let is_dir = path.is_dir();
                let removed = if is_dir { fs::remove_dir_all(path) } else { fs::remove_file(path) };
                removed.map_err(unusable)?;
            }
        }
        Ok(lock)
    }

    /// Gives checkpoints that are whole their names: a run has died before it did, or between the two renames of
    /// [`Self::publish`].
    fn name_whole_ones(&self) -> io::Result<()> {
        for name in self.names()? {
            let rest = name.strip_prefix(PARTIAL).and_then(|rest| rest.split_once('-'));
            let step = rest.and_then(|(step, _)| step.parse().ok());
            let Some(path) = step.map(|step| self.of_step(step)).filter(|path| !path.exists())
            else {
                continue;
            };
            let partial = self.path.join(&name);
            if Manifest::read(&partial).is_ok() {
                fs::rename(partial, path)?;
                sync(&self.path)?;
            }
        }
        Ok(())
    }

    /// The file by which other ranks recognise the directory that rank 0 has taken.
    pub(super) fn mark(&self, word: &str) -> PathBuf {
        self.path.join(format!("{MARK}{word}"))
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
            let replaced = if exchanged.is_err() {
                let removed = self.removed(step);
                fs::rename(&path, &removed)?;
                fs::rename(&partial, &path)?;
                removed
            } else {
                partial
            };
            fs::remove_dir_all(replaced)?;
        } else {
            fs::rename(&partial, &path)?;
        }
        let _span = tracing::debug_span!(target: "candelabrum::checkpoint", "sync").entered();
        sync(&self.path)?;
        Ok(path)
    }

    /// Removes a checkpoint. After an interruption it is whole or has another name.
    pub(super) fn remove(&self, step: u64) -> io::Result<()> {
        let removed = self.removed(step);
        fs::rename(self.of_step(step), &removed)?;
        fs::remove_dir_all(removed)
    }

    /// The name of a checkpoint of a step that is being removed.
    fn removed(&self, step: u64) -> PathBuf {
        self.path.join(format!("{REMOVED}{step:08}-{}", self.word))
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

    /// Removes all checkpoints but the newest `keep`, the `best` ones, and `source`, from which the run began.
    pub(super) fn prune(
        &self,
        keep: usize,
        best: &BTreeMap<String, BestCheckpoint>,
        source: Option<u64>,
    ) -> io::Result<()> {
        let best: Vec<u64> =
            best.values().flat_map(BestCheckpoint::ranked).map(|ranked| ranked.step).collect();
        let stays = |step: &u64| Some(*step) == source || best.contains(step);
        // One that cannot be read counts as the oldest.
        let mut steps = self.newest_first()?;
        steps.sort_by_key(|&step| self.number_of(step).is_none());
        for step in steps.into_iter().skip(keep).filter(|step| !stays(step)) {
            self.remove(step)?;
        }
        Ok(())
    }

    /// Gives all checkpoints but those up to step `last`, and the files that note the best ones, another name. For a run
    /// that continues an older one. Returns the number of the checkpoints.
    pub(super) fn abandon(&self, last: Option<u64>) -> io::Result<usize> {
        // The newest one first: after a kill the others are still a branch, whose newest one names the best ones.
        let mut later = self.newest_first()?;
        later.retain(|step| last.is_none_or(|last| *step > last));
        let other = |name: &str| self.path.join(format!("{ABANDONED}{}-{name}", self.word));
        for &step in &later {
            fs::rename(self.of_step(step), other(&format!("{STEP}{step:08}")))?;
        }
        for name in self.best_files()?.into_iter().filter(|_| !later.is_empty()) {
            let file = format!("{name}{JSON}");
            fs::rename(self.path.join(&file), other(&file))?;
        }
        sync(&self.path)?;
        Ok(later.len())
    }

    /// The best checkpoints that are here, by the names of their files: as the newest checkpoint knows them, and what
    /// versions without this knowledge have noted in files.
    pub(super) fn best(&self) -> io::Result<BTreeMap<String, BestCheckpoint>> {
        let mut all = BTreeMap::new();
        for name in self.best_files()? {
            let text = fs::read_to_string(self.path.join(format!("{name}{JSON}")))?;
            // One that cannot be read protects nothing.
            if let Ok(best) = serde_json::from_str(&text) {
                all.insert(name, best);
            }
        }
        let steps = self.newest_first()?;
        let newest = steps.into_iter().find_map(|step| Manifest::read(&self.of_step(step)).ok());
        all.extend(newest.map(|newest| newest.best).unwrap_or_default());
        Ok(self.present(all))
    }

    /// Those of these best checkpoints that are still here.
    pub(super) fn present(
        &self,
        best: BTreeMap<String, BestCheckpoint>,
    ) -> BTreeMap<String, BestCheckpoint> {
        best.into_iter().filter_map(|(name, best)| Some((name, self.here(&best)?))).collect()
    }

    /// The names of the files that note the best checkpoints, without their ending.
    fn best_files(&self) -> io::Result<Vec<String>> {
        let best = |name: &String| name.starts_with(BEST);
        let names = self.names()?.into_iter();
        Ok(names
            .filter_map(|name| name.strip_suffix(JSON).map(str::to_owned))
            .filter(best)
            .collect())
    }

    /// Those of the best checkpoints that are still here.
    fn here(&self, best: &BestCheckpoint) -> Option<BestCheckpoint> {
        let here = best.ranked().filter(|ranked| self.of_step(ranked.step).exists());
        BestCheckpoint::from_ranked(best.measure.clone(), here)
    }

    /// Notes those of the best checkpoints that are still here in the file `name`.
    pub(super) fn record_best(&self, name: &str, best: &BestCheckpoint) -> io::Result<()> {
        let Some(best) = self.here(best) else { return Ok(()) };
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

/// Whether a file system has no locks at all: Lustre without them, or a file system in user space.
fn has_no_locks(error: &io::Error) -> bool {
    let errors = [Errno::NOSYS, Errno::OPNOTSUPP, Errno::NOLCK];
    Errno::from_io_error(error).is_some_and(|error| errors.contains(&error))
}

/// Whether `path` is a checkpoint itself, and not a directory of several.
pub(super) fn is_checkpoint(path: &Path) -> bool {
    path.join(manifest::NAME).is_file()
}

/// Waits until the names in a directory are on the disk.
pub(super) fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::super::manifest::Ranked;
    use super::super::position::Position;
    use super::*;

    fn best(steps: &[u64]) -> BTreeMap<String, BestCheckpoint> {
        let ranked = steps.iter().map(|&step| Ranked { step, value: step as f64 });
        BestCheckpoint::from_ranked("loss".to_owned(), ranked)
            .map(|best| (BEST.to_owned(), best))
            .into_iter()
            .collect()
    }

    /// Writes a checkpoint, which counts these as the best ones, into `dir`.
    fn write(dir: &Path, step: u64, steps: &[u64]) {
        fs::create_dir(dir).unwrap();
        let position = Position { step, ..Position::default() };
        let mut manifest = Manifest::new("run", position, 1);
        (manifest.number, manifest.best) = (step, best(steps));
        manifest.write(dir).unwrap();
    }

    fn names(directory: &Directory) -> Vec<String> {
        let mut names = directory.names().unwrap();
        names.sort();
        names
    }

    #[test]
    fn the_newest_checkpoint_says_which_ones_are_the_best() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::new(dir.path(), "word".to_owned());
        write(&directory.of_step(4), 4, &[4]);
        directory.record_best(BEST, &best(&[4])[BEST]).unwrap();
        // A kill comes before the file is written.
        write(&directory.of_step(8), 8, &[8, 4]);
        assert_eq!(directory.best().unwrap(), best(&[8, 4]));
        directory.prune(1, &directory.best().unwrap(), None).unwrap();
        assert_eq!(names(&directory), ["best.json", "step-00000004", "step-00000008"]);
        // One that is gone does not count, and an earlier version has noted the best ones in the file alone.
        fs::remove_dir_all(directory.of_step(4)).unwrap();
        assert_eq!(directory.best().unwrap(), best(&[8]));
        write(&directory.of_step(9), 9, &[]);
        directory.record_best(BEST, &best(&[8])[BEST]).unwrap();
        assert_eq!(directory.best().unwrap(), best(&[8]));
    }

    #[test]
    fn what_dead_runs_have_left_is_removed_or_gets_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let [dead, directory] =
            ["dead", "word"].map(|word| Directory::new(dir.path(), word.to_owned()));
        for step in [1, 2] {
            write(&dead.partial(step), step, &[]);
        }
        write(&dead.of_step(2), 2, &[2]);
        fs::create_dir(dead.partial(3)).unwrap();
        write(&dead.removed(1), 1, &[]);
        fs::write(dead.mark("dead"), "dead").unwrap();
        fs::write(dir.path().join(".partial-k3Jd0x"), "half of best.json").unwrap();
        drop(directory.take().unwrap());
        assert_eq!(names(&directory), ["lock", "step-00000001", "step-00000002"]);
        assert_eq!(Manifest::read(&directory.of_step(2)).unwrap().best, best(&[2]));
    }
}
