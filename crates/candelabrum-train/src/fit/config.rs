//! The settings of a whole training, each in one place: its field has its option, its help and its default, and
//! [`FitConfig::settings`] says what must be the same on all ranks and in a run that continues.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use candelabrum_datasets::DistributedSampler;
use candelabrum_nn::DistOption;
use clap::Args;

use crate::checkpoint::CheckpointConfig;
use crate::options::{defaults, parse_duration, parse_positive, parse_steps};
use crate::{Result, Sampling};

/// The settings of [`Fit`](crate::Fit) and of [`Trainer::fit`](crate::Trainer::fit), the same on every rank. They are
/// options of the command line, too, with the same defaults.
///
/// # The end of a run
/// A run ends by its epochs or by `max_steps`, whichever comes first. A bound inside an epoch ends it with an
/// evaluation, a report of this part of the epoch and a checkpoint. A run that continues with a larger bound trains the
/// rest of the epoch.
///
/// `max_time` is counted from the beginning of the call. It saves and ends as one that a hook
/// [pauses](crate::hooks::Action::pause), so the run can be continued. The clock of rank 0 decides. Ranks that do not take
/// their steps together end where they meet: at the end of an epoch's steps, or before a checkpoint.
///
/// # Steps of a trainer
/// `accumulate`, `uneven`, `dist_option`, `spars` and `graph` are only for a [`Trainer`](crate::Trainer). With K
/// micro-batches, N ranks with batch B train as one rank with batch N·B·K. The optimizer of an uneven run must be
/// [set](candelabrum_dist::DistOptConfig::uneven) to it. A model with a synchronized batch normalisation needs a batch on
/// every rank, so an uneven run rejects it.
#[derive(Args, Clone, Debug)]
pub struct FitConfig {
    /// Passes over the training data; a run that continues from a checkpoint counts those that the checkpoint has
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub epochs: usize,

    /// End the run after this many steps, counted over the whole run, if it does not end by --epochs before
    #[arg(long, value_name = "N", value_parser = parse_steps)]
    pub max_steps: Option<u64>,

    /// End this call after the step in which this time is over, such as 90s, 30m, 2h or 1h30m. With --checkpoint-dir
    /// the same command continues the run
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub max_time: Option<Duration>,

    /// Train on at most this many batches in each epoch, the first ones of its order
    #[arg(long, value_name = "N", value_parser = parse_positive)]
    pub limit_train_batches: Option<usize>,

    /// Samples per step and rank, or per micro-batch and rank
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = parse_positive)]
    pub batch_size: usize,

    /// The micro-batches of a step: their gradients are added before the ranks exchange them
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = parse_positive)]
    pub accumulate: usize,

    /// Uses all samples in each epoch: the last batch is smaller, and some ranks may have none. Costs a message of 16
    /// bytes per step
    #[arg(long)]
    pub uneven: bool,

    /// How ranks agree on an update: fp32 (plain), fp16 (half), bf16, partialUpdate, sparseTopK,
    /// sparseThreshold, 2bit, 1bit
    #[arg(long, value_name = "NAME", default_value_t = DistOption::Fp32)]
    pub dist_option: DistOption,

    /// Share (sparseTopK) or magnitude (sparseThreshold, 2bit) that a compressed exchange sends, or limit (1bit)
    #[arg(long, allow_negative_numbers = true, default_value_t = 0.05)]
    pub spars: f32,

    /// Seed of initial values, shuffling and noise
    #[arg(long, default_value_t = 0)]
    pub seed: u64,

    /// The order of the training samples, and the length of an epoch.
    #[command(flatten)]
    pub sampling: Sampling,

    /// The steps between two evaluations, beside those after each epoch
    #[arg(long, value_name = "STEPS", value_parser = parse_steps)]
    pub evaluate_every: Option<u64>,

    /// Record the forward and backward pass as CUDA graphs and replay them (SINGA's use_graph)
    #[arg(long)]
    pub graph: bool,

    /// Show where the memory of the third step is: parameters, gradients, the optimizer's state, what each layer
    /// keeps for the backward pass, and the peak
    #[arg(long)]
    pub profile_memory: bool,

    /// The directory of the checkpoints, and how they are made. `None` makes none.
    #[arg(skip)]
    pub checkpoints: Option<(PathBuf, CheckpointConfig)>,

    /// What ends the training from outside.
    #[arg(skip)]
    pub interrupt: Interrupt,
}

