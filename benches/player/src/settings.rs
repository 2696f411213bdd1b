//! The settings of a training.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use candelabrum::nn::DistOption;
use candelabrum::prelude::Shard;
use candelabrum::train::cli::{Precision, RecomputedBlocks};
use clap::{Parser, ValueEnum};

use crate::networks::{self, Network};

/// The settings of a training, as options of the program.
#[derive(Clone, Debug, Parser)]
pub(crate) struct TrainingSettings {
    #[arg(long, default_value = "ours")]
    pub(crate) contender: ContenderKind,
    #[arg(long, value_parser = networks::find)]
    pub(crate) network: &'static Network,
    /// Examples in a rank's batch
    #[arg(long)]
    pub(crate) batch_size: NonZeroUsize,
    /// Compute threads of each rank
    #[arg(long, default_value = "1")]
    pub(crate) threads: NonZeroUsize,
    /// Steps before the first sample
    #[arg(long, default_value_t = 2)]
    pub(crate) warm_up: usize,
    /// The type of parameters and activations
    #[arg(long, default_value = "f32")]
    pub(crate) precision: Precision,
    /// Record the step as CUDA graphs and replay them; a step that is not recorded is an error
    #[arg(long)]
    pub(crate) graph: bool,
    /// How ranks exchange gradients
    #[arg(long, default_value_t = DistOption::Fp32)]
    pub(crate) strategy: DistOption,
    /// Share of the elements that sparseTopK sends, or magnitude from which on sparseThreshold sends
    #[arg(long, default_value_t = 0.05)]
    pub(crate) spars: f32,
    /// Share nothing with the other ranks while training: the bound by which they are measured
    #[arg(long)]
    pub(crate) strangers: bool,
    /// Make a checkpoint in a directory for temporary files every so many steps; 0 never does
    #[arg(long, default_value_t = 0)]
    pub(crate) checkpoint_every: u64,
    /// Train with AdamW instead of SGD with momentum
    #[arg(long)]
    pub(crate) adamw: bool,
    /// Blocks of the network `gpt`
    #[arg(long, value_name = "N", default_value = "6")]
    pub(crate) blocks: NonZeroUsize,
    /// The blocks that are computed again in the backward pass
    #[arg(long, value_enum, default_value_t)]
    pub(crate) recompute: RecomputedBlocks,
    /// What is sharded over the ranks
    #[arg(long, default_value_t)]
    pub(crate) shard: Shard,
    /// The learning rate [default: 0.001 with --adamw, 0.005 without]
    #[arg(long)]
    pub(crate) lr: Option<f64>,
    /// A file of batches that `problem` wrote, instead of drawn ones
    #[arg(long, value_name = "FILE")]
    pub(crate) problem: Option<PathBuf>,
    /// Whether units of gradients leave during the backward pass.
    #[arg(skip = true)]
    pub(crate) overlap: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ContenderKind {
    Ours,
    Candle,
}

impl TrainingSettings {
    /// The compute threads of a rank. `None` for candle, which knows no ranks and keeps its defaults:
    /// there RAYON_NUM_THREADS, which the caller sets, limits both of its pools.
    pub(crate) fn threads(&self) -> Option<NonZeroUsize> {
        (self.contender == ContenderKind::Ours).then_some(self.threads)
    }
}
