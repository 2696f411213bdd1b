//! Saving and resuming, as a training sees it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use candelabrum_dist::{Error as DistError, Group};

use super::directory::{Best, Directory, is_checkpoint};
use super::manifest::Manifest;
use super::newest::note_newest;
use super::part::Part;
use super::position::Position;
use super::restored::Restored;
use super::saving::{self, Job, Written};
use super::snapshot::Snapshot;
use crate::{Error, Metrics, Result};

/// The time for which rank 0 waits for the files of other ranks.
const PATIENCE: Duration = Duration::from_secs(60);

/// The time for which a rank waits until a network's file system shows what rank 0 has made.
const VISIBLE: Duration = Duration::from_secs(10);

/// The settings of checkpoints, the same on every rank.
#[derive(Clone, Debug)]
pub struct CheckpointConfig {
    /// The steps between two checkpoints. `None` makes one only at the end, and where a hook or a signal asks for
    /// one.
    pub every: Option<u64>,
    /// How many of the newest ones stay, at least 1. The best one stays, too.
    pub keep: usize,
    /// From where the training begins.
    pub resume: Resume,
}

impl Default for CheckpointConfig {
    /// The newest three, [`Resume::Auto`], and none but the last one by itself.
    fn default() -> Self {
        Self { every: None, keep: 3, resume: Resume::Auto }
    }
}

/// From where a training begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Resume {
    /// From the newest whole checkpoint in the directory, or anew if there is none.
    #[default]
    Auto,
    /// From this checkpoint, or from the newest whole one in this directory.
    From(PathBuf),
    /// Anew. A directory that has checkpoints is refused.
    Never,
}

impl FromStr for Resume {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        Ok(match text {
            "auto" => Self::Auto,
            "never" => Self::Never,
            path => Self::From(path.into()),
        })
    }
}

impl fmt::Display for Resume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::From(path) => write!(f, "{}", path.display()),
            Self::Never => f.write_str("never"),
        }
    }
}

/// What a checkpoint has beside its parts. All but the metrics must be the same on all ranks.
#[derive(Clone, Debug, Default)]
pub struct RunState {
    /// The next step.
    pub position: Position,
    /// What must be the same in a run that continues, by name: the seed, the data.
    pub settings: BTreeMap<String, String>,
    /// What else the training keeps: the states of hooks, for instance.
    pub shared: serde_json::Value,
    /// The counts of this rank in the epoch so far.
    pub metrics: Metrics,
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
}

/// What a call of [`Checkpoints::save`] has found.
#[derive(Clone, Debug, Default)]
pub struct Saved {
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
    /// The memory of the numbers, while nothing is being written.
    snapshot: Option<Snapshot>,
    writing: Option<JoinHandle<Written>>,
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
        let mut lock = None;
        let taken = if group.rank() == 0 {
            let must_be_empty = begins && config.resume == Resume::Never;
            take(&directory, must_be_empty).map(|taken| lock = Some(taken))
        } else {
            Ok(())
        };
        share(group, taken)?;
        share(group, find_mark(&directory, &word))?;
        if group.rank() == 0 {
            drop(fs::remove_file(mark(&directory, &word)));
            if begins {
                note_newest(0);
            }
        }
        let snapshot = Some(Snapshot::new(group.rank()));
        let group = group.clone();
        let (run, writing, last) = (word, None, None);
        Ok(Self { directory, group, config, run, snapshot, writing, last, _lock: lock })
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
    /// other settings. All ranks get the error, and nothing has changed.
    pub fn resume(
        &mut self,
        parts: &mut [(&str, &mut dyn Part)],
        settings: &BTreeMap<String, String>,
    ) -> Result<Option<Resumed>> {
        let (from, is_auto) = match &self.config.resume {
            Resume::Never => return Ok(None),
            Resume::Auto => (self.directory.path().to_owned(), true),
            Resume::From(path) => (path.clone(), false),
        };
        let candidates = self.candidates(&from)?;
        if candidates.is_empty() {
            return if is_auto { Ok(None) } else { Err(refuse(&from, "has no checkpoint")) };
        }
        let mut skipped = Vec::new();
        for path in candidates {
            let read = Restored::read(&path, self.group.rank(), self.group.world_size());
            // All ranks skip what one of them cannot read.
            if let Some(why) = first_error(&self.group, read.as_ref().err())? {
                skipped.push(why);
                continue;
            }
            let restored = read?;
            self.restore(parts, &restored, settings)?;
            let Manifest { position, settings, shared, world_size, run, .. } =
                restored.manifest().clone();
            self.run = run;
            if self.group.rank() == 0 {
                note_newest(position.step);
            }
            let state = RunState { position, settings, shared, metrics: restored.metrics() };
            return Ok(Some(Resumed { path, state, world_size, skipped }));
        }
        Err(refuse(&from, &format!("has no whole checkpoint: {}", skipped.join("; "))))
    }

