//! The settings of a whole training.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use candelabrum_nn::DistOption;

use crate::checkpoint::CheckpointConfig;
use crate::sampling::Sampling;

/// The settings of [`Fit`](crate::Fit) and of [`Trainer::fit`](crate::Trainer::fit), the same on every rank.
#[derive(Clone, Debug)]
pub struct FitConfig {
    /// Passes of this call over the training data. A call that continues from a checkpoint counts those that the
    /// checkpoint has.
    pub epochs: usize,
    /// The run ends after this many steps, counted over the whole run as [`Position::step`] does, or after its epochs,
    /// whichever comes first. A bound inside an epoch ends it with an evaluation, a report of this part of the epoch
    /// and a checkpoint. A run that continues with a larger bound trains the rest of the epoch.
    ///
    /// [`Position::step`]: crate::checkpoint::Position::step
    pub max_steps: Option<u64>,
    /// The call ends after the step in which this time is over, counted from the beginning of the call. It saves and
    /// ends as one that a hook [pauses](crate::hooks::Action::pause), so the run can be continued. The clock of rank 0
    /// decides. Ranks that do not take their steps together end where they meet: at the end of an epoch's steps, or
    /// before a checkpoint.
    pub max_time: Option<Duration>,
    /// At most this many steps in each epoch, the first ones of its order. At least 1.
    pub limit_train_batches: Option<usize>,
    /// Samples per step and rank, or per micro-batch and rank.
    pub batch_size: usize,
    /// The micro-batches of a step, whose gradients are added before they are exchanged: N ranks with batch B and
    /// K micro-batches train as one rank with batch N·B·K. Only for a [`Trainer`](crate::Trainer).
    pub accumulate: usize,
    /// Whether an epoch uses all samples. Then its last batch is smaller, and some ranks may have none. The
    /// optimizer must be [set](candelabrum_dist::DistOptConfig::uneven) to it. A model with a synchronized
    /// batch normalisation is refused, because that needs a batch on every rank. Only for a
    /// [`Trainer`](crate::Trainer).
    pub uneven: bool,
    /// The exchange of gradients. Only for a [`Trainer`](crate::Trainer).
    pub dist_option: DistOption,
    /// The parameter of a sparse exchange.
    pub spars: f32,
    /// The seed of shuffling and augmentation.
    pub seed: u64,
    /// The order of the training samples, and the length of an epoch.
    pub sampling: Sampling,
    /// The steps between two evaluations, beside those after each epoch.
    pub evaluate_every: Option<u64>,
    /// Whether steps are recorded as CUDA graphs: see [`Trainer::use_graph`](crate::Trainer::use_graph). Only for a
    /// [`Trainer`](crate::Trainer).
    pub graph: bool,
    /// Whether rank 0 shows where the memory of a step is: of the third step of the call, because the first ones
    /// allocate what later ones use again. The steps before it take longer by the measurement.
    pub profile_memory: bool,
    /// The directory of the checkpoints, and how they are made. `None` makes none.
    pub checkpoints: Option<(PathBuf, CheckpointConfig)>,
    /// What ends the training from outside.
    pub interrupt: Interrupt,
}

impl Default for FitConfig {
    /// Ten epochs of batch 64 in fp32, seed 0, no checkpoints.
    fn default() -> Self {
        Self {
            epochs: 10,
            max_steps: None,
            max_time: None,
            limit_train_batches: None,
            batch_size: 64,
            accumulate: 1,
            uneven: false,
            dist_option: DistOption::Fp32,
            spars: 0.05,
            seed: 0,
            sampling: Sampling::default(),
            evaluate_every: None,
            graph: false,
            profile_memory: false,
            checkpoints: None,
            interrupt: Interrupt::default(),
        }
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
