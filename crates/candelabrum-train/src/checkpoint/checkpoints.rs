//! Saving and resuming, as a training sees it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use candelabrum_dist::Group;
use candelabrum_dist::launch::timeout;

use super::candidates::{Branch, Candidates};
use super::checks::{check_batch, check_names, check_part_names, check_settings};
use super::config::{CheckpointConfig, Resume};
use super::directory::Directory;
use super::file_timeout::FileTimeout;
use super::manifest::{BestCheckpoint, Manifest, Parent};
use super::newest::record_newest;
use super::position::Position;
use super::restored::Restored;
use super::saving::{self, WriteJob, WriteOutcome};
use super::settings::RunSettings;
use super::snapshot::Snapshot;
use super::stateful::Stateful;
use crate::agreement::{agree, first_error};
use crate::{Error, Metrics, Result};

/// The shortest time for which rank 0 waits for the files of other ranks. It is the deadline between ranks, if that is
/// longer: a rank may have residuals of several times the model.
const FILE_TIMEOUT: Duration = Duration::from_secs(60);

/// The time for which a rank waits until a network's file system shows what rank 0 has made.
const VISIBLE: Duration = Duration::from_secs(10);

/// What a checkpoint has beside its parts. All but the metrics must be the same on all ranks.
#[derive(Clone, Debug, Default)]
pub struct RunState {
    /// The next step.
    pub position: Position,
    /// The settings of the run.
    pub settings: RunSettings,
    /// What else the training keeps: the states of hooks, for instance.
    pub shared: serde_json::Value,
    /// The counts of this rank in the epoch so far.
    pub metrics: Metrics,
    /// By what this checkpoint is the best so far: `best` is noted in `best.json`.
    pub best: BTreeMap<String, BestCheckpoint>,
}

/// The checkpoint from which a training continues.
#[derive(Clone, Debug)]
pub struct Resumed {
    /// Its directory.
    pub path: PathBuf,
    /// The state that was saved, with the metrics of this rank.
    pub state: RunState,
    /// The number of ranks that trained until then.
    pub world_size: usize,
    /// The newer ones that were skipped, with the reasons.
    pub skipped: Vec<String>,
    /// Whether the run goes back to this checkpoint, and does not continue the newest one.
    pub is_branch: bool,
    /// What its files have.
    pub restored: Arc<Restored>,
}

/// The end of a checkpoint's writing, the same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointOutcome {
    /// The step of the checkpoint.
    pub step: u64,
    /// Why it was not written.
    pub failed: Option<String>,
}

/// What a call of [`Checkpoints::save`] has found.
#[derive(Clone, Debug, Default)]
pub struct SaveOutcome {
    /// The directory that the checkpoint will have when it is whole.
    pub path: PathBuf,
    /// Why the checkpoint before this one was not written. The training goes on, and this one is another try.
    pub failed: Option<String>,
    /// The time that the step paid for.
    pub took: Duration,
}

/// The checkpoints of a run, as one of its ranks sees them. All ranks call the methods together.
#[derive(Debug)]
pub struct Checkpoints {
    directory: Directory,
    group: Group,
    config: CheckpointConfig,
    /// A word that distinguishes this run.
    run: String,
    /// The checkpoint from which the run began.
    parent: Option<Parent>,
    /// The step of that checkpoint, if it is in this directory.
    source: Option<u64>,
    /// The best checkpoints of the run so far, by the names of their files. Of rank 0.
    best: BTreeMap<String, BestCheckpoint>,
    /// The branch of the checkpoint that the run continues, until the directory is left to it.
    continued: Option<Branch>,
    /// The number of the next checkpoint in the order of writing. Of rank 0.
    number: u64,
    /// The time for which the ranks' threads wait for each other's files.
    file_timeout: FileTimeout,
    /// The memory of the numbers, while nothing is being written.
    snapshot: Option<Snapshot>,
    writing: Option<JoinHandle<WriteOutcome>>,
    /// The step of the checkpoint that was begun last.
    last: Option<u64>,
    /// Locked as long as this run lasts. Of rank 0.
    _lock: Option<File>,
}