    /// The directories that may be checkpoints, the newest first, as rank 0 sees them.
    fn candidates(&self, from: &Path) -> Result<Vec<PathBuf>> {
        let found = || -> Result<Vec<PathBuf>> {
            if is_checkpoint(from) {
                return Ok(vec![from.to_owned()]);
            }
            let directory = Directory::new(from, String::new());
            let steps = directory
                .steps()
                .map_err(|error| refuse(from, &format!("cannot be read: {error}")))?;
            Ok(steps.into_iter().map(|step| directory.of_step(step)).collect())
        };
        let own = if self.group.rank() == 0 { found() } else { Ok(Vec::new()) };
        let own = share(&self.group, own)?;
        let lines: Vec<String> = own.iter().map(|path| path.display().to_string()).collect();
        let lines = self.group.broadcast_text(&lines.join("\n"), 0)?;
        Ok(lines.lines().map(PathBuf::from).collect())
    }

    fn restore(
        &self,
        parts: &mut [(&str, &mut dyn Part)],
        restored: &Restored,
        settings: &BTreeMap<String, String>,
    ) -> Result<()> {
        let names = parts.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>();
        let checked = check_settings(restored, settings)
            .and_then(|()| check_names(restored, &names))
            .and_then(|()| {
                parts.iter_mut().try_for_each(|(name, part)| part.check(name, restored))
            });
        share(&self.group, checked)?;
        for (name, part) in parts {
            part.load(name, restored)?;
            part.params().set_noise_draws(restored.noise_draws(name));
        }
        Ok(())
    }

    /// Copies the state of `parts` and of the run, and has another thread write it. It first waits for the
    /// checkpoint before, if that is still being written. The ranks' models become one model
    /// ([`Part::average_parameters`]). `best` is the value by which this checkpoint is the best so far.
    ///
    /// # Errors
    /// A device's error, a failure of another rank, a passed deadline, or a thread that cannot be started. That a
    /// checkpoint could not be written is no error here, but [`Saved::failed`] of the next one, and an error of
    /// [`finish`](Self::finish).
    pub fn save(
        &mut self,
        parts: &mut [(&str, &mut dyn Part)],
        state: &RunState,
        best: Option<f64>,
    ) -> Result<Saved> {
        let begin = Instant::now();
        let _span = tracing::debug_span!(target: "candelabrum::run", "checkpoint").entered();
        let failed = self.wait()?;
        for (_, part) in &mut *parts {
            part.average_parameters()?;
        }
        let step = state.position.step;
        let mut snapshot = self.snapshot.take().unwrap_or_else(|| Snapshot::new(self.group.rank()));
        snapshot.begin();
        let mut manifest = Manifest::new(&self.run, state.position, self.group.world_size());
        let dir = self.directory.partial(step);
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
        let job = Job {
            directory: self.directory.clone(),
            rank: self.group.rank(),
            snapshot,
            manifest: (self.group.rank() == 0).then_some(manifest),
            step,
            keep: self.config.keep.max(1),
            best: best.map(|value| Best { step, value }),
            patience: PATIENCE,
        };
        let thread = saving::start(job);
        let refuse = |error| refuse(self.directory.path(), &format!("cannot be written: {error}"));
        self.writing = Some(thread.map_err(refuse)?);
        self.last = Some(step);
        Ok(Saved { path: self.directory.of_step(step), failed, took: begin.elapsed() })
    }

    /// Waits until the last checkpoint is on the disk.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if it could not be written, on all ranks, and a failure of another rank.
    pub fn finish(&mut self) -> Result<()> {
        match self.wait()? {
            None => Ok(()),
            Some(why) => {
                Err(refuse(self.directory.path(), &format!("has not the last checkpoint: {why}")))
            }
        }
    }

