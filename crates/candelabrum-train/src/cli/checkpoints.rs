//! The options of checkpoints.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::Result;
use crate::checkpoint::{CheckpointConfig, Resume};
use crate::hooks::ExportBest;
use crate::options::{parse_positive, reject};

/// Options of checkpoints.
#[derive(Args, Clone, Debug)]
pub struct CheckpointArgs {
    /// The directory of this run's checkpoints. The run continues the newest one in it, saves its state at the end
    /// and after SIGINT (Ctrl-C), SIGTERM and SIGHUP, and every --checkpoint-every steps. All hosts must see it
    #[arg(long, value_name = "DIR")]
    pub checkpoint_dir: Option<PathBuf>,

    /// How they are made.
    #[command(flatten)]
    pub config: CheckpointConfig,

    /// Make a checkpoint after each evaluation whose loss is one of the K best so far, and keep these K (1 without a
    /// number); the file best.json in --checkpoint-dir names them
    #[arg(long, value_name = "K", num_args = 0..=1, default_missing_value = "1", value_parser = parse_positive)]
    pub keep_best: Option<usize>,

    /// When the run ends, write the weights of the best checkpoint, or its average with --ema or --swa, to this
    /// safetensors file; the run keeps the best checkpoint as with --keep-best
    #[arg(long, value_name = "FILE")]
    pub export_best: Option<PathBuf>,
}

impl CheckpointArgs {
    /// The directory and the settings of these options. `None` without a directory.
    pub fn config(&self) -> Option<(PathBuf, CheckpointConfig)> {
        Some((self.checkpoint_dir.clone()?, self.config.clone()))
    }

    /// The number of the best checkpoints that stay, if the run keeps any.
    pub(super) fn best(&self) -> Option<usize> {
        self.keep_best.or(self.export_best.as_ref().map(|_| 1))
    }

    /// Rejects options that contradict each other.
    pub(super) fn check(&self) -> Result<()> {
        let Self { checkpoint_dir, config, keep_best, export_best } = self;
        let CheckpointConfig { every, keep, resume } = config;
        let has_no_dir = checkpoint_dir.is_none();
        let export = export_best.as_deref().unwrap_or(Path::new("")).display();
        let with = "used with --checkpoint-dir";
        reject(&[
            ("--checkpoint-every", *every == Some(0), &"0", "at least 1"),
            ("--checkpoint-keep", *keep == 0, &"0", "at least 1"),
            ("--keep-best", has_no_dir && keep_best.is_some(), &"set", with),
            ("--export-best", has_no_dir && export_best.is_some(), &export, with),
            ("--checkpoint-every", has_no_dir && every.is_some(), &every.unwrap_or(0), with),
            ("--resume", has_no_dir && matches!(resume, Resume::From(_)), resume, with),
        ])?;
        export_best.as_deref().map_or(Ok(()), ExportBest::check_path)
    }
}
