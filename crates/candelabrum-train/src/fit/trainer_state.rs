//! What a run knows beside its task and its data: its hooks, its notes, its counts, and its checkpoints.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use candelabrum_dist::Group;
use candelabrum_runlog::Memory;

use super::config::FitConfig;
use super::control::{Decision, HookRequests, StopCause};
use super::lines::RootOutput;
use super::memory::MemoryProfile;
use super::session_record::{self, EvaluationRecord, RunEnd};
use super::task_view::TaskView;
use crate::checkpoint::{Checkpoints, Position, RunSettings};
use crate::hooks::{Action, Hook, Run};
use crate::progress::Progress;
use crate::{Error, Metrics, Result};

/// The maximum number of notes that an epoch prints.
const MOST_NOTES: usize = 3;

/// A run, between its start and its end.
pub(super) struct TrainerState<'s, 'a> {
    pub(super) config: &'s FitConfig,
    /// The ranks that train together.
    pub(super) group: Group,
    pub(super) hooks: Vec<Box<dyn Hook + 'a>>,
    pub(super) lines: RootOutput<'a>,
    pub(super) settings: RunSettings,
    pub(super) checkpoints: Option<Checkpoints>,
    /// The checkpoint from which the run continued.
    pub(super) resumed: Option<PathBuf>,
    /// This rank's counts of the present epoch.
    pub(super) metrics: Metrics,
    /// This rank's part of the last step.
    pub(super) last: RankStep,
    /// The last evaluation.
    pub(super) evaluated: Option<EvaluationRecord>,
    /// Why a hook has ended the run for good.
    pub(super) ended: Option<RunEnd>,
    /// The step after which the run has ended inside an epoch, with an evaluation and a report.
    pub(super) closed: Option<u64>,
    /// The beginning of the call.
    pub(super) start: Instant,
    pub(super) steps_per_epoch: usize,
    pub(super) global_batch: usize,
    /// The epoch before which the run ends.
    pub(super) end: usize,
    /// The notes of the present epoch.
    pub(super) notes: Vec<String>,
    /// The measurement of the memory, if the run makes one.
    pub(super) memory: Option<MemoryProfile>,
}

/// This rank's part of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RankStep {
    pub(super) loss: f32,
    /// What the loss counted.
    pub(super) weight: f64,
    pub(super) learning_rate: Option<f64>,
}

impl<'s, 'a> TrainerState<'s, 'a> {
    pub(super) fn new(
        config: &'s FitConfig,
        group: Group,
        hooks: Vec<Box<dyn Hook + 'a>>,
        out: Option<&'a mut dyn Write>,
    ) -> Self {
        Self {
            config,
            lines: RootOutput::new(out.filter(|_| group.is_world_root())),
            group,
            hooks,
            settings: RunSettings::default(),
            checkpoints: None,
            resumed: None,
            metrics: Metrics::default(),
            last: RankStep::default(),
            evaluated: None,
            ended: None,
            closed: None,
            start: Instant::now(),
            steps_per_epoch: 0,
            global_batch: 0,
            end: 0,
            notes: Vec::new(),
            memory: config.profile_memory.then(MemoryProfile::new),
        }
    }

