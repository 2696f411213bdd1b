//! The settings of checkpoints.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use crate::options::defaults;

/// The settings of checkpoints, the same on every rank. Without `every`, a run makes one only at the end, and where a hook
/// or a signal asks for one.
#[derive(Args, Clone, Debug)]
pub struct CheckpointConfig {
    /// The steps between two checkpoints
    #[arg(id = "checkpoint_every", long = "checkpoint-every", value_name = "STEPS")]
    pub every: Option<u64>,

    /// How many of the newest checkpoints stay, and the best ones besides
    #[arg(id = "checkpoint_keep", long = "checkpoint-keep", value_name = "N", default_value_t = 3)]
    pub keep: usize,

    /// From where the training begins: auto (the newest whole checkpoint in --checkpoint-dir, if there is one), a
    /// checkpoint or a directory of some, or never
    #[arg(long, value_name = "auto|PATH|never", default_value_t = Resume::Auto)]
    pub resume: Resume,
}

impl Default for CheckpointConfig {
    /// The newest three, [`Resume::Auto`], and none but the last one by itself.
    fn default() -> Self {
        defaults()
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
