//! Errors of writing and reading a log.

use std::io;
use std::path::PathBuf;

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong with a log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such directory.
    #[error("there is no directory {}", dir.display())]
    NoDirectory {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory has no log.
    #[error("{} is no log of a run: it has no file {file}", dir.display())]
    NoLog {
        /// The directory.
        dir: PathBuf,
        /// The file that every log has.
        file: &'static str,
    },
    /// A new log would overwrite an earlier one.
    #[error(
        "{} belongs to the log of an earlier run: choose another directory, or remove the old log",
        path.display()
    )]
    Exists {
        /// The file that is in the way.
        path: PathBuf,
    },
    /// The directory's log has lines, but none of them is an event.
    #[error("{} is no log of a run: no line is an event. Line {line}: {reason}", path.display())]
    NoEvent {
        /// The file.
        path: PathBuf,
        /// The number of the first line that is none, from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A file or directory could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file or directory could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file of the log was removed while the run was writing it.
    #[error("{} was removed or replaced while the run was writing it", path.display())]
    Removed {
        /// The path.
        path: PathBuf,
    },
    /// A sink failed, and gets no more events.
    #[error("the run goes on, but {sink} gets no more events: {source}")]
    Off {
        /// The sink's name.
        sink: String,
        /// What happened.
        source: Box<Error>,
    },
    /// The system refused a thread for flushing the log.
    #[error("cannot start the thread that flushes the log: {source}")]
    Thread {
        /// The system's error.
        source: io::Error,
    },
    /// A sink that is not part of this crate failed.
    #[error("{reason}")]
    Other {
        /// What happened.
        reason: String,
    },
}
