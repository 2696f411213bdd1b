//! The time of every rank, span by span, as a Chrome trace for Perfetto and chrome://tracing.
//!
//! The libraries mark their work with spans of `tracing`, which cost almost nothing without a
//! subscriber. A [`Timeline`] subscribes: each thread records into its own buffer ([`record`]), all
//! ranks' times have one origin ([`clock`]), and rank 0 writes the file ([`chrome`]).
//!
//! The crate tracing-chrome is not suitable: it has one fixed process number, its own origin of
//! time in every process, fields as text only, and a thread that panics if it cannot write.

mod chrome;
mod clock;
mod record;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candelabrum_datasets::write_whole;
use candelabrum_dist::World;
use tracing_subscriber::layer::SubscriberExt;

use self::clock::TimelineClock;
use self::record::{Recorder, Recording};
use crate::{Error, Result};

/// The recording of one run: all spans of every rank and thread, with their times.
///
/// A process can record only once, and only if no other subscriber of `tracing` is installed. All
/// ranks must start and finish the recording together. If this rank fails and the recording is
/// dropped unfinished, it writes this rank's part to `FILE.rankN`, on this rank's host.
#[derive(Debug)]
pub struct Timeline(Arc<TimelinePart>);

/// The recording of this rank, and its destination.
#[derive(Debug)]
struct TimelinePart {
    path: PathBuf,
    rank: usize,
    recorder: Arc<Recorder>,
    /// Whether the part has been written or sent.
    written: Mutex<bool>,
}

impl Timeline {
    /// Starts to record, on all ranks at once. Ranks on one host use the clock that they share.
    /// Clocks of several hosts are aligned by a barrier here. The alignment is as exact as the
    /// ranks' leaving the barrier is simultaneous.
    ///
    /// # Errors
    /// [`Error::Write`] for a file that cannot be written or a second subscriber of `tracing`,
    /// and errors of the communication between ranks.
    pub fn start(path: &Path, world: &World) -> Result<Self> {
        let part = part_path(path, world.rank());
        // Checks that the file can be written, and removes the file of an earlier run.
        fs::File::create(&part)
            .and_then(|_| fs::remove_file(&part))
            .map_err(Error::write("timeline", &part))?;
        let clock = TimelineClock::shared(world.comm())?;
        let recorder = Arc::new(Recorder::new(clock));
        let layer = Recording(Arc::clone(&recorder));
        let subscriber = tracing_subscriber::registry().with(layer);
        if tracing::subscriber::set_global_default(subscriber).is_err() {
            let source = io::Error::other("this process has another subscriber of `tracing`");
            return Err(Error::write("timeline", path)(source));
        }
        let (path, rank) = (path.to_owned(), world.rank());
        Ok(Self(Arc::new(TimelinePart { path, rank, recorder, written: Mutex::new(false) })))
    }

    /// Stops recording. Rank 0 writes the file from the parts of all ranks.
    ///
    /// # Errors
    /// [`Error::Write`] for a file that cannot be written, and errors of the communication
    /// between ranks.
    pub fn finish(self, world: &World) -> Result<()> {
        let own = chrome::events(self.0.rank, &self.0.recorder.finish());
        let parts = gather(world, own)?;
        if world.is_root() {
            let path = &self.0.path;
            write_document(path, &parts).map_err(Error::write("timeline", path))?;
        }
        *self.0.written() = true;
        Ok(())
    }

    /// Writes this rank's part. For a process that is about to end before it finishes.
    pub(crate) fn last_words(&self) -> impl Fn() + Send + Sync + use<> {
        let part = Arc::clone(&self.0);
        move || part.write()
    }

    /// Refuses, before the run, a path to which the timeline could not be written.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn check_path(path: &Path) -> Result<()> {
        crate::report::writable(path).map_err(Error::write("timeline", path))
    }
}

impl TimelinePart {
    fn written(&self) -> MutexGuard<'_, bool> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the part, once. A second thread waits here until the first one has written it, because
    /// either of them may end the process afterwards. Ignores errors, because the part is written
    /// after a more important error.
    fn write(&self) {
        let mut written = self.written();
        if !*written {
            let events = chrome::events(self.rank, &self.recorder.finish());
            drop(write_document(&part_path(&self.path, self.rank), &[events]));
            *written = true;
        }
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        self.0.write();
    }
}

/// The file for the part of a rank that fails.
fn part_path(path: &Path, rank: usize) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".rank{rank}"));
    name.into()
}

/// On rank 0: every rank's events, in rank order. Rank 0 receives from one rank after the other,
/// and no other rank needs memory for all events.
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

/// Writes a document of these parts. After an error there is no partial file.
fn write_document(path: &Path, parts: &[String]) -> io::Result<()> {
    write_whole(path, |mut out| chrome::write_document(&mut out, parts))
}
