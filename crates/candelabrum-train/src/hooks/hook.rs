//! The interface of hooks.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use candelabrum_dist::DistOpt;
use candelabrum_memory::Span;
use candelabrum_runlog::Memory;
use serde::de::DeserializeOwned;

use crate::checkpoint::{CheckpointOutcome, OwnPart, Position, Ranked, SaveOutcome};
use crate::{EpochReport, Error, Metrics, Result};

/// Is called by [`Fit`](crate::Fit) on every rank, at the same places of the training. Each method does nothing by
/// default.
///
/// What a hook returns after a step may differ between ranks: if one rank asks to stop or to save, all do. What it
/// returns after an evaluation or an epoch must be the same on all ranks, as the metrics are.
pub trait Hook {
    /// The name of this kind of hook.
    fn name(&self) -> &str;

    /// The name under which a checkpoint has the hook's [state](Self::state). It must distinguish two hooks of one
    /// kind, by what they watch for instance. Where it does not, their order does.
    fn key(&self) -> String {
        self.name().to_owned()
    }

    /// Before the first step, after a checkpoint has been loaded.
    ///
    /// # Errors
    /// Any error ends the training.
    fn on_start(&mut self, run: &mut Run<'_, '_>) -> Result<()> {
        let _ = run;
        Ok(())
    }

    /// After each step. [`Run::loss`] and [`Run::metrics`] are this rank's. What it asks for counts only if
    /// [`acts_on_step_end`](Self::acts_on_step_end) says so.
    ///
    /// # Errors
    /// Any error ends the training.
    fn on_step_end(&mut self, run: &mut Run<'_, '_>) -> Result<Action> {
        let _ = run;
        Ok(Action::NOTHING)
    }

    /// Whether what [`on_step_end`](Self::on_step_end) asks for counts. Then the ranks exchange it after each step.
    fn acts_on_step_end(&self) -> bool {
        false
    }

    /// Before an evaluation, when all ranks have one model. It may change the parameters, and must then restore them in
    /// [`after_evaluate`](Self::after_evaluate).
    ///
    /// # Errors
    /// Any error ends the training.
    fn before_evaluate(&mut self, run: &mut Run<'_, '_>) -> Result<()> {
        let _ = run;
        Ok(())
    }

    /// After an evaluation, also after one that a signal has cut or that has failed, before
    /// [`on_evaluate`](Self::on_evaluate). The hooks are called in the reverse order.
    ///
    /// # Errors
    /// Any error ends the training.
    fn after_evaluate(&mut self, run: &mut Run<'_, '_>) -> Result<()> {
        let _ = run;
        Ok(())
    }

    /// After an evaluation, with its metrics over all ranks.
    ///
    /// # Errors
    /// Any error ends the training.
    fn on_evaluate(&mut self, run: &mut Run<'_, '_>, metrics: &Metrics) -> Result<Action> {
        let _ = (run, metrics);
        Ok(Action::NOTHING)
    }

    /// After each epoch and its evaluation.
    ///
    /// # Errors
    /// Any error ends the training.
    fn on_epoch_end(&mut self, run: &mut Run<'_, '_>, report: &EpochReport) -> Result<Action> {
        let _ = (run, report);
        Ok(Action::NOTHING)
    }

    /// After a step that failed on all ranks with `error` and changed nothing, because a loss or a gradient is not
    /// finite. A hook that answers with a reason ends the training, which then returns without an error. All ranks
    /// get the same error.
    ///
    /// # Errors
    /// Any error ends the training.
    fn on_bad_step(&mut self, run: &mut Run<'_, '_>, error: &Error) -> Result<Option<String>> {
        let _ = (run, error);
        Ok(None)
    }

    /// After a checkpoint has been copied, which another thread writes.
    ///
    /// # Errors
    /// Any error ends the training.
    fn on_checkpoint(&mut self, run: &mut Run<'_, '_>, saved: &SaveOutcome) -> Result<()> {
        let _ = (run, saved);
        Ok(())
    }

    /// When all ranks know whether the checkpoint that was made last is on the disk: before the next evaluation and
    /// the next checkpoint, and at the end.
    ///
    /// # Errors
    /// Any error ends the training.
    fn on_written(&mut self, run: &mut Run<'_, '_>, outcome: &CheckpointOutcome) -> Result<()> {
        let _ = (run, outcome);
        Ok(())
    }

    /// A note to the user, of a strategy for instance.
    fn on_note(&mut self, note: &str) {
        let _ = note;
    }

