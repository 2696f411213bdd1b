//! The order of everything in a run.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use candelabrum_datasets::{Collated, Dataset, Loader, LoaderOptions, Remainder};
use candelabrum_dist::launch::interrupted_by;
use candelabrum_dist::{CommStats, Group, StepFigures};
use candelabrum_nn::{DistOption, Params};

use super::config::FitConfig;
use super::control::{Asked, Control, Decision};
use super::kept::{self, Ended, Evaluated, Kept};
use super::lines::Lines;
use super::settings;
use crate::checkpoint::{
    Best, Change, Checkpoints, Position, Resumed, RunSettings, RunState, Stateful,
};
use crate::hooks::{Action, Hook, Run};
use crate::optimizer::digests;
use crate::progress::Progress;
use crate::task::Task;
use crate::{
    DistributedOptimizer, EpochReport, Error, Metrics, Result, StrategyReport, evaluation,
};

/// The maximum number of notes that an epoch prints.
const MOST_NOTES: usize = 3;

/// A run, between its start and its end.
pub(super) struct Session<'s, 'a, T: ?Sized, E> {
    task: &'s mut T,
    /// The data for evaluations.
    test: Option<&'s E>,
    config: &'s FitConfig,
    loading: LoaderOptions,
    hooks: Vec<Box<dyn Hook + 'a>>,
    lines: Lines<'a>,
    settings: RunSettings,
    checkpoints: Option<Checkpoints>,
    /// The checkpoint from which the run continued.
    resumed: Option<PathBuf>,
    /// This rank's counts of the present epoch.
    metrics: Metrics,
    /// This rank's part of the last step.
    last: LastStep,
    /// The last evaluation.
    evaluated: Option<Evaluated>,
    /// Why a hook has ended the run for good.
    ended: Option<Ended>,
    steps_per_epoch: usize,
    global_batch: usize,
    /// The epoch before which the run ends.
    end: usize,
    notes: Vec<String>,
}

/// The average cost of a step, for the progress line. Empty if nothing was sent.
fn cost(figures: &StepFigures, residual_norm: f64) -> String {
    if figures.steps == 0 || figures.bytes_sent == 0 {
        return String::new();
    }
    let milliseconds = |total: Duration| 1e3 * total.as_secs_f64() / figures.steps as f64;
    let kilobytes = |total: u64| total as f64 / figures.steps as f64 / 1e3;
    let mut line = format!(
        "; per step {:.0} kB sent, {:.0} kB received, compress {:.2} ms, communicate \
         {:.2} ms, decompress {:.2} ms",
        kilobytes(figures.bytes_sent),
        kilobytes(figures.bytes_received),
        milliseconds(figures.compress),
        milliseconds(figures.communication),
        milliseconds(figures.decompress),
    );
    if residual_norm > 0.0 {
        line += &format!("; residual {residual_norm:.2}");
    }
    if figures.skipped > 0 {
        line += &format!("; {} skipped", figures.skipped);
    }
    line
}

/// This rank's part of a step.
#[derive(Clone, Copy, Debug, Default)]
struct LastStep {
    loss: f32,
    /// What the loss counted.
    weight: f64,
    learning_rate: Option<f64>,
}

/// How an epoch ended.
enum End {
    Complete,
    Stopped(String),
}

