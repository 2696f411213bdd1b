//! The log of a training run: a directory that grows while the run trains, and what reads it.
//!
//! | idea | where |
//! |---|---|
//! | what can happen in a run | [`Event`], [`EventKind`], [`names`] |
//! | the log that rank 0 writes | [`RunLog`] |
//! | a place where events go | [`EventSink`]: [`JsonLines`], [`Csv`], [`TensorBoard`], [`ProgressLines`], or your own |
//! | how often a step is written | [`TrainWindow`] |
//! | where the memory of a step was | [`Memory`] |
//! | numbers in JSON, NaN and infinities too | [`Number`] |
//! | a log as data, also while it grows | [`LogReader`], [`RunHistory`], [`Series`] |
//!
//! ```
//! use candelabrum_runlog::{EventKind, LogReader, Measured, RunLog, Settings, names};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let dir = folder.path().join("run");
//! let settings = Settings { epochs: Some(1), steps: Some(2), ..Settings::new(1, "0.1.0") };
//! let mut log = RunLog::create(&dir, settings)?;
//! for step in 1..=2 {
//!     let values = [(names::LOSS.to_owned(), 1.0 / step as f64)].into();
//!     for error in log.event(EventKind::Train(Measured { step, epoch: 0, values })) {
//!         eprintln!("note: {error}");
//!     }
//! }
//! drop(log);
//! let mut reader = LogReader::open(&dir)?;
//! reader.poll()?;
//! assert_eq!(reader.run().series["train/loss"].points()[1].value, 0.5);
//! # Ok::<(), candelabrum_runlog::Error>(())
//! ```

#![forbid(unsafe_code)]

mod csv;
mod error;
mod event;
mod file;
mod json_lines;
mod lines;
mod log;
mod memory;
mod pace;
mod reader;
mod run;
mod series;
mod sink;
mod tensorboard;
mod window;

pub mod number;

pub use self::csv::{CSV_FILE, Csv};
pub use error::{Error, Result};
pub use event::{
    Checkpoint, EndEvent, EpochEnd, Event, EventKind, Measured, NamedValues, ResumePoint, Settings,
    names,
};
pub use json_lines::{JSON_LINES_FILE, JsonLines};
pub use lines::ProgressLines;
pub use log::RunLog;
pub use memory::{Amount, Memory, SAVED};
pub use number::Number;
pub use pace::{RunPace, duration_in_words};
pub use reader::{Broken, IncompleteLine, LogReader};
pub use run::{Repeated, RunHistory, Stamped};
pub use series::{Series, SeriesPoint};
pub use sink::EventSink;
pub use tensorboard::TensorBoard;
pub use window::TrainWindow;

/// Compiles the code of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/watching.md")]
mod watching {}
