//! A whole run: epochs of training and evaluation, hooks, checkpoints, and SINGA's output.
//!
//! | idea | where |
//! |---|---|
//! | the datasets of evaluations | `evaluation_sets.rs` |
//! | settings, and what ends a training from outside | `config.rs` |
//! | the order of everything in a run | `session.rs` |
//! | what a run knows beside its task and data: hooks, notes, counts | `trainer_state.rs` |
//! | the checkpoints that a run makes, and continuing from one | `saving.rs`, `resuming.rs` |
//! | what an epoch has cost and measured | `epoch.rs` |
//! | a task without its batches | `task_view.rs` |
//! | what all ranks decide together after a step and in an evaluation | `control.rs` |
//! | the states of hooks, the last evaluation and the end of a run, in a checkpoint | `session_record.rs` |
//! | what must be the same on all ranks, and in a run that continues | `settings.rs` |
//! | SINGA's lines | `lines.rs` |
//! | where the memory of a step is | `memory.rs` |

mod config;
mod control;
mod epoch;
mod evaluation_sets;
mod lines;
mod memory;
mod resuming;
mod saving;
mod session;
mod session_record;
mod settings;
mod task_view;
mod trainer_state;

use std::fmt;
use std::io::Write;

use candelabrum_datasets::{Collated, Dataset, LoaderOptions};
use candelabrum_nn::{DistOption, Model, Params};

pub use self::config::{FitConfig, Interrupt};
pub use self::evaluation_sets::EvaluationSets;
use self::session::Session;
use self::trainer_state::TrainerState;
use crate::hooks::Hook;
use crate::options::reject;
use crate::task::{Supervised, Task};
use crate::{EpochReport, Result, Trainer};

/// A check of the parameters of a run.
type ParamsCheck<'a> = Box<dyn FnOnce(&Params) -> Result<()> + 'a>;

/// A whole training of any [`Task`]: epochs, evaluations, hooks and checkpoints.
#[derive(Default)]
pub struct Fit<'a> {
    config: FitConfig,
    loading: Option<LoaderOptions>,
    hooks: Vec<Box<dyn Hook + 'a>>,
    out: Option<&'a mut dyn Write>,
    /// Says whether a program has read its options.
    check_params: Option<ParamsCheck<'a>>,
}

impl<'a> Fit<'a> {
    /// With these settings.
    pub fn new(config: FitConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Calls this hook, after those that were added before.
    #[must_use]
    pub fn hook(mut self, hook: impl Hook + 'a) -> Self {
        self.hooks.push(Box::new(hook));
        self
    }

    /// Reads batches in this way. Without it, batches have the device and the type of the first model's
    /// parameters. [`Trainer::fit_with`] uses the trainer's way instead.
    #[must_use]
    pub fn loading(mut self, loading: LoaderOptions) -> Self {
        self.loading = Some(loading);
        self
    }

    /// Writes SINGA's lines here, on rank 0.
    #[must_use]
    pub fn output(mut self, out: &'a mut dyn Write) -> Self {
        self.out = Some(out);
        self
    }

    /// Calls `check` with the parameters of the first model when the training begins.
    #[must_use]
    pub(crate) fn check_params(mut self, check: impl FnOnce(&Params) -> Result<()> + 'a) -> Self {
        self.check_params = Some(Box::new(check));
        self
    }

    /// The settings.
    pub fn config(&self) -> &FitConfig {
        &self.config
    }

    /// Trains `task` on all of `train`, and evaluates it on all of `test` after every epoch: `Some` dataset, `None`, or
    /// several [`EvaluationSets`]. See [`Trainer::fit`] for the order of the data and a second call. All ranks call it
    /// together.
    ///
    /// # Errors
    /// Ranks with different settings or data, a dataset that is a share of another number of ranks, a batch larger
    /// than a rank's share, a checkpoint that cannot be used, and every error of a step, an evaluation or a hook. The
    /// checkpoints that were made before an error stay.
    pub fn run<B, T, D>(
        self,
        task: &mut T,
        train: &D,
        test: impl Into<EvaluationSets<B>>,
    ) -> Result<Vec<EpochReport>>
    where
        B: Collated,
        T: Task<B> + ?Sized,
        D: Dataset<Batch = B> + Clone,
    {
        let Self { config, loading, hooks, out, check_params } = self;
        let name = "FitConfig::limit_train_batches (--limit-train-batches)";
        reject(&[(name, config.limit_train_batches == Some(0), &"0", "at least 1")])?;
        check_steps(&config, task)?;
        let sets = test.into();
        check_params.map_or(Ok(()), |check| check(task.optimizer().params()))?;
        let loading = loading.unwrap_or_else(|| like_parameters(task));
        let group = task.optimizer().group().clone();
        let state = TrainerState::new(&config, group, hooks, out);
        Session { task, train, sets, loading, state }.run()
    }
}

/// Refuses settings of steps that the task would not obey.
fn check_steps<B, T: Task<B> + ?Sized>(config: &FitConfig, task: &T) -> Result<()> {
    let FitConfig { graph, accumulate, uneven, dist_option, .. } = config;
    let (is_own, (own, _)) = (!task.obeys_step_settings(), task.strategy());
    let exchanges = is_own && *dist_option != own && *dist_option != DistOption::Fp32;
    let range = "left out with a task of its own: such a task decides on its steps (`Task::obeys_step_settings`)";
    reject(&[
        ("FitConfig::graph (--graph)", *graph, &"set", range),
        ("FitConfig::accumulate (--accumulate)", is_own && *accumulate > 1, accumulate, range),
        ("FitConfig::uneven (--uneven)", is_own && *uneven, &"set", range),
        ("FitConfig::dist_option (--dist-option)", exchanges, dist_option, range),
    ])
}

/// Batches of the device and the type of the first model's parameters.
fn like_parameters<B, T: Task<B> + ?Sized>(task: &mut T) -> LoaderOptions {
    let params = task.optimizer().params();
    let (device, dtype) = (params.device().clone(), params.dtype());
    LoaderOptions { device, dtype, ..LoaderOptions::default() }
}

impl fmt::Debug for Fit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hooks: Vec<&str> = self.hooks.iter().map(|hook| hook.name()).collect();
        f.debug_struct("Fit")
            .field("config", &self.config)
            .field("hooks", &hooks)
            .finish_non_exhaustive()
    }
}