impl<'s, 'a, T, E> Session<'s, 'a, T, E>
where
    T: Task<E::Batch> + ?Sized,
    E: Dataset + Clone,
    E::Batch: Collated,
{
    pub(super) fn new(
        task: &'s mut T,
        test: Option<&'s E>,
        config: &'s FitConfig,
        loading: LoaderOptions,
        hooks: Vec<Box<dyn Hook + 'a>>,
        out: Option<&'a mut dyn Write>,
    ) -> Self {
        Self {
            task,
            test,
            config,
            loading,
            hooks,
            lines: Lines::new(out),
            settings: RunSettings::default(),
            checkpoints: None,
            resumed: None,
            metrics: Metrics::default(),
            last: LastStep::default(),
            evaluated: None,
            ended: None,
            steps_per_epoch: 0,
            global_batch: 0,
            end: 0,
            notes: Vec::new(),
        }
    }

    pub(super) fn run<D>(mut self, train: &D) -> Result<Vec<EpochReport>>
    where
        D: Dataset<Batch = E::Batch> + Clone,
    {
        let params: Vec<Params> = self
            .task
            .optimizers()
            .iter()
            .map(|(_, optimizer)| optimizer.params().clone())
            .collect();
        if !self.task.optimizer().group().is_world_root() {
            self.lines = Lines::new(None);
        }
        let result = evaluation::in_mode(&params, true, || self.run_epochs(train));
        result.inspect_err(|error| self.hooks.iter_mut().for_each(|hook| hook.on_error(error)))
    }

    fn run_epochs<D>(&mut self, train: &D) -> Result<Vec<EpochReport>>
    where
        D: Dataset<Batch = E::Batch> + Clone,
    {
        let group = self.task.optimizer().group().clone();
        let before = *self.task.position();
        self.end = before.epoch + self.config.epochs;
        let has_peers = group.world_size() > 1;
        // The digest of all data takes time: only other ranks and later runs need it.
        if has_peers || self.config.checkpoints.is_some() {
            self.settings = settings::of_run(self.config, train)?;
        }
        if has_peers {
            let test = self.test.map(Dataset::fingerprint).transpose()?;
            let hooks = kept::keys(&self.hooks);
            let other =
                [("the hooks", hooks.join(", ")), ("the test data", test.unwrap_or_default())];
            settings::check_same(&group, &self.settings, self.config, before, other)?;
        }
        let loader = self.begin(train, &group)?;
        self.each_hook(|hook, run| hook.on_start(run))?;
        let mut reports = Vec::new();
        let mut stopped = self.ended.as_ref().map(|ended| ended.reason.clone());
        let has_ended = stopped.is_some();
        if let Some(why) = &stopped {
            let note = format!(
                "the run has ended: {why}; nothing is trained. To go on, leave out the hook that has ended it, or name a checkpoint to resume from"
            );
            self.note(&note);
        }
        while self.task.position().epoch < self.end && stopped.is_none() {
            let epoch = self.task.position().epoch;
            self.lines.starting(epoch);
            let _span = tracing::debug_span!(target: "candelabrum::run", "epoch", epoch).entered();
            let clock = EpochClock::start(self.task);
            if let End::Stopped(why) = self.train_epoch(&loader)? {
                stopped = Some(why);
                break;
            }
            let trained = *self.task.position();
            *self.task.position() = Position { epoch: epoch + 1, step_in_epoch: 0, ..trained };
            let Some((report, mut decision)) = self.end_epoch(&clock)? else {
                // The run that continues has no step left in this epoch, and evaluates.
                *self.task.position() = trained;
                stopped = self.config.interrupt.ended().map(interrupted_by);
                break;
            };
            reports.push(report);
            let step = self.task.position().step;
            decision.save |= self.is_due(step);
            stopped = self.obey(decision)?;
        }
        self.finish(stopped.as_deref(), has_ended)?;
        Ok(reports)
    }

    /// Continues from a checkpoint, if there is one, and divides the data.
    fn begin<D>(&mut self, train: &D, group: &Group) -> Result<Loader<D>>
    where
        D: Dataset<Batch = E::Batch> + Clone,
    {
        let ranks = group.world_size();
        let mut batch = self.config.batch_size * self.config.accumulate.max(1);
        self.settings.global_batch_size = Some(batch * ranks);
        if let Some((dir, config)) = &self.config.checkpoints {
            let begins = *self.task.position() == Position::default();
            let mut checkpoints = Checkpoints::open(dir, group, config.clone(), begins)?;
            let resumed = match begins {
                true => checkpoints
                    .resume(&mut as_stateful(&mut self.task.optimizers()), &self.settings)?,
                false => None,
            };
            if let Some(resumed) = resumed {
                batch = self.resume(resumed, batch, ranks)?;
                let abandoned = checkpoints.abandon()?;
                if abandoned > 0 {
                    let note = format!(
                        "{abandoned} later checkpoint(s) now have names that begin with `abandoned-`"
                    );
                    self.note(&note);
                }
            }
            self.checkpoints = Some(checkpoints);
        }
        let seed = self.config.seed;
        let remainder = if self.config.uneven { Remainder::Keep } else { Remainder::Drop };
        let sampler = evaluation::sampler(group, train, batch, Some(seed), remainder)?;
        (self.steps_per_epoch, self.global_batch) = (sampler.steps(), sampler.global_batch_size());
        self.settings.global_batch_size = Some(self.global_batch);
        settings::add_that_may_change(&mut self.settings, self.task);
        Ok(Loader::new(Arc::new(train.clone()), sampler, self.loading.clone())?)
    }

    /// Takes over what a checkpoint has. Returns this rank's batch: at another number of ranks the global batches
    /// stay as they were.
    fn resume(&mut self, resumed: Resumed, batch: usize, ranks: usize) -> Result<usize> {
        let Resumed { path, state, world_size, skipped, is_branch } = resumed;
        let RunState { position, settings, shared, metrics, .. } = state;
        let refuse = |what: String| Error::Checkpoint { path: path.clone(), what };
        // The checkpoint was refused if its global batches could not go on.
        let own = settings.global_batch_size.map_or(batch, |saved| saved / ranks);
        let kept = Kept::of_shared(&shared, position.step);
        let kept = kept.map_err(|error| refuse(format!("cannot be continued: {error}")))?;
        *self.task.position() = position;
        self.metrics = metrics;
        for why in skipped {
            self.note(&format!("skipped a newer checkpoint: {why}"));
        }
        let Position { epoch, step_in_epoch, step } = position;
        let resumed_from = path.clone();
        let path = path.display();
        let mut note =
            format!("continues {path}: epoch {epoch}, step {step_in_epoch}, {step} steps in all");
        if world_size != ranks {
            note += &format!("; {world_size} rank(s) before, {ranks} now, with batches of {own}");
        }
        self.note(&note);
        if settings.data.is_some() && settings.data != self.settings.data {
            // Of format 1, whose fingerprints of some data were others. It is refused otherwise.
            let note = "the checkpoint is of an earlier version, so its training data could not be compared with these";
            self.note(note);
        }
        let mut here = RunSettings::default();
        settings::add_that_may_change(&mut here, self.task);
        for Change { what, there, here } in settings.changed(&here) {
            let note = format!("{what} was `{there}` until then, and is `{here}` from now on");
            self.note(&note);
        }
        let keys = kept::keys(&self.hooks);
        let mut notes = Vec::new();
        for (key, hook) in keys.iter().zip(&mut self.hooks) {
            if let Some(state) = kept.state_of(key, &**hook) {
                notes.extend(kept::restore(&mut **hook, state)?);
            }
        }
        notes.iter().for_each(|note| self.note(note));
        self.evaluated = kept.evaluated;
        // Who goes back to a checkpoint wants to go on from there, and so does who leaves the hook out.
        let is_left_out =
            |ended: &Ended| ended.hook.as_ref().is_some_and(|hook| !keys.contains(hook));
        self.ended = kept.ended.filter(|ended| !is_branch && !is_left_out(ended));
        self.resumed = Some(resumed_from);
        Ok(own)
    }

    /// Trains the rest of an epoch.
    fn train_epoch<D>(&mut self, loader: &Loader<D>) -> Result<End>
    where
        D: Dataset<Batch = E::Batch>,
    {
        let position = *self.task.position();
        let Position { epoch, step_in_epoch, .. } = position;
        let (option, _) = self.task.strategy();
        let control = self.control();
        // A signal has cut the evaluation after the last step, and the run continues.
        let is_evaluated = self.evaluated.as_ref().is_some_and(|last| last.step == position.step);
        if self.resumed.is_some()
            && self.test.is_some()
            && !is_evaluated
            && self.evaluates_after(position)
            && let Some(why) = self.close_step(&control, Asked::default())?
        {
            return Ok(End::Stopped(why));
        }
        let mut progress = Progress::new(
            (epoch, self.end),
            self.steps_per_epoch,
            step_in_epoch,
            self.task.optimizer().group().is_world_root(),
        );
        let first = figures(self.task, option);
        let mut batches = loader.epoch(epoch, step_in_epoch)?;
        while let Some(batch) = wait_for_batch(&mut batches) {
            let batch = batch?;
            if let Some(why) = self.train_batch(&batch)? {
                progress.finish();
                return Ok(End::Stopped(why));
            }
            let Position { step_in_epoch, step, .. } = *self.task.position();
            let position = Position { epoch, step_in_epoch: step_in_epoch + 1, step: step + 1 };
            *self.task.position() = position;
            let notes = self.task.optimizers().into_iter();
            let notes: Vec<_> = notes.flat_map(|(_, optimizer)| optimizer.take_notes()).collect();
            notes.iter().for_each(|note| self.note_with(note, Some(&progress)));
            progress.step(self.global_batch, self.last.loss, || {
                cost(&(figures(self.task, option) - first), residual_norm(self.task))
            });
            let asked = self.after_step()?;
            if let Some(why) = self.close_step(&control, asked)? {
                progress.finish();
                return Ok(End::Stopped(why));
            }
        }
        progress.finish();
        Ok(End::Complete)
    }

    /// A step on a batch, which may be empty: the last one of an uneven epoch, of which this rank has no part. Returns
    /// why the training ends, if a hook ends it because the step has failed on all ranks.
    fn train_batch(&mut self, batch: &E::Batch) -> Result<Option<String>> {
        let learning_rate = self.task.optimizer().learning_rate();
        let is_last = self.task.position().step_in_epoch + 1 == self.steps_per_epoch;
        let before = self.metrics.loss_weight();
        let trained = match batch.is_empty() {
            true => Ok(self.last.loss),
            false => self.task.train(batch, &mut self.metrics),
        };
        let trained = trained.and_then(|loss| {
            if self.config.uneven && is_last {
                // Some ranks may have no part of this step.
                self.task.join()?;
            }
            Ok(loss)
        });
        let error = match trained {
            Ok(loss) => {
                let weight = self.metrics.loss_weight() - before;
                self.last = LastStep { loss, weight, learning_rate };
                return Ok(None);
            }
            Err(error) if error.is_not_finite() => error,
            Err(error) => return Err(error),
        };
        let mut end = None;
        let keys = kept::keys(&self.hooks);
        let mut number = 0;
        self.each_hook(|hook, run| {
            if let Some(reason) = hook.on_bad_step(run, &error)? {
                let hook = Some(keys[number].clone());
                end.get_or_insert(Ended { reason, hook });
            }
            number += 1;
            Ok(())
        })?;
        self.ended = end;
        self.ended.as_ref().map(|ended| Some(ended.reason.clone())).ok_or(error)
    }

    /// What follows a step: its evaluation, if one is due, the decision of all ranks, and a checkpoint. Returns why
    /// the training ends, if it does.
    fn close_step(&mut self, control: &Control, mut asked: Asked) -> Result<Option<String>> {
        let position = *self.task.position();
        if self.evaluates_after(position)
            && let Some(test) = self.test
            && self.evaluate(test, &mut asked)?.is_none()
        {
            // The run that continues evaluates, and is not complete before.
            asked.go_on();
        }
        // One that is due after the last step of an epoch has its evaluation, too.
        let is_last = position.step_in_epoch == self.steps_per_epoch;
        if !is_last && self.is_due(position.step) {
            asked.save();
        }
        let decision = control.after_step(asked, is_last)?;
        *self.task.position() = control.last_position(position)?;
        self.obey(decision)
    }

    /// Whether an evaluation is due after this step, beside those after each epoch.
    fn evaluates_after(&self, Position { step, step_in_epoch, .. }: Position) -> bool {
        let every = self.config.evaluate_every.filter(|&every| every > 0 && step_in_epoch > 0);
        every.is_some_and(|every| step.is_multiple_of(every))
    }

    /// How the ranks decide.
    fn control(&mut self) -> Control {
        let in_step = self.task.optimizers().iter().all(|(_, optimizer)| optimizer.is_in_step());
        let hooks_act = self.hooks.iter().any(|hook| hook.acts_after_steps());
        Control::new(self.task.optimizer().group(), &self.config.interrupt, hooks_act, in_step)
    }

    /// Makes the checkpoint of a decision. Returns why the training ends, if it does.
    fn obey(&mut self, decision: Decision) -> Result<Option<String>> {
        let Decision { stop, ended_by, save, best } = decision;
        if let (Some(reason), Some(hook)) = (&stop, ended_by) {
            let hook = hook.and_then(|hook| kept::keys(&self.hooks).into_iter().nth(hook));
            self.ended = Some(Ended { reason: reason.clone(), hook });
        }
        if save {
            self.save(&best)?;
        }
        Ok(stop)
    }

    /// The report of an epoch, after its evaluation. `None` if a signal has cut the evaluation: then nothing has
    /// changed.
    fn end_epoch(&mut self, clock: &EpochClock) -> Result<Option<(EpochReport, Decision)>> {
        let train_seconds = clock.start.elapsed().as_secs_f64();
        let (option, _) = self.task.strategy();
        let steps = figures(self.task, option) - clock.figures;
        let traffic = traffic(self.task) - clock.traffic;
        let residual_norm = residual_norm(self.task);
        if steps.skipped > 1 {
            let note = format!("{} of {} steps were left out", steps.skipped, steps.steps);
            self.note(&note);
        }
        let own = std::mem::take(&mut self.metrics);
        let trained = own.over_ranks(&**self.task.optimizer().group())?;
        self.lines.trained(&trained);
        let (mut asked, mut evaluated) = (Asked::default(), None);
        if let Some(test) = self.test {
            evaluated = self.evaluate(test, &mut asked)?;
            if evaluated.is_none() {
                self.metrics = own;
                return Ok(None);
            }
        }
        let seconds = clock.start.elapsed().as_secs_f64();
        self.lines.evaluated(evaluated.as_ref(), seconds);
        let report = EpochReport {
            epoch: self.task.position().epoch - 1,
            train_loss: trained.loss,
            train_accuracy: trained.measure("accuracy"),
            eval_accuracy: evaluated.as_ref().and_then(|metrics| metrics.measure("accuracy")),
            eval_loss: evaluated.as_ref().map(Metrics::mean_loss),
            measures: measures(&trained, evaluated.as_ref()),
            seconds,
            train_seconds,
            images_per_second: clock.steps(self.steps_per_epoch) * self.global_batch as f64
                / train_seconds,
            bytes_sent: traffic.bytes_sent,
            bytes_received: traffic.bytes_received,
            comm_seconds: traffic.busy.as_secs_f64(),
            exposed_comm_seconds: traffic.exposed.as_secs_f64(),
            strategy: StrategyReport::new(option, &steps, residual_norm),
            notes: std::mem::take(&mut self.notes),
            parameters_sha256: equal_parameters(self.task)?,
        };
        self.ask(&mut asked, |hook, run| hook.after_epoch(run, &report))?;
        Ok(Some((report, Decision::from(asked))))
    }

    /// Evaluates on all of `test`, and asks the hooks. A model that has been evaluated after this step is not evaluated
    /// again, and the hooks know its metrics. `None` if a signal has cut the evaluation, on all ranks.
    fn evaluate(&mut self, test: &E, asked: &mut Asked) -> Result<Option<Metrics>> {
        let step = self.task.position().step;
        if let Some(evaluated) = self.evaluated.as_ref().filter(|last| last.step == step) {
            return Ok(Some(evaluated.metrics.clone()));
        }
        let batch = self.config.batch_size;
        let control = self.control();
        let metrics = evaluation::run(self.task, test, batch, &self.loading, || control.goes_on())?;
        let Some(metrics) = metrics else { return Ok(None) };
        self.evaluated = Some(Evaluated { step, metrics: metrics.clone() });
        // A hook may compare with the best checkpoint, so it must know whether that has been written.
        self.settle()?;
        self.ask(asked, |hook, run| hook.on_evaluate(run, &metrics))?;
        Ok(Some(metrics))
    }

    fn after_step(&mut self) -> Result<Asked> {
        let mut asked = Asked::default();
        self.ask(&mut asked, |hook, run| {
            let action = hook.after_step(run)?;
            Ok(if hook.acts_after_steps() { action } else { Action::NOTHING })
        })?;
        Ok(asked)
    }

    /// Adds to `asked` what `f` says that each hook asks for.
    fn ask(
        &mut self,
        asked: &mut Asked,
        mut f: impl FnMut(&mut (dyn Hook + 'a), &mut Run<'_, '_>) -> Result<Action>,
    ) -> Result<()> {
        let mut number = 0;
        self.each_hook(|hook, run| {
            asked.add(number, f(hook, run)?);
            number += 1;
            Ok(())
        })
    }

    /// Waits for the checkpoint that is being written, and tells the hooks whether it is on the disk.
    fn settle(&mut self) -> Result<()> {
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        let Some(outcome) = checkpoints.wait()? else { return Ok(()) };
        if let Some(why) = &outcome.failed {
            self.note(&format!("{why}; the training goes on"));
        }
        self.each_hook(|hook, run| hook.on_written(run, &outcome))
    }

    fn is_due(&self, step: u64) -> bool {
        self.checkpoints.as_ref().is_some_and(|all| all.is_due(step))
    }

    /// Makes a checkpoint. `best` has the hooks for which it is the best one, with the values.
    fn save(&mut self, best: &[(usize, f64)]) -> Result<()> {
        if self.checkpoints.is_none() {
            return Ok(());
        }
        // The states of hooks depend on whether the checkpoint before this one is on the disk.
        self.settle()?;
        let Some(mut checkpoints) = self.checkpoints.take() else { return Ok(()) };
        let position = *self.task.position();
        let files = kept::best_files(&self.hooks);
        let best = best.iter().filter_map(|&(hook, value)| {
            let (file, measure) = files.get(hook).cloned().flatten()?;
            Some((file, Best { step: position.step, value, measure }))
        });
        let states = self.hooks.iter().map(|hook| hook.state());
        let kept = Kept {
            hooks: kept::keys(&self.hooks).into_iter().zip(states).collect(),
            evaluated: self.evaluated.clone(),
            ended: self.ended.clone(),
        };
        let state = RunState {
            position,
            settings: self.settings.clone(),
            shared: kept.to_shared(),
            metrics: self.metrics.clone(),
            best: best.collect(),
        };
        let saved = checkpoints.save(&mut as_stateful(&mut self.task.optimizers()), &state);
        self.checkpoints = Some(checkpoints);
        let saved = saved?;
        self.each_hook(|hook, run| hook.on_checkpoint(run, &saved))
    }

    /// Makes the last checkpoint, waits for it, and tells the hooks. `is_said`: the user knows why the run has ended.
    fn finish(&mut self, stopped: Option<&str>, is_said: bool) -> Result<()> {
        self.settle()?;
        let step = self.task.position().step;
        if self.checkpoints.as_ref().is_some_and(|all| all.last() != Some(step)) {
            self.save(&[])?;
        }
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.finish()?;
        }
        if let Some(why) = stopped.filter(|_| !is_said) {
            let saved = self.checkpoints.as_ref().map(|all| all.path_of(step));
            let saved = saved.map(|path| format!("; saved {}", path.display())).unwrap_or_default();
            self.note(&format!("the training ends after {step} steps: {why}{saved}"));
        }
        self.each_hook(|hook, run| hook.on_end(run, stopped))
    }

    /// Calls `f` with each hook.
    fn each_hook(
        &mut self,
        mut f: impl FnMut(&mut (dyn Hook + 'a), &mut Run<'_, '_>) -> Result<()>,
    ) -> Result<()> {
        if self.hooks.is_empty() {
            return Ok(());
        }
        let position = *self.task.position();
        let mut optimizers = self.task.optimizers();
        for hook in &mut self.hooks {
            let mut run = Run {
                position,
                steps_per_epoch: self.steps_per_epoch,
                epochs: self.end,
                global_batch_size: self.global_batch,
                makes_checkpoints: self.config.checkpoints.is_some(),
                resumed: self.resumed.as_deref(),
                loss: self.last.loss,
                loss_weight: self.last.weight,
                step_learning_rate: self.last.learning_rate,
                metrics: &self.metrics,
                optimizers: &mut optimizers,
            };
            f(&mut **hook, &mut run)?;
        }
        Ok(())
    }

    fn note(&mut self, note: &str) {
        self.note_with(note, None);
    }

    /// Prints a note on rank 0, and keeps it for the report. Steps often repeat a note, so only the first few of an
    /// epoch are printed and kept.
    fn note_with(&mut self, note: &str, progress: Option<&Progress>) {
        if self.notes.len() == MOST_NOTES && progress.is_some() {
            return;
        }
        if self.task.optimizer().group().is_world_root() {
            Progress::note(progress, note);
        }
        self.hooks.iter_mut().for_each(|hook| hook.on_note(note));
        self.notes.push(note.to_owned());
    }
}

/// The models as parts of a checkpoint.
fn as_stateful<'p>(
    optimizers: &'p mut [(&'p str, &mut dyn DistributedOptimizer)],
) -> Vec<(&'p str, &'p mut dyn Stateful)> {
    optimizers.iter_mut().map(|(name, it)| (*name, &mut **it as &mut dyn Stateful)).collect()
}

