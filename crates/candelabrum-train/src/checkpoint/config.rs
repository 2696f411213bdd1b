//! The settings of checkpoints.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The settings of checkpoints, the same on every rank.
#[derive(Clone, Debug)]
pub struct CheckpointConfig {
    /// The steps between two checkpoints. `None` makes one only at the end, and where a hook or a signal asks for
    /// one.
    pub every: Option<u64>,
    /// How many of the newest ones stay, at least 1. The best ones stay, too.
    pub keep: usize,
    /// From where the training begins.
    pub resume: Resume,
}

impl Default for CheckpointConfig {
    /// The newest three, [`Resume::Auto`], and none but the last one by itself.
    fn default() -> Self {
        Self { every: None, keep: 3, resume: Resume::Auto }
    }
}

/// From where a training begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Resume {
    /// From the newest whole checkpoint in the directory, or anew if there is none.
    #[default]
    Auto,
    /// From this checkpoint, or from the newest whole one in this directory. Checkpoints that the directory of the
    /// run has beyond it are [abandoned](super::Checkpoints::abandon). When a launcher starts the run again, it
    /// continues the newest checkpoint that it has made since.
    From(PathBuf),
    /// Anew. A directory that has checkpoints is refused.
    Never,
}

impl FromStr for Resume {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "auto" => Self::Auto,
            "never" => Self::Never,
            path => Self::From(path.into()),
        })
    }
}

impl fmt::Display for Resume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::From(path) => write!(f, "{}", path.display()),
            Self::Never => f.write_str("never"),
        }
    }
}
