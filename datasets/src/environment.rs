//! The environment variables for directories of data. No other module reads the environment.

use std::{env, path::PathBuf};

/// The values of the environment variables. Empty variables count as unset.
///
/// This is a value and not a look-up, so that a test can pass its own. Changing the environment of
/// a process would be a race with its other threads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// `$MNIST_DIR`: a directory with the four files of MNIST.
    pub mnist_dir: Option<PathBuf>,
    /// `$CANDELABRUM_CACHE`: the directory for downloads.
    pub candelabrum_cache: Option<PathBuf>,
    /// `$XDG_CACHE_HOME`: the directory of all programs' caches.
    pub xdg_cache_home: Option<PathBuf>,
    /// `$HOME`.
    pub home: Option<PathBuf>,
}

impl Environment {
    /// The environment of this process.
    pub fn of_process() -> Self {
        let path = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self {
            mnist_dir: path("MNIST_DIR"),
            candelabrum_cache: path("CANDELABRUM_CACHE"),
            xdg_cache_home: path("XDG_CACHE_HOME"),
            home: path("HOME"),
        }
    }
}