/// What an epoch is measured against.
struct EpochClock {
    start: Instant,
    figures: StepFigures,
    traffic: CommStats,
    /// The first step, which is not 0 if the run continues in the middle of the epoch.
    first_step: usize,
}

impl EpochClock {
    fn start<B, T: Task<B> + ?Sized>(task: &mut T) -> Self {
        let (option, _) = task.strategy();
        let (figures, traffic) = (figures(task, option), traffic(task));
        let first_step = task.position().step_in_epoch;
        Self { start: Instant::now(), figures, traffic, first_step }
    }

    /// The steps of this process in an epoch of so many steps.
    fn steps(&self, all: usize) -> f64 {
        all.saturating_sub(self.first_step) as f64
    }
}

/// The figures of the first model's steps.
fn figures<B, T: Task<B> + ?Sized>(task: &mut T, option: DistOption) -> StepFigures {
    task.optimizer().figures(option)
}

fn traffic<B, T: Task<B> + ?Sized>(task: &mut T) -> CommStats {
    task.optimizer().traffic()
}

fn residual_norm<B, T: Task<B> + ?Sized>(task: &mut T) -> f64 {
    task.optimizer().residual_norm()
}

/// All measures of an epoch, by `train/NAME` and `evaluation/NAME`.
fn measures(trained: &Metrics, evaluated: Option<&Metrics>) -> BTreeMap<String, f64> {
    let named = |phase: &str, metrics: &Metrics| {
        let named = metrics.measures().map(|(name, value)| (format!("{phase}/{name}"), value));
        named.collect::<Vec<_>>()
    };
    let evaluated = evaluated.map(|metrics| named("evaluation", metrics)).unwrap_or_default();
    named("train", trained).into_iter().chain(evaluated).collect()
}

/// The digest of each rank's parameters, which must be the same.
fn equal_parameters<B, T: Task<B> + ?Sized>(task: &mut T) -> Result<Vec<String>> {
    let digests = digests(&task.optimizers())?;
    match digests.iter().position(|digest| *digest != digests[0]) {
        Some(rank) => Err(Error::ReplicasDiffer { rank }),
        None => Ok(digests),
    }
}

/// Waits for the next batch. The loader prepares batches ahead, so the wait is short if it is fast
/// enough.
fn wait_for_batch<B>(batches: &mut impl Iterator<Item = B>) -> Option<B> {
    let _span = tracing::debug_span!(target: "candelabrum::run", "load").entered();
    batches.next()
}