impl Checkpoints {
    /// The checkpoints in `dir`, which is made if it does not exist. All ranks must see the same directory.
    /// `begins` says whether the training begins: a training that goes on in the same process may use its
    /// directory again with [`Resume::Never`].
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for a directory that cannot be used, that another run uses, that has checkpoints
    /// although the training shall begin anew, or that is not the same one on all ranks. All ranks get the error.
    pub fn open(dir: &Path, group: &Group, config: CheckpointConfig, begins: bool) -> Result<Self> {
        let word = group.broadcast_text(&random_word(), 0)?;
        let directory = Directory::new(dir, word.clone());
        let must_be_empty = begins && config.resume == Resume::Never;
        let taken = match group.rank() {
            0 => take(&directory, must_be_empty).map(Some),
            _ => Ok(None),
        };
        let RunDirectory { lock, number, best } = agree(group, taken)?.unwrap_or_default();
        agree(group, find_mark(&directory, &word))?;
        if group.rank() == 0 {
            drop(fs::remove_file(directory.mark(&word)));
            if begins {
                record_newest(0);
            }
        }
        let snapshot = Some(Snapshot::new(group.rank()));
        let (group, file_timeout) =
            (group.clone(), FileTimeout::new(FILE_TIMEOUT.max(timeout()?), group));
        let (run, parent, source, writing, last) = (word, None, None, None, None);
        Ok(Self {
            directory,
            group,
            config,
            run,
            parent,
            source,
            best,
            continued: None,
            number,
            file_timeout,
            snapshot,
            writing,
            last,
            _lock: lock,
        })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The directory of the checkpoint of a step.
    pub fn path_of(&self, step: u64) -> PathBuf {
        self.directory.of_step(step)
    }

    /// The settings.
    pub fn config(&self) -> &CheckpointConfig {
        &self.config
    }

    /// Whether a checkpoint is due after so many steps.
    pub fn is_due(&self, step: u64) -> bool {
        self.config.every.is_some_and(|every| every > 0 && step.is_multiple_of(every))
    }

    /// The step of the checkpoint that was begun last.
    pub fn last(&self) -> Option<u64> {
        self.last
    }

    /// Continues `parts` from the checkpoint that [`CheckpointConfig::resume`] chooses. `None` if the training
    /// begins anew. The models must have created their parameters. `settings` are those of this run:
    /// [`Resumed::state`] has the saved ones, and the first difference is an error.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if there are checkpoints but none that is whole, or one of another model or with
    /// other settings, or a part whose name cannot be that of a file. All ranks get the error, and nothing has
    /// changed.
    pub fn resume(
        &mut self,
        parts: &mut [(&str, &mut dyn Stateful)],
        settings: &RunSettings,
    ) -> Result<Option<Resumed>> {
        check_part_names(self.directory.path(), parts)?;
        let candidates = Candidates::of_all(&self.group, &self.directory, &self.config.resume)?;
        let Some(Candidates { paths, branch }) = candidates else { return Ok(None) };
        let mut skipped = Vec::new();
        for path in paths {
            let read = Restored::read(&path, self.group.rank(), self.group.world_size());
            // All ranks skip what one of them cannot read.
            if let Some(why) = first_error(&self.group, read.as_ref().err())? {
                skipped.push(why);
                continue;
            }
            let restored = read?;
            self.restore(parts, &restored, settings)?;
            let metrics = restored.metrics();
            let Manifest { run, parent, best, position, settings, shared, world_size, .. } =
                restored.manifest().clone();
            let step = position.step;
            (self.best, self.continued) = (best, Some(branch));
            if branch == Branch::Same {
                (self.run, self.parent) = (run, parent);
                self.source = self.step_of_parent();
            } else {
                self.parent = Some(Parent { run, step });
                self.source = (branch == Branch::FromHere).then_some(step);
            }
            if branch != Branch::FromElsewhere {
                self.last = Some(step);
            }
            if self.group.rank() == 0 {
                record_newest(step);
            }
            let state = RunState { position, settings, shared, metrics, best: BTreeMap::new() };
            let (restored, is_branch) = (Arc::new(restored), branch != Branch::Same);
            return Ok(Some(Resumed { path, state, world_size, skipped, is_branch, restored }));
        }
        let why = format!("has no whole checkpoint: {}", skipped.join("; "));
        let from = match &self.config.resume {
            Resume::From(path) => path,
            _ => self.directory.path(),
        };
        Err(Error::checkpoint(from, why))
    }

    /// The step of the checkpoint from which the run began, if this directory has it.
    fn step_of_parent(&self) -> Option<u64> {
        let parent = self.parent.as_ref()?;
        let manifest = Manifest::read(&self.directory.of_step(parent.step)).ok()?;
        (manifest.run == parent.run).then_some(parent.step)
    }

    /// Gives all checkpoints of this directory beyond the one to which the run has gone back a name that begins with
    /// `abandoned-`, and returns their number. A run that continues the newest checkpoint has none. `best.json` names
    /// the best checkpoints of the branch from now on. Call it before the first step, when nothing else can refuse the
    /// run. The first [`save`](Self::save) does it otherwise.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if a name cannot be changed, on all ranks.
    pub fn abandon(&mut self) -> Result<usize> {
        let Some(branch) = self.continued.take() else { return Ok(0) };
        let own = match self.group.rank() {
            0 => self.leave_to(branch).map_err(|error| {
                let what = format!("has checkpoints that cannot be renamed: {error}");
                Error::checkpoint(self.directory.path(), what)
            }),
            _ => Ok(0),
        };
        let mut count = [agree(&self.group, own)? as i64];
        self.group.broadcast(&mut count, 0)?;
        Ok(count[0] as usize)
    }

    /// Leaves the directory to this branch.
    fn leave_to(&mut self, branch: Branch) -> io::Result<usize> {
        let abandoned =
            if branch == Branch::Same { 0 } else { self.directory.abandon(self.source)? };
        self.best = self.directory.present(std::mem::take(&mut self.best));
        for (name, best) in &self.best {
            self.directory.record_best(name, best)?;
        }
        Ok(abandoned)
    }

    fn restore(
        &self,
        parts: &mut [(&str, &mut dyn Stateful)],
        restored: &Restored,
        settings: &RunSettings,
    ) -> Result<()> {
        let names = parts.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>();
        let checked = check_settings(restored, settings)
            .and_then(|()| check_batch(restored, settings, self.group.world_size()))
            .and_then(|()| check_names(restored, &names))
            .and_then(|()| {
                parts.iter_mut().try_for_each(|(name, part)| part.check(name, restored))
            });
        agree(&self.group, checked)?;
        let loaded = parts.iter_mut().try_for_each(|(name, part)| {
            part.load(name, restored)?;
            part.params().set_noise_draws(restored.noise_draws(name));
            Ok(())
        });
        agree(&self.group, loaded)
    }

    /// Copies the state of `parts` and of the run, and has another thread write it. It first waits for the
    /// checkpoint before, if that is still being written. The ranks' models become one model
    /// ([`Stateful::average_parameters`]).
    ///
    /// # Errors
    /// A device's error, a failure of another rank, a passed deadline, or a thread that cannot be started. That a
    /// checkpoint could not be written is no error here, but [`SaveOutcome::failed`] of the next one, and an error of
    /// [`finish`](Self::finish).
    pub fn save(
        &mut self,
        parts: &mut [(&str, &mut dyn Stateful)],
        state: &RunState,
    ) -> Result<SaveOutcome> {
        let failed = self.wait()?.and_then(|outcome| outcome.failed);
        let snapshot = self.snapshot()?;
        let saved = self.save_snapshot(snapshot, parts, state)?;
        Ok(SaveOutcome { failed, ..saved })
    }

    /// Memory for the next checkpoint, which may get files of its own before [`save_snapshot`](Self::save_snapshot). It
    /// first waits for the checkpoint before.
    pub(crate) fn snapshot(&mut self) -> Result<Snapshot> {
        self.wait()?;
        let mut snapshot = self.snapshot.take().unwrap_or_else(|| Snapshot::new(self.group.rank()));
        snapshot.begin();
        Ok(snapshot)
    }

    /// [`save`](Self::save) into this memory.
    pub(crate) fn save_snapshot(
        &mut self,
        mut snapshot: Snapshot,
        parts: &mut [(&str, &mut dyn Stateful)],
        state: &RunState,
    ) -> Result<SaveOutcome> {
        let begin = Instant::now();
        let _span = tracing::debug_span!(target: "candelabrum::run", "checkpoint").entered();
        check_part_names(self.directory.path(), parts)?;
        self.abandon()?;
        for (_, part) in &mut *parts {
            part.average_parameters()?;
        }
        let step = state.position.step;
        let mut manifest = Manifest::new(&self.run, state.position, self.group.world_size());
        let dir = self.directory.partial(step);
        manifest.number = self.number;
        manifest.parent = self.parent.clone();
        if self.group.rank() == 0 {
            // The other ranks write into it. If it cannot be made, the writing thread says why.
            drop(fs::create_dir_all(&dir));
            manifest.best = self.best.clone();
            manifest.best.extend(state.best.clone());
        }
        self.number += 1;
        for (name, part) in parts {
            let saved = part.save(name, &mut snapshot, &dir)?;
            manifest.parts.insert((*name).to_owned(), saved);
            let draws = part.params().noise_draws();
            snapshot.own.noise_draws.insert((*name).to_owned(), draws);
        }
        snapshot.own.metrics = state.metrics.clone();
        snapshot.end();
        manifest.settings = state.settings.clone();
        manifest.shared = state.shared.clone();
        let job = WriteJob {
            directory: self.directory.clone(),
            rank: self.group.rank(),
            snapshot,
            manifest: (self.group.rank() == 0).then_some(manifest),
            step,
            keep: self.config.keep.max(1),
            source: self.source,
            best: state.best.clone(),
            file_timeout: self.file_timeout.clone(),
        };
        let thread = saving::start(job);
        let unwritable =
            |error| Error::checkpoint(self.directory.path(), format!("cannot be written: {error}"));
        self.writing = Some(thread.map_err(unwritable)?);
        self.last = Some(step);
        Ok(SaveOutcome { path: self.directory.of_step(step), failed: None, took: begin.elapsed() })
    }

    /// Waits until the last checkpoint is on the disk.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if it could not be written, on all ranks, and a failure of another rank.
    pub fn finish(&mut self) -> Result<()> {
        match self.wait()?.and_then(|outcome| outcome.failed) {
            None => Ok(()),
            Some(why) => Err(Error::checkpoint(
                self.directory.path(),
                format!("has not the last checkpoint: {why}"),
            )),
        }
    }

    /// Waits for the checkpoint that is being written, on all ranks. `None` if there is none.
    ///
    /// # Errors
    /// A failure of another rank or a passed deadline. That the checkpoint could not be written is part of the result.
    pub fn wait(&mut self) -> Result<Option<CheckpointOutcome>> {
        let Some(thread) = self.writing.take() else { return Ok(None) };
        let step = self.last.unwrap_or_default();
        let outcome = match thread.join() {
            Ok(WriteOutcome { snapshot, best, result }) => {
                self.snapshot = Some(snapshot);
                result.map(|()| self.best.extend(best)).map_err(|error| error.to_string())
            }
            Err(_) => Err("the thread that writes it has panicked".to_owned()),
        };
        let outcome = outcome.map_err(|what| {
            Error::checkpoint(&self.directory.of_step(step), format!("was not written: {what}"))
        });
        let failed = first_error(&self.group, outcome.as_ref().err())?;
        if failed.is_some() {
            self.last = None;
        }
        Ok(Some(CheckpointOutcome { step, failed }))
    }
}

/// A run that ends by an error lets the last checkpoint be written.
impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.file_timeout.shorten();
        if let Some(thread) = self.writing.take() {
            drop(thread.join());
        }
    }
}

