//! The options of checkpoints.

use std::convert::Infallible;
use std::path::PathBuf;

use clap::Args;

use super::numbers::parse_positive;
use crate::checkpoint::{CheckpointConfig, Resume};
use crate::hooks::ExportBest;
use crate::{Error, Result};

/// Options of checkpoints.
#[derive(Args, Clone, Debug)]
pub struct CheckpointArgs {
    /// The directory of this run's checkpoints. The run continues the newest one in it, saves its state at the end
    /// and after SIGINT (Ctrl-C), SIGTERM and SIGHUP, and every --checkpoint-every steps. All hosts must see it
    #[arg(long, value_name = "DIR")]
    pub checkpoint_dir: Option<PathBuf>,

    /// The steps between two checkpoints
    #[arg(long, value_name = "STEPS")]
    pub checkpoint_every: Option<u64>,

    /// How many of the newest checkpoints stay, and the best ones besides
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub checkpoint_keep: usize,

    /// Make a checkpoint after each evaluation whose loss is one of the K best so far, and keep these K (1 without a
    /// number); the file best.json in --checkpoint-dir names them
    #[arg(long, value_name = "K", num_args = 0..=1, default_missing_value = "1", value_parser = parse_positive)]
    pub keep_best: Option<usize>,

    /// When the run ends, write the weights of the best checkpoint, or its average with --ema or --swa, to this
    /// safetensors file; the run keeps the best checkpoint as with --keep-best
    #[arg(long, value_name = "FILE")]
    pub export_best: Option<PathBuf>,

    /// From where the training begins: auto (the newest whole checkpoint in --checkpoint-dir, if there is one), a
    /// checkpoint or a directory of some, or never
    #[arg(long, value_name = "auto|PATH|never", default_value = "auto", value_parser = parse_resume)]
    pub resume: Resume,
}

impl CheckpointArgs {
    /// The directory and the settings of these options. `None` without a directory.
    pub fn config(&self) -> Option<(PathBuf, CheckpointConfig)> {
        let dir = self.checkpoint_dir.clone()?;
        let &Self { checkpoint_every: every, checkpoint_keep: keep, .. } = self;
        Some((dir, CheckpointConfig { every, keep, resume: self.resume.clone() }))
    }

    /// The number of the best checkpoints that stay, if the run keeps any.
    pub(super) fn best(&self) -> Option<usize> {
        self.keep_best.or(self.export_best.as_ref().map(|_| 1))
    }

    /// Refuses options that contradict each other.
    pub(super) fn check(&self) -> Result<()> {
        if self.checkpoint_every == Some(0) {
            return Err(Error::option("--checkpoint-every", &"0", "at least 1"));
        }
        if self.checkpoint_keep == 0 {
            return Err(Error::option("--checkpoint-keep", &"0", "at least 1"));
        }
        if self.checkpoint_dir.is_none() {
            let with = "used with --checkpoint-dir";
            if self.keep_best.is_some() {
                return Err(Error::option("--keep-best", &"set", with));
            }
            if let Some(path) = &self.export_best {
                return Err(Error::option("--export-best", &path.display(), with));
            }
            if let Some(every) = self.checkpoint_every {
                return Err(Error::option("--checkpoint-every", &every, with));
            }
            if let Resume::From(path) = &self.resume {
                return Err(Error::option("--resume", &path.display(), with));
            }
        }
        self.export_best.as_deref().map_or(Ok(()), ExportBest::check_path)
    }
}

fn parse_resume(text: &str) -> std::result::Result<Resume, Infallible> {
    text.parse()
}