    /// Where the memory of a step was, once per call if
    /// [`FitConfig::profile_memory`](crate::FitConfig::profile_memory) is set.
    ///
    /// # Errors
    /// Any error ends the training.
    fn on_memory(&mut self, run: &mut Run<'_, '_>, memory: &Memory) -> Result<()> {
        let _ = (run, memory);
        Ok(())
    }

    /// When the training ends with an error, which is returned afterwards. It may be on this rank only.
    fn on_error(&mut self, error: &Error) {
        let _ = error;
    }

    /// At the end of the training, with the reason if it ended early. Not after an error.
    ///
    /// # Errors
    /// Any error is returned by the training.
    fn on_end(&mut self, run: &mut Run<'_, '_>, reason: Option<&str>) -> Result<()> {
        let _ = (run, reason);
        Ok(())
    }

    /// What the hook needs to continue after a resumed training, the same on all ranks.
    fn state(&self) -> serde_json::Value {
        serde_json::Value::Null
    }

    /// The numbers that the hook needs beside its [state](Self::state), the same on all ranks: a checkpoint has them in
    /// a file of their own. All ranks call it together.
    ///
    /// # Errors
    /// Any error ends the training.
    fn vectors(&mut self, run: &mut Run<'_, '_>) -> Result<Vec<NamedVector<'_>>> {
        let _ = run;
        Ok(Vec::new())
    }

    /// The vectors of which this rank needs only a part, by their names. It is called before
    /// [`restore_vectors`](Self::restore_vectors).
    ///
    /// # Errors
    /// Any error ends the training.
    fn own_parts(&mut self, run: &mut Run<'_, '_>) -> Result<BTreeMap<String, OwnPart>> {
        let _ = run;
        Ok(BTreeMap::new())
    }

    /// Continues with [`vectors`](Self::vectors) that were saved, or with the [parts](Self::own_parts) of them that this
    /// rank needs, before [`on_start`](Self::on_start). It is not called if none were.
    ///
    /// # Errors
    /// Vectors that are not this hook's.
    fn restore_vectors(&mut self, vectors: BTreeMap<String, Vec<f32>>) -> Result<()> {
        let _ = vectors;
        Ok(())
    }

    /// The name of the value by which [`Action::best`] chooses a checkpoint, for a hook that does so.
    fn best_measure(&self) -> Option<String> {
        None
    }

    /// The checkpoints that stay by this value, the best one first, as they are when the checkpoint is on the disk for
    /// which the hook has asked by [`Action::best`]. By default it is that one alone.
    fn best_checkpoints(&self) -> Vec<Ranked> {
        Vec::new()
    }

    /// Whether the hook does nothing without evaluations. A run that has no data for them refuses such a hook.
    fn needs_evaluations(&self) -> bool {
        false
    }

    /// Whether the hook only reports what happens. If its saved state cannot be used, it begins anew with a note,
    /// and the training continues. For other hooks that is an error.
    fn only_reports(&self) -> bool {
        false
    }

    /// Continues with a [state](Self::state) that was saved.
    ///
    /// # Errors
    /// A state that is not this hook's.
    fn restore(&mut self, state: &serde_json::Value) -> Result<()> {
        let _ = state;
        Ok(())
    }
}