impl<M: Model> Trainer<M> {
    /// Trains on all of `train` and evaluates on all of `test` after every epoch: a dataset, or several
    /// [`EvaluationSets`].
    ///
    /// The call divides the data among the ranks. It reshuffles all data every epoch such that `N`
    /// ranks with batch `B` see the same global batches as one rank with batch `N·B`. Rank 0 writes
    /// SINGA's lines to `out` and shows progress on standard error.
    ///
    /// Or each rank gives a part of its own, MXNet's `num_parts` and `part_index`
    /// ([`Subset::new`](candelabrum_datasets::Subset::new) with the rank and the number of ranks), and takes its
    /// batches from it. All ranks then have the steps of the smallest part.
    ///
    /// A second call continues where the first ended: `n` calls of one epoch each see the same
    /// batches and result in the same parameters as one call of `n` epochs. The epochs in SINGA's
    /// lines are counted from the trainer's first one ([`epochs`](Self::epochs)). Layers are in
    /// training mode during the call, and in their previous mode afterwards.
    ///
    /// # Errors
    /// Those of [`Fit::run`], and a `spars` out of range.
    pub fn fit<D>(
        &mut self,
        train: &D,
        test: impl Into<EvaluationSets<D::Batch>>,
        config: &FitConfig,
        out: &mut dyn Write,
    ) -> Result<Vec<EpochReport>>
    where
        D: Dataset<Batch: Supervised> + Clone,
    {
        self.fit_with(Fit::new(config.clone()).output(out), train, test)
    }

    /// [`fit`](Self::fit) with hooks, or without an evaluation.
    ///
    /// # Errors
    /// Those of [`fit`](Self::fit).
    pub fn fit_with<D>(
        &mut self,
        mut fit: Fit<'_>,
        train: &D,
        test: impl Into<EvaluationSets<D::Batch>>,
    ) -> Result<Vec<EpochReport>>
    where
        D: Dataset<Batch: Supervised> + Clone,
    {
        if std::mem::take(&mut fit.config.graph) {
            self.record_steps();
        }
        let (option, spars) = (fit.config.dist_option, fit.config.spars);
        self.opt().check(option, spars)?;
        if fit.config.uneven {
            self.opt().check_uneven()?;
        }
        let micro_batch = (fit.config.accumulate > 1).then_some(fit.config.batch_size);
        self.set_steps((option, spars), micro_batch);
        let loading = self.loading().clone();
        fit.loading(loading).run(self, train, test)
    }
}
