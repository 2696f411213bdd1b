//! The errors of `candelabrum run` itself, and their exit codes, which are those of a shell.

use std::ffi::OsStr;
use std::io::ErrorKind;

use candelabrum_dist::Error as DistError;

/// A result with [`StartFailure`].
pub(super) type Result<T> = std::result::Result<T, StartFailure>;

/// A reason why the ranks cannot be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartFailure {
    /// Options or files of the user that cannot be used. The message says what to do.
    #[error("{0}")]
    Usage(String),
    /// A program that is not there.
    #[error("{0}")]
    NotFound(String),
    /// A program that cannot be executed.
    #[error("{0}")]
    NotExecutable(String),
    /// The system, or a setting that the library refuses.
    #[error(transparent)]
    Dist(#[from] DistError),
}

impl StartFailure {
    /// The exit code of this program.
    pub(super) fn code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Dist(DistError::Setting { .. } | DistError::Launch { .. }) => 2,
            Self::NotFound(_) => 127,
            Self::NotExecutable(_) => 126,
            Self::Dist(_) => 1,
        }
    }
}

impl StartFailure {
    /// The error of a program that could not be started, although its file is there.
    pub(super) fn of_start(error: DistError, program: &OsStr) -> Self {
        let DistError::Io { source, .. } = &error else { return Self::Dist(error) };
        let shown = program.to_string_lossy();
        match source.kind() {
            ErrorKind::NotFound => Self::NotFound(format!(
                "`{shown}` cannot be started: is the interpreter in its first line there? ({error})"
            )),
            ErrorKind::PermissionDenied => {
                Self::NotExecutable(format!("`{shown}` cannot be executed: {error}"))
            }
            _ => Self::Dist(error),
        }
    }
}
