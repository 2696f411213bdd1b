//! TensorBoard event files: every value as a scalar, with tags such as `train/loss`.
//!
//! The format has two small parts: records (`record.rs`) and protobuf messages (`message.rs`). They are
//! written here because no crate that writes event files is kept up. `tensorboard-rs` 0.5.9 is of
//! March 2022 and brings `protobuf` 2 and an `image` of that time, `tboard` 0.1.1 and `tfrecord` 0.15
//! use `prost` 0.12 and need the compiler `protoc`, or files that it made, for the build.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use self::message::{EventContent, EventMessage, ScalarSummary, SessionLog};
use crate::event::Figures;
use crate::file::LogFile;
use crate::{Error, Event, EventKind, EventSink, Result};

mod message;
mod record;

/// The beginning of a file's name, by which TensorBoard finds it.
const PREFIX: &str = "events.out.tfevents.";

/// Writes each value of an event as a scalar. Scalars have 32 bits, as those of other writers do.
#[derive(Debug)]
pub struct TensorBoard(LogFile);

impl TensorBoard {
    /// A new file in this directory. A run that goes on begins another file: TensorBoard reads all files
    /// of a directory as one run, in the order of their names.
    ///
    /// # Errors
    /// If the directory cannot be read or the file cannot be written.
    pub fn create(dir: &Path) -> Result<Self> {
        let now = Event::now(EventKind::Note { text: String::new() }).time;
        let latest = latest(dir).map_err(|source| Error::Read { path: dir.to_owned(), source })?;
        // A run that goes on in the second of its crash, or after the clock was set back.
        let stamp = (now as u64).max(latest.map_or(0, |latest| latest.saturating_add(1)));
        let host = rustix::system::uname().nodename().to_string_lossy().replace('/', "_");
        let name = format!("{PREFIX}{stamp:010}.{host}.{}.0", std::process::id());
        let mut board = Self(LogFile::create(&dir.join(name))?);
        board.write(now, 0, EventContent::FileVersion("brain.Event:2".to_owned()))?;
        Ok(board)
    }

    fn write(&mut self, time: f64, step: u64, what: EventContent) -> Result<()> {
        let step = i64::try_from(step).unwrap_or(i64::MAX);
        let record = record::frame(&EventMessage { wall_time: time, step, what: Some(what) });
        self.0.write_all(&record).map_err(|error| self.0.failed(error))
    }
}

/// The largest time in the names of the event files of a directory.
fn latest(dir: &Path) -> io::Result<Option<u64>> {
    let mut latest = None;
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let stamp = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('.').next());
        latest = latest.max(stamp.and_then(|stamp| stamp.parse().ok()));
    }
    Ok(latest)
}

impl EventSink for TensorBoard {
    fn name(&self) -> String {
        self.0.name()
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        // TensorBoard forgets all events of this step and of later ones.
        if let EventKind::Resume(resume) = &event.kind {
            let next = resume.step.saturating_add(1);
            return self.write(event.time, next, EventContent::SessionLog(SessionLog::started()));
        }
        let Some(Figures { step, kind, mut values, .. }) = event.kind.figures() else {
            return Ok(());
        };
        values.sort_by_key(|(name, _)| *name);
        let scalar = |(name, value): (&str, f64)| (format!("{kind}/{name}"), value as f32);
        let summary = ScalarSummary::new(values.into_iter().map(scalar));
        if summary.is_empty() {
            return Ok(());
        }
        self.write(event.time, step, EventContent::Summary(summary))
    }

    fn flush(&mut self) -> Result<()> {
        self.0.flush_checked()
    }
}
