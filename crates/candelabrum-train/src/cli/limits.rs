//! The options that limit a run.

use std::time::Duration;

use clap::Args;

use super::numbers::{parse_duration, parse_positive, parse_steps};

/// Options that limit a run, beside its epochs.
#[derive(Args, Clone, Debug)]
pub struct LimitArgs {
    /// End the run after this many steps, counted over the whole run, if it does not end by --epochs before
    #[arg(long, value_name = "N", value_parser = parse_steps)]
    pub max_steps: Option<u64>,

    /// End this call after the step in which this time is over, such as 90s, 30m, 2h or 1h30m. With --checkpoint-dir
    /// the same command continues the run
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub max_time: Option<Duration>,

    /// Train on at most this many batches in each epoch
    #[arg(long, value_name = "N", value_parser = parse_positive)]
    pub limit_train_batches: Option<usize>,

    /// End the run after this many evaluations in a row whose loss was not better than the best one
    #[arg(long, value_name = "PATIENCE", value_parser = parse_positive)]
    pub early_stopping: Option<usize>,
}