    /// Calls `f` with the number of each hook and the hook.
    pub(super) fn each_hook(
        &mut self,
        task: &mut TaskView<'_>,
        f: impl FnMut(usize, &mut (dyn Hook + 'a), &mut Run<'_, '_>) -> Result<()>,
    ) -> Result<()> {
        self.hooks_in(0..self.hooks.len(), task, f)
    }

    /// Tells the hooks of the end of an evaluation, in the reverse order: each finds the model as it has left it.
    pub(super) fn after_evaluate(&mut self, task: &mut TaskView<'_>) -> Result<()> {
        let numbers = (0..self.hooks.len()).rev();
        self.hooks_in(numbers, task, |_, hook, run| hook.after_evaluate(run))
    }

    /// Calls `f` with the hooks of these numbers.
    fn hooks_in(
        &mut self,
        numbers: impl Iterator<Item = usize>,
        task: &mut TaskView<'_>,
        mut f: impl FnMut(usize, &mut (dyn Hook + 'a), &mut Run<'_, '_>) -> Result<()>,
    ) -> Result<()> {
        for number in numbers {
            let Some(hook) = self.hooks.get_mut(number) else { continue };
            let mut run = Run {
                position: task.position,
                steps_per_epoch: self.steps_per_epoch,
                epochs: self.end,
                max_steps: self.config.max_steps,
                global_batch_size: self.global_batch,
                makes_checkpoints: self.config.checkpoints.is_some(),
                checkpoint_dir: self.config.checkpoints.as_ref().map(|(dir, _)| &**dir),
                resumed: self.resumed.as_deref(),
                loss: self.last.loss,
                loss_weight: self.last.weight,
                step_learning_rate: self.last.learning_rate,
                metrics: &self.metrics,
                optimizers: &mut task.optimizers,
            };
            f(number, &mut **hook, &mut run)?;
        }
        Ok(())
    }

    /// Adds to `asked` what `f` says that each hook asks for.
    pub(super) fn ask(
        &mut self,
        task: &mut TaskView<'_>,
        asked: &mut HookRequests,
        mut f: impl FnMut(&mut (dyn Hook + 'a), &mut Run<'_, '_>) -> Result<Action>,
    ) -> Result<()> {
        self.each_hook(task, |number, hook, run| {
            asked.add(number, f(hook, run)?);
            Ok(())
        })
    }

    /// Shows where the memory of a step was, once that is known.
    pub(super) fn profile_memory(
        &mut self,
        task: &mut TaskView<'_>,
        next: impl FnOnce(&mut MemoryProfile, &mut TaskView<'_>) -> Result<Option<Memory>>,
    ) -> Result<()> {
        let Some(profile) = &mut self.memory else { return Ok(()) };
        if let Some(memory) = next(profile, task)? {
            self.lines.memory(&memory);
            self.each_hook(task, |_, hook, run| hook.on_memory(run, &memory))?;
        }
        Ok(())
    }

    /// What the hooks ask for after a step.
    pub(super) fn on_step_end(&mut self, task: &mut TaskView<'_>) -> Result<HookRequests> {
        let mut asked = HookRequests::default();
        self.ask(task, &mut asked, |hook, run| {
            let action = hook.on_step_end(run)?;
            Ok(if hook.acts_on_step_end() { action } else { Action::NOTHING })
        })?;
        Ok(asked)
    }

    /// Tells the hooks of a step that has failed on all ranks. Returns why the training ends, if a hook ends it, and
    /// the error otherwise.
    pub(super) fn after_bad_step(
        &mut self,
        task: &mut TaskView<'_>,
        error: Error,
    ) -> Result<String> {
        let keys = session_record::keys(&self.hooks);
        let mut end = None;
        self.each_hook(task, |number, hook, run| {
            if let Some(reason) = hook.on_bad_step(run, &error)? {
                end.get_or_insert(RunEnd { reason, hook: Some(keys[number].clone()) });
            }
            Ok(())
        })?;
        self.ended = end;
        self.reason_of_end().ok_or(error)
    }

    /// Whether the run has had all its steps.
    pub(super) fn has_all_steps(&self, Position { step, .. }: Position) -> bool {
        self.config.max_steps.is_some_and(|max| step >= max)
    }

    /// Whether the run has had all its epochs or steps, and everything that follows them.
    pub(super) fn is_complete(&self, position: Position) -> bool {
        let is_closed = position.step_in_epoch == 0 || self.closed == Some(position.step);
        position.epoch >= self.end || (self.has_all_steps(position) && is_closed)
    }

    /// The steps that the run has left in the present epoch.
    pub(super) fn steps_left(&self, Position { step, step_in_epoch, .. }: Position) -> usize {
        let left = self.steps_per_epoch.saturating_sub(step_in_epoch);
        let of_run = self.config.max_steps.map(|max| max.saturating_sub(step));
        of_run
            .map_or(left, |of_run| usize::try_from(of_run).map_or(left, |of_run| left.min(of_run)))
    }

    /// Why a hook has ended the run for good.
    pub(super) fn reason_of_end(&self) -> Option<String> {
        self.ended.as_ref().map(|ended| ended.reason.clone())
    }

    /// Makes the checkpoint of a decision. Returns why the training ends, if it does.
    pub(super) fn obey(
        &mut self,
        task: &mut TaskView<'_>,
        decision: Decision,
    ) -> Result<Option<String>> {
        let Decision { stop, save, best } = decision;
        if let Some(StopCause::End { reason, hook }) = &stop {
            let hook =
                hook.and_then(|hook| session_record::keys(&self.hooks).into_iter().nth(hook));
            self.ended = Some(RunEnd { reason: reason.clone(), hook });
        }
        if save {
            self.save(task, &best)?;
        }
        Ok(stop.map(StopCause::into_reason))
    }

    /// Prints a note on rank 0, and keeps it for the report.
    pub(super) fn note(&mut self, note: &str) {
        self.print_note(note, None);
    }

    /// [`Self::note`] of a step. Steps often repeat a note, so only the first few of an epoch are printed and kept.
    pub(super) fn note_of_step(&mut self, note: &str, progress: &Progress) {
        if self.notes.len() != MOST_NOTES {
            self.print_note(note, Some(progress));
        }
    }

    fn print_note(&mut self, note: &str, progress: Option<&Progress>) {
        if self.group.is_world_root() {
            Progress::note(progress, note);
        }
        self.hooks.iter_mut().for_each(|hook| hook.on_note(note));
        self.notes.push(note.to_owned());
    }
}
