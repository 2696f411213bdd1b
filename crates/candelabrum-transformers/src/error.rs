//! The error type of this crate.

use std::path::{Path, PathBuf};

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any error between the folder of a pretrained model and its next token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation on a file or folder.
    #[error("{}: cannot {operation}: {reason}", path.display())]
    Io {
        /// The operation, as a verb: `open`, `read`, `create`.
        operation: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error. The message has its text, so it is no source, which programs print, too.
        reason: std::io::Error,
    },
    /// A file or folder is not as it must be.
    #[error("{}: {what}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong and, if there is a remedy, what to do.
        what: String,
    },
    /// An argument makes no sense, or does not fit the model.
    #[error("{what}")]
    Argument {
        /// What is wrong and, if there is a remedy, what to do.
        what: String,
    },
    /// An error of the model's layers or parameters.
    #[error(transparent)]
    Nn(#[from] candelabrum_nn::Error),
    /// An error of the data.
    #[error(transparent)]
    Data(#[from] candelabrum_datasets::Error),
    /// candle's own error.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl Error {
    pub(crate) fn file(path: impl AsRef<Path>, what: impl Into<String>) -> Self {
        Self::File { path: path.as_ref().to_owned(), what: what.into() }
    }

    pub(crate) fn argument(what: impl Into<String>) -> Self {
        Self::Argument { what: what.into() }
    }

    pub(crate) fn io(
        operation: &'static str,
        path: impl AsRef<Path>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_owned();
        move |reason| Self::Io { operation, path, reason }
    }
}