/// A directory that was taken for a run. Other ranks than rank 0 have none.
#[derive(Default)]
struct RunDirectory {
    lock: Option<File>,
    /// The number of the next checkpoint.
    number: u64,
    best: BTreeMap<String, BestCheckpoint>,
}

/// Takes the directory for this run, and leaves a mark by which other ranks recognise it.
fn take(directory: &Directory, must_be_empty: bool) -> Result<RunDirectory> {
    let lock = directory.take()?;
    let unusable = |error| Error::checkpoint(directory.path(), format!("cannot be used: {error}"));
    if must_be_empty && !directory.is_empty().map_err(unusable)? {
        let what = "has checkpoints of an earlier run: continue it with --resume auto, name another directory, \
                    or remove them";
        return Err(Error::checkpoint(directory.path(), what));
    }
    let word = directory.word();
    fs::write(directory.mark(word), word).map_err(unusable)?;
    let number = directory.next_number().map_err(unusable)?;
    let best = directory.best().map_err(unusable)?;
    Ok(RunDirectory { lock: Some(lock), number, best })
}

/// Waits until this rank sees the mark of rank 0.
fn find_mark(directory: &Directory, word: &str) -> Result<()> {
    let begin = Instant::now();
    while !directory.mark(word).exists() {
        if begin.elapsed() > VISIBLE {
            let what = "is not the directory that rank 0 sees: all hosts need a common one";
            return Err(Error::checkpoint(directory.path(), what));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A word that no other run has: each process has random keys for its hash maps.
fn random_word() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}
