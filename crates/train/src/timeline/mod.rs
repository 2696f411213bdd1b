//! Where the time of every rank goes, span by span: a Chrome trace for Perfetto and chrome://tracing.
//!
//! The libraries mark what they do with spans of `tracing`, which cost next to nothing while nobody
//! listens. A [`Timeline`] listens: each thread records into a buffer of its own ([`record`]), all
//! ranks' times have one origin ([`clock`]), and rank 0 writes the one file ([`chrome`]).
//!
//! The crate tracing-chrome was weighed and left out: it has one fixed process number, an origin of
//! its own in every process, fields as text only, and a thread that panics where it cannot write.

mod chrome;
mod clock;
mod record;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use candelabrum_dist::World;
use tracing_subscriber::layer::SubscriberExt;

use self::clock::Clock;
use self::record::{Recorder, Recording};
use crate::whole_file::write_whole;
use crate::{Error, Result};

/// The recording of one run: what every rank and thread did when.
///
/// Only one in the life of a process, and only where no other subscriber of `tracing` is installed.
/// All ranks must start and finish it together. Where it is dropped unfinished, because this rank
/// failed, it writes what this rank has to `FILE.rankN`, on this rank's host.
#[derive(Debug)]
pub struct Timeline(Arc<Part>);

/// What this rank recorded, and where it goes.
#[derive(Debug)]
struct Part {
    path: PathBuf,
    rank: usize,
    recorder: Arc<Recorder>,
    /// Whether it has gone somewhere.
    written: Mutex<bool>,
}

impl Timeline {
    /// Starts to record, on all ranks at once. Times of ranks on one host are those of the clock
    /// that they share; clocks of several hosts are aligned by a barrier here, which is as exact as
    /// the ranks leave it at the same time.
    ///
    /// # Errors
    /// [`Error::Timeline`] for a file that cannot be written or a second subscriber of `tracing`;
    /// what goes wrong between ranks.
    pub fn start(path: &Path, world: &World) -> Result<Self> {
        let part = part_path(path, world.rank());
        // Shows that it can be written, and takes away what an earlier run left.
        fs::File::create(&part)
            .and_then(|_| fs::remove_file(&part))
            .map_err(|source| Error::Timeline { path: part, source })?;
        let clock = Clock::shared(world.comm())?;
        let recorder = Arc::new(Recorder::new(clock));
        let layer = Recording(Arc::clone(&recorder));
        let subscriber = tracing_subscriber::registry().with(layer);
        if tracing::subscriber::set_global_default(subscriber).is_err() {
            let source = io::Error::other("this process has another subscriber of `tracing`");
            return Err(Error::Timeline { path: path.to_owned(), source });
        }
        let (path, rank) = (path.to_owned(), world.rank());
        Ok(Self(Arc::new(Part { path, rank, recorder, written: Mutex::new(false) })))
    }

    /// Stops recording and writes the file, on rank 0, out of what all ranks send it.
    ///
    /// # Errors
    /// [`Error::Timeline`] for a file that cannot be written; what goes wrong between ranks.
    pub fn finish(self, world: &World) -> Result<()> {
        let own = chrome::events(self.0.rank, &self.0.recorder.finish());
        let parts = gather(world, own)?;
        if world.is_root() {
            let path = &self.0.path;
            write_document(path, &parts)
                .map_err(|source| Error::Timeline { path: path.clone(), source })?;
        }
        self.0.is_written();
        Ok(())
    }

    /// Writes what this rank has, for a process that is about to end in the middle of everything.
    pub(crate) fn last_words(&self) -> impl Fn() + Send + Sync + use<> {
        let part = Arc::downgrade(&self.0);
        move || {
            if let Some(part) = part.upgrade() {
                part.write();
            }
        }
    }

    /// Refuses at the start a path that could not be written at the end.
    ///
    /// # Errors
    /// [`Error::Timeline`].
    pub fn check_path(path: &Path) -> Result<()> {
        crate::report::writable(path)
            .map_err(|source| Error::Timeline { path: path.to_owned(), source })
    }
}

impl Part {
    /// Notes that the part has gone somewhere; gives whether it had before.
    fn is_written(&self) -> bool {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut written, true)
    }

    /// Best effort: the error for which it is written matters more than one here.
    fn write(&self) {
        if !self.is_written() {
            let events = chrome::events(self.rank, &self.recorder.finish());
            drop(write_document(&part_path(&self.path, self.rank), &[events]));
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.write();
    }
}

/// Where a rank that fails leaves what it has.
fn part_path(path: &Path, rank: usize) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".rank{rank}"));
    name.into()
}

/// On rank 0 every rank's events, in rank order; one after the other, so that no other rank needs
/// room for them.
fn gather(world: &World, own: String) -> Result<Vec<String>> {
    let comm = world.comm();
    let lens = comm.all_gather(&[own.len() as i64])?;
    if !world.is_root() {
        comm.send(own.as_bytes(), 0)?;
        return Ok(Vec::new());
    }
    let mut parts = vec![own];
    for (from, &len) in lens.iter().enumerate().skip(1) {
        let mut bytes = vec![0_u8; usize::try_from(len).unwrap_or_default()];
        comm.recv(&mut bytes, from)?;
        parts.push(String::from_utf8_lossy(&bytes).into_owned());
    }
    Ok(parts)
}

/// Writes a document of these parts, whole or not at all.
fn write_document(path: &Path, parts: &[String]) -> io::Result<()> {
    write_whole(path, |mut out| chrome::write_document(&mut out, parts))
}