    /// Waits for the thread of this rank, and returns the first failure of any rank.
    fn wait(&mut self) -> Result<Option<String>> {
        let Some(thread) = self.writing.take() else { return Ok(None) };
        let step = self.last.unwrap_or_default();
        let outcome = match thread.join() {
            Ok(Written { snapshot, result, .. }) => {
                self.snapshot = Some(snapshot);
                result.map_err(|error| error.to_string())
            }
            Err(_) => Err("the thread that writes it has panicked".to_owned()),
        };
        let outcome = outcome.map_err(|what| {
            refuse(&self.directory.of_step(step), &format!("was not written: {what}"))
        });
        first_error(&self.group, outcome.as_ref().err())
    }
}

/// A run that ends by an error lets the last checkpoint be written.
impl Drop for Checkpoints {
    fn drop(&mut self) {
        if let Some(thread) = self.writing.take() {
            drop(thread.join());
        }
    }
}

/// Takes the directory for this run, and leaves a mark by which other ranks recognise it.
fn take(directory: &Directory, must_be_empty: bool) -> Result<File> {
    let lock = directory.take()?;
    let unusable = |error| refuse(directory.path(), &format!("cannot be used: {error}"));
    if must_be_empty && !directory.steps().map_err(unusable)?.is_empty() {
        let what = "has checkpoints of an earlier run: continue it with --resume auto, name another directory, \
                    or remove them";
        return Err(refuse(directory.path(), what));
    }
    let word = directory.word();
    fs::write(mark(directory, word), word).map_err(unusable)?;
    Ok(lock)
}

fn mark(directory: &Directory, word: &str) -> PathBuf {
    directory.path().join(format!(".mark-{word}"))
}

/// Waits until this rank sees the mark of rank 0.
fn find_mark(directory: &Directory, word: &str) -> Result<()> {
    let begin = Instant::now();
    while !mark(directory, word).exists() {
        if begin.elapsed() > VISIBLE {
            let what = "is not the directory that rank 0 sees: all hosts need a common one";
            return Err(refuse(directory.path(), what));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn check_settings(restored: &Restored, settings: &BTreeMap<String, String>) -> Result<()> {
    let saved = &restored.manifest().settings;
    for (name, here) in settings {
        if let Some(there) = saved.get(name).filter(|there| *there != here) {
            let (there, here) = (short(there), short(here));
            let what = format!(
                "was made with {name} `{there}`, this run has `{here}`: another run needs another directory"
            );
            return Err(refuse(restored.path(), &what));
        }
    }
    Ok(())
}

/// A digest by its first digits, and anything else as it is.
fn short(setting: &str) -> String {
    let is_digest = setting.len() == 64 && setting.bytes().all(|digit| digit.is_ascii_hexdigit());
    if is_digest { format!("{}…", &setting[..12]) } else { setting.to_owned() }
}

fn check_names(restored: &Restored, names: &[String]) -> Result<()> {
    match restored.manifest().parts.keys().find(|name| !names.contains(name)) {
        None => Ok(()),
        Some(name) => Err(refuse(
            restored.path(),
            &format!("has a part `{name}`, which this run does not have"),
        )),
    }
}

/// The result of this rank, unless another rank has failed. All ranks call it together.
fn share<T>(group: &Group, own: Result<T>) -> Result<T> {
    let first = first_failure(group, own.as_ref().err())?;
    match (own, first) {
        (own, None) | (own @ Err(_), _) => own,
        (Ok(_), Some((peer, message))) => {
            Err(DistError::PeerFailed { peer: group.ranks()[peer], message }.into())
        }
    }
}

/// The first error of any rank, with its rank if there are several.
fn first_error(group: &Group, own: Option<&Error>) -> Result<Option<String>> {
    let first = first_failure(group, own)?;
    let many = group.world_size() > 1;
    Ok(first.map(|(rank, why)| if many { format!("rank {rank}: {why}") } else { why }))
}

fn first_failure(group: &Group, own: Option<&Error>) -> Result<Option<(usize, String)>> {
    let own = own.map(ToString::to_string).unwrap_or_default();
    let texts = if group.world_size() == 1 { vec![own] } else { group.all_gather_text(&own)? };
    Ok(texts.into_iter().enumerate().find(|(_, text)| !text.is_empty()))
}

fn refuse(path: &Path, what: &str) -> Error {
    Error::Checkpoint { path: path.to_owned(), what: what.to_owned() }
}

/// A word that no other run has: each process has random keys for its hash maps.
fn random_word() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}
