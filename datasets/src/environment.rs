//! The environment variables that say where data lies: read here and nowhere else.

use std::{env, path::PathBuf};

/// What the environment says. Empty variables count as unset.
///
/// A value, and not a look-up, so that a test can pass its own: changing the environment of a
/// process is a race with its other threads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// `$MNIST_DIR`: a directory with the four files of MNIST.
    pub mnist_dir: Option<PathBuf>,
    /// `$CANDELABRUM_CACHE`: where downloads go.
    pub candelabrum_cache: Option<PathBuf>,
    /// `$XDG_CACHE_HOME`: where the caches of all programs are.
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