/// The methods of a reference to a hook: each calls that of the hook.
macro_rules! forward {
    ($($name:ident $([$mut:ident])? ($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        fn $name(&$($mut)? self $(, $arg: $type)*) $(-> $result)? {
            (**self).$name($($arg),*)
        }
    )*};
}

impl<H: Hook + ?Sized> Hook for &mut H {
    forward! {
        name() -> &str;
        key() -> String;
        on_start[mut](run: &mut Run<'_, '_>) -> Result<()>;
        on_step_end[mut](run: &mut Run<'_, '_>) -> Result<Action>;
        acts_on_step_end() -> bool;
        before_evaluate[mut](run: &mut Run<'_, '_>) -> Result<()>;
        after_evaluate[mut](run: &mut Run<'_, '_>) -> Result<()>;
        vectors[mut](run: &mut Run<'_, '_>) -> Result<Vec<NamedVector<'_>>>;
        own_parts[mut](run: &mut Run<'_, '_>) -> Result<BTreeMap<String, OwnPart>>;
        restore_vectors[mut](vectors: BTreeMap<String, Vec<f32>>) -> Result<()>;
        on_evaluate[mut](run: &mut Run<'_, '_>, metrics: &Metrics) -> Result<Action>;
        on_epoch_end[mut](run: &mut Run<'_, '_>, report: &EpochReport) -> Result<Action>;
        on_bad_step[mut](run: &mut Run<'_, '_>, error: &Error) -> Result<Option<String>>;
        on_checkpoint[mut](run: &mut Run<'_, '_>, saved: &SaveOutcome) -> Result<()>;
        on_written[mut](run: &mut Run<'_, '_>, outcome: &CheckpointOutcome) -> Result<()>;
        on_error[mut](error: &Error);
        best_measure() -> Option<String>;
        best_checkpoints() -> Vec<Ranked>;
        needs_evaluations() -> bool;
        only_reports() -> bool;
        on_memory[mut](run: &mut Run<'_, '_>, memory: &Memory) -> Result<()>;
        on_note[mut](note: &str);
        on_end[mut](run: &mut Run<'_, '_>, reason: Option<&str>) -> Result<()>;
        state() -> serde_json::Value;
        restore[mut](state: &serde_json::Value) -> Result<()>;
    }
}

/// The training as a hook sees it.
pub struct Run<'r, 'p> {
    /// How far it is. After a step this is the next step.
    pub position: Position,
    /// The steps of an epoch.
    pub steps_per_epoch: usize,
    /// The epoch before which this call of `fit` ends.
    pub epochs: usize,
    /// The step after which the run ends if its epochs have not ended before.
    pub max_steps: Option<u64>,
    /// Samples of all ranks in a step.
    pub global_batch_size: usize,
    /// Whether the training makes checkpoints.
    pub makes_checkpoints: bool,
    /// The directory of the training's checkpoints.
    pub checkpoint_dir: Option<&'r Path>,
    /// The checkpoint from which this call of `fit` continued.
    pub resumed: Option<&'r Path>,
    /// The loss of this rank's last step.
    pub loss: f32,
    /// What this loss counted: 0 if this rank had no part of the step, or if none of its targets counts.
    pub loss_weight: f64,
    /// The learning rate of the first model in the last step, if this rank knows it.
    pub step_learning_rate: Option<f64>,
    /// This rank's counts in the epoch so far.
    pub metrics: &'r Metrics,
    /// The optimizers of the models, by the names of the models.
    pub optimizers: &'r mut [(&'p str, &'p mut DistOpt)],
}

impl Run<'_, '_> {
    /// Whether this rank is the one that prints and writes.
    pub fn is_root(&self) -> bool {
        self.optimizer().is_some_and(|optimizer| optimizer.group().is_world_root())
    }

    /// The learning rate of the first model's next step, if this rank knows it.
    pub fn learning_rate(&self) -> Option<f64> {
        self.optimizer()?.learning_rate()
    }

    /// The optimizer of the first model.
    pub fn optimizer(&self) -> Option<&DistOpt> {
        self.optimizers.first().map(|(_, optimizer)| &**optimizer)
    }
}

/// A vector of a hook in a checkpoint.
#[derive(Debug)]
pub struct NamedVector<'a> {
    /// Its name in the file.
    pub name: String,
    /// The dimensions of its tensor.
    pub dims: Vec<usize>,
    /// Its numbers, or this rank's shard of them.
    pub values: Span<'a>,
    /// The place of the first number in the tensor, if ranks have shards of it.
    pub shard: Option<usize>,
}

/// What a hook asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Action {
    /// Ends the training for good, for this reason. A run that is started again trains nothing more, unless this hook
    /// has been left out.
    pub stop: Option<String>,
    /// Ends this call, for this reason. A run that is started again goes on: for a limit of time, for instance.
    pub pause: Option<String>,
    /// Makes a checkpoint.
    pub save: bool,
    /// Makes a checkpoint and notes it as the best one, or as one of the [best](Hook::best_checkpoints), with the value
    /// by which it is.
    pub best: Option<f64>,
}

impl Action {
    /// Goes on.
    pub const NOTHING: Self = Self { stop: None, pause: None, save: false, best: None };
}

impl fmt::Debug for Run<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("position", &self.position).finish_non_exhaustive()
    }
}

/// The saved state of the hook called `name`.
pub(crate) fn read_state<T: DeserializeOwned>(name: &str, state: &serde_json::Value) -> Result<T> {
    serde_json::from_value(state.clone())
        .map_err(|error| Error::HookState { hook: name.to_owned(), what: error.to_string() })
}
