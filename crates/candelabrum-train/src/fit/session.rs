//! The order of everything in a run.

use std::sync::Arc;

use candelabrum_datasets::{Collated, Dataset, Loader, LoaderOptions};
use candelabrum_dist::launch::interrupted_by;

use super::config::FitConfig;
use super::control::{Control, Decision, HookRequests};
use super::epoch::EpochClock;
use super::evaluation_sets::EvaluationSets;
use super::memory::MemoryProfile;
use super::session_record::{self, EvaluationRecord};
use super::settings;
use super::task_view::TaskView;
use super::trainer_state::{RankStep, TrainerState};
use crate::checkpoint::Position;
use crate::progress::Progress;
use crate::task::Task;
use crate::{EpochReport, Error, Metrics, Result, evaluation, parts};

/// A run of a task on its data.
pub(super) struct Session<'s, 'a, T: ?Sized, D: Dataset> {
    pub(super) task: &'s mut T,
    pub(super) train: &'s D,
    pub(super) sets: EvaluationSets<D::Batch>,
    pub(super) loading: LoaderOptions,
    pub(super) state: TrainerState<'s, 'a>,
}

impl<B, T, D> Session<'_, '_, T, D>
where
    B: Collated,
    T: Task<B> + ?Sized,
    D: Dataset<Batch = B> + Clone,
{
    pub(super) fn run(mut self) -> Result<Vec<EpochReport>> {
        let params = TaskView::new(self.task).params();
        let result = evaluation::in_mode(&params, true, || self.run_epochs());
        let hooks = &mut self.state.hooks;
        result.inspect_err(|error| hooks.iter_mut().for_each(|hook| hook.on_error(error)))
    }

    fn run_epochs(&mut self) -> Result<Vec<EpochReport>> {
        let loader = self.begin()?;
        self.state.each_hook(&mut TaskView::new(self.task), |_, hook, run| hook.on_start(run))?;
        let mut reports = Vec::new();
        let mut stopped = self.state.reason_of_end();
        let has_ended = stopped.is_some();
        if let Some(why) = &stopped {
            self.state.note(&format!(
                "the run has ended: {why}; nothing is trained. To go on, leave out the hook that has ended it, or name a checkpoint to resume from"
            ));
        }
        while !self.state.is_complete(*self.task.position()) && stopped.is_none() {
            stopped = self.run_epoch(&loader, &mut reports)?;
        }
        let task = &mut TaskView::new(self.task);
        self.state.profile_memory(task, MemoryProfile::finish)?;
        self.state.finish(task, stopped.as_deref(), has_ended)?;
        Ok(reports)
    }

    /// Refuses a hook that would do nothing.
    fn check_hooks(&self) -> Result<()> {
        let idle = self.state.hooks.iter().find(|hook| hook.needs_evaluations());
        match idle.filter(|_| self.sets.is_empty()) {
            Some(hook) => Err(Error::option(
                "the hook",
                &hook.name(),
                "left out in a run without data for evaluations",
            )),
            None => Ok(()),
        }
    }

    /// Compares the ranks' settings, continues from a checkpoint, if there is one, and divides the data.
    fn begin(&mut self) -> Result<Loader<D>> {
        let train = self.train;
        let (config, group) = (self.state.config, self.state.group.clone());
        let before = *self.task.position();
        // A checkpoint may say otherwise: a signal may have come before the end of the part of an epoch.
        self.state.closed = (before.step > 0).then_some(before.step);
        self.state.end = before.epoch + config.epochs;
        let ranks = group.world_size();
        // The digest of all data takes time: only other ranks and later runs need it.
        if ranks > 1 || config.checkpoints.is_some() {
            self.state.settings = settings::of_run(config, train)?;
        }
        if ranks > 1 {
            let hooks = session_record::keys(&self.state.hooks).join(", ");
            let mut other = vec![("the hooks".to_owned(), hooks)];
            other.append(&mut self.sets.facts()?);
            settings::check_same(&group, &self.state.settings, config, before, other)?;
        }
        // On all ranks, which have the same hooks and data.
        self.sets.check()?;
        self.check_hooks()?;
        let lens = parts::lens(&group, train)?;
        if let Some(lens) = &lens {
            self.state.settings.data = Some(parts::fingerprint(&group, train)?);
            self.state.settings.samples = Some(lens.iter().sum());
        }
        let mut batch = config.batch_size.saturating_mul(config.accumulate.max(1));
        self.state.settings.rank_batch_size = Some(batch);
        self.state.settings.global_batch_size = Some(batch.saturating_mul(ranks));
        if let Some(continued) =
            self.state.open_checkpoints(&mut TaskView::new(self.task), batch)?
        {
            *self.task.position() = continued.position;
            batch = continued.batch;
        }
        let sampler = evaluation::training_sampler(&group, train, lens.as_deref(), batch, config)?;
        let state = &mut self.state;
        (state.steps_per_epoch, state.global_batch) =
            (sampler.steps(), batch.saturating_mul(ranks));
        state.settings.global_batch_size = Some(state.global_batch);
        settings::add_that_may_change(&mut state.settings, &TaskView::new(self.task));
        Ok(Loader::new(Arc::new(train.clone()), sampler, self.loading.clone())?)
    }

    /// An epoch, or the part of one in which the run ends, with its evaluation, its report and its checkpoint. Returns
    /// why the training ends, if it does.
    fn run_epoch(
        &mut self,
        loader: &Loader<D>,
        reports: &mut Vec<EpochReport>,
    ) -> Result<Option<String>> {
        let Position { epoch, step_in_epoch, .. } = *self.task.position();
        self.state.lines.starting(epoch);
        let _span = tracing::debug_span!(target: "candelabrum::run", "epoch", epoch).entered();
        let (option, _) = self.task.strategy();
        let clock = EpochClock::start(self.task.optimizer(), option, step_in_epoch);
        let stopped = self.train_epoch(loader, &clock)?;
        if stopped.is_some() {
            return Ok(stopped);
        }
        let trained = *self.task.position();
        let is_whole = trained.step_in_epoch >= self.state.steps_per_epoch;
        if is_whole {
            *self.task.position() = Position { epoch: epoch + 1, step_in_epoch: 0, ..trained };
        } else {
            let (step, steps) = (trained.step_in_epoch, self.state.steps_per_epoch);
            self.state.note(&format!(
                "epoch {epoch} ends after {step} of its {steps} steps: the run has had its {} steps",
                trained.step
            ));
        }
        let counts = (!is_whole).then(|| self.state.metrics.clone());
        let Some((report, mut decision)) = self.end_epoch(epoch, &clock)? else {
            // The run that continues has no step left in this epoch, and evaluates.
            *self.task.position() = trained;
            return Ok(self.state.config.interrupt.ended().map(interrupted_by));
        };
        if let Some(counts) = counts {
            // A run that continues with more steps reports the whole epoch.
            self.state.metrics = counts;
            self.state.closed = Some(trained.step);
        }
        reports.push(report);
        decision.save |= self.state.is_due(trained.step);
        self.state.obey(&mut TaskView::new(self.task), decision)
    }

    /// Trains the rest of an epoch. Returns why the training ends, if it does.
    fn train_epoch(&mut self, loader: &Loader<D>, clock: &EpochClock) -> Result<Option<String>> {
        let position = *self.task.position();
        let Position { epoch, step_in_epoch, .. } = position;
        let control = self.control();
        if self.was_cut_in_evaluation_after(position) {
            let stopped = self.close_step(&control, HookRequests::default())?;
            if stopped.is_some() {
                return Ok(stopped);
            }
        }
        let (epochs, steps) = ((epoch, self.state.end), self.state.steps_per_epoch);
        let mut progress =
            Progress::new(epochs, steps, step_in_epoch, self.state.group.is_world_root());
        let left = self.state.steps_left(position);
        let mut batches = loader.epoch(epoch, step_in_epoch)?.take(left);
        while let Some(batch) = wait_for_batch(&mut batches) {
            if let Some(profile) = &self.state.memory {
                profile.on_step_start(&TaskView::new(self.task));
            }
            let mut stopped = self.train_batch(&batch?)?;
            if stopped.is_none() {
                let asked = self.count_step(&mut progress, clock)?;
                stopped = self.close_step(&control, asked)?;
            }
            if stopped.is_some() {
                progress.finish();
                return Ok(stopped);
            }
        }
        progress.finish();
        Ok(None)
    }

    /// Whether a signal has cut the evaluation after the last step of the run that is continued.
    fn was_cut_in_evaluation_after(&self, position: Position) -> bool {
        let evaluated = self.state.evaluated.as_ref();
        let is_evaluated = evaluated.is_some_and(|last| last.step == position.step);
        self.state.resumed.is_some()
            && !self.sets.is_empty()
            && !is_evaluated
            && self.evaluates_after(position)
    }

    /// A step on a batch, which may be empty: the last one of an uneven epoch, of which this rank has no part. Returns
    /// why the training ends, if a hook ends it because the step has failed on all ranks.
    fn train_batch(&mut self, batch: &B) -> Result<Option<String>> {
        let state = &mut self.state;
        let learning_rate = self.task.optimizer().learning_rate();
        let is_last = self.task.position().step_in_epoch + 1 == state.steps_per_epoch;
        let before = state.metrics.loss_weight();
        let trained = match batch.is_empty() {
            true => Ok(state.last.loss),
            false => self.task.train(batch, &mut state.metrics),
        };
        let trained = trained.and_then(|loss| {
            if state.config.uneven && is_last {
                // Some ranks may have no part of this step.
                self.task.join()?;
            }
            Ok(loss)
        });
        match trained {
            Ok(loss) => {
                let weight = state.metrics.loss_weight() - before;
                state.last = RankStep { loss, weight, learning_rate };
                Ok(None)
            }
            Err(error) if error.is_not_finite() => {
                state.after_bad_step(&mut TaskView::new(self.task), error).map(Some)
            }
            Err(error) => Err(error),
        }
    }

    /// Counts a step that has been taken, shows it, and asks the hooks.
    fn count_step(&mut self, progress: &mut Progress, clock: &EpochClock) -> Result<HookRequests> {
        let Position { epoch, step_in_epoch, step } = *self.task.position();
        *self.task.position() =
            Position { epoch, step_in_epoch: step_in_epoch + 1, step: step + 1 };
        let notes = TaskView::new(self.task).take_notes();
        notes.iter().for_each(|note| self.state.note_of_step(note, progress));
        let (samples, loss) = (self.state.global_batch, self.state.last.loss);
        progress.step(samples, loss, || clock.costs(self.task.optimizer()).per_step());
        let task = &mut TaskView::new(self.task);
        self.state.profile_memory(task, MemoryProfile::on_step_end)?;
        self.state.on_step_end(task)
    }

    /// What follows a step: its evaluation, if one is due, the decision of all ranks, and a checkpoint. Returns why
    /// the training ends, if it does.
    fn close_step(&mut self, control: &Control, mut asked: HookRequests) -> Result<Option<String>> {
        let position = *self.task.position();
        if self.evaluates_after(position)
            && !self.sets.is_empty()
            && self.evaluate(&mut asked)?.is_none()
        {
            // The run that continues evaluates, and is not complete before.
            asked.go_on();
        }
        // One that is due after the last step of an epoch, or of the run, has its evaluation, too.
        let is_last = self.state.steps_left(position) == 0;
        if !is_last && self.state.is_due(position.step) {
            asked.save();
        }
        let decision = control.after_step(asked, is_last)?;
        *self.task.position() = control.last_position(position)?;
        self.state.obey(&mut TaskView::new(self.task), decision)
    }

    /// Whether an evaluation is due after this step, beside those after each epoch.
    fn evaluates_after(&self, Position { step, step_in_epoch, .. }: Position) -> bool {
        let every = self.state.config.evaluate_every;
        let every = every.filter(|&every| every > 0 && step_in_epoch > 0);
        every.is_some_and(|every| step.is_multiple_of(every))
    }

    /// How the ranks decide.
    fn control(&mut self) -> Control {
        let in_step = self.task.optimizers().iter().all(|(_, optimizer)| optimizer.is_in_step());
        let hooks_act = self.state.hooks.iter().any(|hook| hook.acts_on_step_end());
        let FitConfig { interrupt, max_time, .. } = self.state.config;
        let control = Control::new(&self.state.group, interrupt, hooks_act, in_step);
        control.limited(self.state.start, *max_time)
    }

    /// The report of an epoch, after its evaluation. `None` if a signal has cut the evaluation: then nothing has
    /// changed.
    fn end_epoch(
        &mut self,
        epoch: usize,
        clock: &EpochClock,
    ) -> Result<Option<(EpochReport, Decision)>> {
        let costs = clock.costs(self.task.optimizer());
        if costs.steps.skipped > 1 {
            let (skipped, steps) = (costs.steps.skipped, costs.steps.steps);
            self.state.note(&format!("{skipped} of {steps} steps were left out"));
        }
        let own = std::mem::take(&mut self.state.metrics);
        let trained = own.over_ranks(&*self.state.group)?;
        let position = *self.task.position();
        let is_over = position.step_in_epoch == 0 || self.state.steps_left(position) == 0;
        // Gradients of nothing are zeros: only the decay of the weights would have changed the model.
        if is_over && trained.batches > 0.0 && trained.loss_weight() == 0.0 {
            return Err(Error::NothingCounted { epoch });
        }
        self.state.lines.trained(&trained);
        let (mut asked, mut evaluated) = (HookRequests::default(), None);
        if !self.sets.is_empty() {
            evaluated = self.evaluate(&mut asked)?;
            if evaluated.is_none() {
                self.state.metrics = own;
                return Ok(None);
            }
        }
        let seconds = clock.start.elapsed().as_secs_f64();
        self.state.lines.evaluated(evaluated.as_ref(), seconds);
        let (task, measured) = (&mut TaskView::new(self.task), (&trained, evaluated.as_ref()));
        let report = self.state.epoch_report(task, epoch, &costs, measured, seconds)?;
        self.state.ask(task, &mut asked, |hook, run| hook.on_epoch_end(run, &report))?;
        Ok(Some((report, Decision::from(asked))))
    }

    /// Evaluates on all sets, and asks the hooks. A model that has been evaluated after this step is not evaluated
    /// again, and the hooks know its metrics. `None` if a signal has cut the evaluation, on all ranks.
    fn evaluate(&mut self, asked: &mut HookRequests) -> Result<Option<Metrics>> {
        let step = self.task.position().step;
        if let Some(evaluated) = self.state.evaluated.as_ref().filter(|last| last.step == step) {
            return Ok(Some(evaluated.metrics.clone()));
        }
        let batch = self.state.config.batch_size;
        let control = self.control();
        let state = &mut self.state;
        let prepare = |task: &mut T| {
            state.each_hook(&mut TaskView::new(task), |_, hook, run| hook.before_evaluate(run))
        };
        let (task, loading) = (&mut *self.task, &self.loading);
        let sets = self.sets.datasets();
        let goes_on = |failed| control.goes_on(failed);
        let metrics = evaluation::run(task, &sets, batch, loading, prepare, goes_on);
        // Also after an error, which all ranks have.
        let restored = self.state.after_evaluate(&mut TaskView::new(self.task));
        let Some(metrics) = metrics.and_then(|metrics| restored.map(|()| metrics))? else {
            return Ok(None);
        };
        let metrics = self.sets.together(metrics);
        self.state.evaluated = Some(EvaluationRecord { step, metrics: metrics.clone() });
        let task = &mut TaskView::new(self.task);
        // A hook may compare with the best checkpoint, so it must know whether that has been written.
        self.state.settle(task)?;
        self.state.ask(task, asked, |hook, run| hook.on_evaluate(run, &metrics))?;
        Ok(Some(metrics))
    }
}

/// Waits for the next batch. The loader prepares batches ahead, so the wait is short if it is fast
/// enough.
fn wait_for_batch<B>(batches: &mut impl Iterator<Item = B>) -> Option<B> {
    let _span = tracing::debug_span!(target: "candelabrum::run", "load").entered();
    batches.next()
}
