//! What can go wrong while the kit is built.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The result of building the kit.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the kit could not be built.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder could not be read or written.
    File {
        /// What was tried, such as `read`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A program could not be started.
    Start {
        /// The command.
        command: String,
        /// The system's error.
        source: io::Error,
    },
    /// A program failed.
    Failed {
        /// The command.
        command: String,
        /// What it printed on stderr.
        output: String,
    },
    /// cargo does not know the package cudarc, of which the archives are made.
    NoCudarc,
}

impl Error {
    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_path_buf();
        move |source| Error::File { action, path, source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::File { action, path, .. } => write!(f, "cannot {action} {}", path.display()),
            Error::Start { command, .. } => write!(f, "cannot start `{command}`"),
            Error::Failed { command, output } => write!(f, "`{command}` failed:\n{output}"),
            Error::NoCudarc => {
                write!(f, "`cargo metadata` lists no package cudarc: is this the whole workspace?")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::File { source, .. } | Error::Start { source, .. } => Some(source),
            Error::Failed { .. } | Error::NoCudarc => None,
        }
    }
}