impl Default for FitConfig {
    /// Ten epochs of batch 64 in fp32, seed 0, no checkpoints.
    fn default() -> Self {
        defaults()
    }
}

/// A setting of a run that must be the same on all its ranks.
pub(crate) struct AgreedSetting {
    /// In words.
    pub(crate) name: &'static str,
    pub(crate) value: String,
    /// The options of which a run that continues from a checkpoint must have the same values.
    pub(crate) fixed: &'static [&'static str],
}

impl FitConfig {
    /// The settings that must be the same on all ranks. A new field that is not mentioned here does not compile.
    pub(crate) fn settings(&self) -> Vec<AgreedSetting> {
        let Self {
            epochs,
            max_steps,
            max_time,
            limit_train_batches,
            batch_size,
            accumulate,
            uneven,
            dist_option,
            spars,
            seed,
            sampling,
            evaluate_every,
            graph: _,
            profile_memory,
            checkpoints,
            interrupt: _,
        } = self;
        let limit = limit_train_batches.map(|most| format!(", at most {most} steps in an epoch"));
        let sampling = format!("{sampling}{}", limit.unwrap_or_default());
        let checkpoints =
            checkpoints.as_ref().map(|(dir, config)| (dir.display().to_string(), config));
        let fixed = |name, value, fixed| AgreedSetting { name, value, fixed };
        let free = |name, value| AgreedSetting { name, value, fixed: &[] };
        vec![
            fixed("the seed", seed.to_string(), &["seed"]),
            fixed(
                "the sampling",
                sampling,
                &["shuffle-window", "epoch-size", "limit-train-batches"],
            ),
            fixed("`uneven`", uneven.to_string(), &["uneven"]),
            free("the dist option", dist_option.to_string()),
            free("spars", spars.to_string()),
            free("the number of micro-batches", accumulate.to_string()),
            free("the number of epochs", epochs.to_string()),
            free("the maximum number of steps", format!("{max_steps:?}")),
            free("the maximum time", format!("{max_time:?}")),
            free("the batch size", batch_size.to_string()),
            free("the steps between evaluations", format!("{evaluate_every:?}")),
            free("`profile_memory`", profile_memory.to_string()),
            free("the checkpoints", format!("{checkpoints:?}")),
        ]
    }

    /// A sampler with the order of these settings, and their epochs.
    pub(crate) fn ordered(&self, sampler: DistributedSampler) -> Result<DistributedSampler> {
        let sampler = self.sampling.apply(sampler)?;
        Ok(self.limit_train_batches.map_or(Ok(sampler), |most| sampler.with_most_steps(most))?)
    }
}

/// A request to end a training after its present step, or its present batch of an evaluation, for instance by a
/// signal. Clones share it. If one rank has it, all ranks end.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Option<Arc<InterruptState>>);

#[derive(Debug, Default)]
struct InterruptState {
    /// The first signal of this rank.
    requested: OnceLock<i32>,
    /// The signal by which all ranks have ended.
    ended: OnceLock<i32>,
}

impl Interrupt {
    /// One that a training looks at. With the default one it does not look.
    pub fn watched() -> Self {
        Self(Some(Arc::default()))
    }

    /// Asks the training to end because of a signal of this number. Only the first request counts.
    pub fn request(&self, signal: i32) {
        if let Some(state) = &self.0 {
            state.requested.get_or_init(|| signal);
        }
    }

    /// The signal by which the training was asked to end. Other ranks may have been asked by another one, or not
    /// at all.
    pub fn requested(&self) -> Option<i32> {
        self.0.as_ref()?.requested.get().copied()
    }

    /// The signal by which the training has ended before it was complete, the same on all ranks.
    pub fn ended(&self) -> Option<i32> {
        self.0.as_ref()?.ended.get().copied()
    }

    pub(super) fn end(&self, signal: i32) {
        if let Some(state) = &self.0 {
            state.ended.get_or_init(|| signal);
        }
    }

    pub(super) fn is_watched(&self) -> bool {
        self.0.is_some()
    }
}
