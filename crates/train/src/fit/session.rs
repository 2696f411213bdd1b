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
use serde_json::Value;

use super::config::FitConfig;
use super::control::{Control, Decision};
use super::lines::Lines;
use super::settings;
use crate::checkpoint::{Checkpoints, Part, Position, Resumed, RunState};
use crate::hooks::{Action, Hook, Run};
use crate::progress::Progress;
use crate::task::Task;
use crate::trainer_opt::digests;
use crate::{EpochReport, Error, Metrics, RanksOpt, Result, StrategyReport, evaluation};

/// The maximum number of notes that an epoch prints.
const MOST_NOTES: usize = 3;

/// The name of the batch size in a checkpoint.
const GLOBAL_BATCH: &str = "the global batch size";

/// The name of the last evaluation's step in a checkpoint, beside the states of hooks. After a signal in an
/// evaluation it is an earlier step than the checkpoint's.
const EVALUATED: &str = "the step of the last evaluation";

/// A run, between its start and its end.
pub(super) struct Session<'s, 'a> {
    config: &'s FitConfig,
    loading: LoaderOptions,
    hooks: Vec<Box<dyn Hook + 'a>>,
    lines: Lines<'a>,
    settings: BTreeMap<String, String>,
    checkpoints: Option<Checkpoints>,
    /// The checkpoint from which the run continued.
    resumed: Option<PathBuf>,
    /// This rank's counts of the present epoch.
    metrics: Metrics,
    loss: f32,
    steps_per_epoch: usize,
    global_batch: usize,
    /// The epoch before which the run ends.
    end: usize,
    /// The step of the last evaluation, or of the start.
    evaluated: u64,
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

/// How an epoch ended.
enum End {
    Complete,
    Stopped(String),
}

impl<'s, 'a> Session<'s, 'a> {
    pub(super) fn new(
        config: &'s FitConfig,
        loading: LoaderOptions,
        hooks: Vec<Box<dyn Hook + 'a>>,
        out: Option<&'a mut dyn Write>,
    ) -> Self {
        Self {
            config,
            loading,
            hooks,
            lines: Lines::new(out),
            settings: BTreeMap::new(),
            checkpoints: None,
            resumed: None,
            metrics: Metrics::default(),
            loss: 0.0,
            steps_per_epoch: 0,
            global_batch: 0,
            end: 0,
            evaluated: 0,
            notes: Vec::new(),
        }
    }

    pub(super) fn run<B, T, D, E>(
        mut self,
        task: &mut T,
        train: &D,
        test: Option<&E>,
    ) -> Result<Vec<EpochReport>>
    where
        B: Collated,
        T: Task<B> + ?Sized,
        D: Dataset<Batch = B> + Clone,
        E: Dataset<Batch = B> + Clone,
    {
        let params: Vec<Params> =
            task.parts().iter().map(|(_, part)| part.params().clone()).collect();
        if !task.group().is_world_root() {
            self.lines = Lines::new(None);
        }
        evaluation::in_mode(&params, true, || self.run_epochs(task, train, test))
    }

    fn run_epochs<B, T, D, E>(
        &mut self,
        task: &mut T,
        train: &D,
        test: Option<&E>,
    ) -> Result<Vec<EpochReport>>
    where
        B: Collated,
        T: Task<B> + ?Sized,
        D: Dataset<Batch = B> + Clone,
        E: Dataset<Batch = B> + Clone,
    {
        let group = task.group().clone();
        let before = *task.position();
        self.end = before.epoch + self.config.epochs;
        self.evaluated = before.step;
        let has_peers = group.world_size() > 1;
        // The digest of all data takes time: only other ranks and later runs need it.
        if has_peers || self.config.checkpoints.is_some() {
            self.settings = settings::of_run(self.config, train)?;
        }
        if has_peers {
            let test = test.map(Dataset::fingerprint).transpose()?;
            let hooks: Vec<&str> = self.hooks.iter().map(|hook| hook.name()).collect();
            let other =
                [("the hooks", hooks.join(", ")), ("the test data", test.unwrap_or_default())];
            settings::check_same(&group, &self.settings, self.config, before, other)?;
        }
        let loader = self.begin(task, train, &group)?;
        self.each_hook(task, |hook, run| hook.on_start(run))?;
        let (mut reports, mut stopped) = (Vec::new(), None);
        while task.position().epoch < self.end && stopped.is_none() {
            let epoch = task.position().epoch;
            self.lines.starting(epoch);
            let _span = tracing::debug_span!(target: "candelabrum::run", "epoch", epoch).entered();
            let clock = EpochClock::start(task);
            if let End::Stopped(why) = self.train_epoch(task, &loader, test)? {
                stopped = Some(why);
                break;
            }
            let trained = *task.position();
            *task.position() = Position { epoch: epoch + 1, step_in_epoch: 0, ..trained };
            let Some((report, mut decision)) = self.end_epoch(task, test, &clock)? else {
                // The run that continues has no step left in this epoch, and evaluates.
                *task.position() = trained;
                stopped = self.config.interrupt.ended().map(interrupted_by);
                break;
            };
            reports.push(report);
            decision.save |= self.is_due(task.position().step);
            stopped = decision.stop.clone();
            self.save_if(task, &decision)?;
        }
        self.finish(task, stopped.as_deref())?;
        Ok(reports)
    }

    /// Continues from a checkpoint, if there is one, and divides the data.
    fn begin<B, T, D>(&mut self, task: &mut T, train: &D, group: &Group) -> Result<Loader<D>>
    where
        T: Task<B> + ?Sized,
        D: Dataset<Batch = B> + Clone,
        B: Collated,
    {
        let ranks = group.world_size();
        let mut batch = self.config.batch_size * self.config.accumulate.max(1);
        if let Some((dir, config)) = &self.config.checkpoints {
            let begins = *task.position() == Position::default();
            let mut checkpoints = Checkpoints::open(dir, group, config.clone(), begins)?;
            let resumed = match begins {
                true => checkpoints.resume(&mut as_parts(&mut task.parts()), &self.settings)?,
                false => None,
            };
            self.checkpoints = Some(checkpoints);
            if let Some(resumed) = resumed {
                batch = self.resume(task, resumed, batch, ranks)?;
            }
        }
        let seed = self.config.seed;
        let remainder = if self.config.uneven { Remainder::Keep } else { Remainder::Drop };
        let sampler = evaluation::sampler(group, train, batch, Some(seed), remainder)?;
        (self.steps_per_epoch, self.global_batch) = (sampler.steps(), sampler.global_batch_size());
        self.settings.insert(GLOBAL_BATCH.to_owned(), self.global_batch.to_string());
        self.settings.extend(settings::that_may_change(task));
        Ok(Loader::new(Arc::new(train.clone()), sampler, self.loading.clone())?)
    }

    /// Takes over what a checkpoint has. Returns this rank's batch: at another number of ranks the global batches
    /// stay as they were.
    fn resume<B, T: Task<B> + ?Sized>(
        &mut self,
        task: &mut T,
        resumed: Resumed,
        batch: usize,
        ranks: usize,
    ) -> Result<usize> {
        let Resumed { path, state, world_size, skipped } = resumed;
        let RunState { position, settings, shared, metrics } = state;
        let refuse = |what: String| Error::Checkpoint { path: path.clone(), what };
        let saved = settings.get(GLOBAL_BATCH).and_then(|size| size.parse::<usize>().ok());
        let mut own = batch;
        if let Some(saved) = saved.filter(|saved| *saved != batch * ranks) {
            own = saved / ranks;
            if world_size == ranks {
                let global = batch * ranks;
                return Err(refuse(format!(
                    "was made with a global batch of {saved}, this run has one of {global}"
                )));
            }
            if !saved.is_multiple_of(ranks) {
                return Err(refuse(format!(
                    "has a global batch of {saved}, which {ranks} ranks cannot divide equally: use a number of ranks by which it can be divided"
                )));
            }
        }
        *task.position() = position;
        self.evaluated = shared.get(EVALUATED).and_then(Value::as_u64).unwrap_or(position.step);
        self.metrics = metrics;
        for hook in &mut self.hooks {
            if let Some(state) = shared.get(hook.name()).filter(|state| !state.is_null()) {
                hook.restore(state)?;
            }
        }
        for why in skipped {
            self.note(task.group(), &format!("skipped a newer checkpoint: {why}"));
        }
        let Position { epoch, step_in_epoch, step } = position;
        let resumed_from = path.clone();
        let path = path.display();
        let mut note =
            format!("continues {path}: epoch {epoch}, step {step_in_epoch}, {step} steps in all");
        if world_size != ranks {
            note += &format!("; {world_size} rank(s) before, {ranks} now, with batches of {own}");
        }
        self.note(task.group(), &note);
        for (name, here) in settings::that_may_change(task) {
            if let Some(there) = settings.get(&name).filter(|there| **there != here) {
                let note = format!("{name} was `{there}` until then, and is `{here}` from now on");
                self.note(task.group(), &note);
            }
        }
        self.resumed = Some(resumed_from);
        Ok(own)
    }

    /// Trains the rest of an epoch.
    fn train_epoch<B, T, D, E>(
        &mut self,
        task: &mut T,
        loader: &Loader<D>,
        test: Option<&E>,
    ) -> Result<End>
    where
        B: Collated,
        T: Task<B> + ?Sized,
        D: Dataset<Batch = B>,
        E: Dataset<Batch = B> + Clone,
    {
        let Position { epoch, step_in_epoch, .. } = *task.position();
        let group = task.group().clone();
        let (option, _) = task.strategy();
        let control = self.control(task);
        // A signal has cut the evaluation after the last step, and the run continues.
        if self.evaluated != task.position().step
            && test.is_some()
            && self.evaluates_after(*task.position())
            && let Some(why) = self.close_step(task, test, &control, Action::NOTHING)?
        {
            return Ok(End::Stopped(why));
        }
        let mut progress = Progress::new(
            (epoch, self.end),
            self.steps_per_epoch,
            step_in_epoch,
            group.is_world_root(),
        );
        let first = figures(task, option);
        let mut batches = loader.epoch(epoch, step_in_epoch)?;
        while let Some(batch) = wait_for_batch(&mut batches) {
            let batch = batch?;
            if batch.is_empty() {
                break; // The last batch of an uneven epoch, of which this rank has no part.
            }
            self.loss = task.train(&batch, &mut self.metrics)?;
            let Position { step_in_epoch, step, .. } = *task.position();
            let position = Position { epoch, step_in_epoch: step_in_epoch + 1, step: step + 1 };
            *task.position() = position;
            for note in task.parts().into_iter().flat_map(|(_, part)| part.take_notices()) {
                self.note_with(&group, &note, Some(&progress));
            }
            progress.step(self.global_batch, self.loss, || {
                cost(&(figures(task, option) - first), residual_norm(task))
            });
            if self.config.uneven && position.step_in_epoch == self.steps_per_epoch {
                break; // Other ranks may have no part of this step.
            }
            let asked = self.after_step(task)?;
            if let Some(why) = self.close_step(task, test, &control, asked)? {
                progress.finish();
                return Ok(End::Stopped(why));
            }
        }
        if self.config.uneven {
            task.join()?;
            let Position { epoch, step_in_epoch, step } = *task.position();
            let (steps, missed) = (self.steps_per_epoch, self.steps_per_epoch - step_in_epoch);
            *task.position() = Position { epoch, step_in_epoch: steps, step: step + missed as u64 };
        }
        progress.finish();
        Ok(End::Complete)
    }

    /// What follows a step: its evaluation, if one is due, the decision of all ranks, and a checkpoint. Returns why
    /// the training ends, if it does.
    fn close_step<B, T, E>(
        &mut self,
        task: &mut T,
        test: Option<&E>,
        control: &Control,
        mut asked: Action,
    ) -> Result<Option<String>>
    where
        B: Collated,
        T: Task<B> + ?Sized,
        E: Dataset<Batch = B> + Clone,
    {
        let position = *task.position();
        if self.evaluates_after(position)
            && let Some(test) = test
        {
            match self.evaluate(task, test)? {
                Some((_, action)) => asked = asked.and(action),
                // The run that continues evaluates, and is not complete before.
                None => asked.stop = None,
            }
        }
        // One that is due after the last step of an epoch has its evaluation, too.
        let is_last = position.step_in_epoch == self.steps_per_epoch;
        asked.save |= !is_last && self.is_due(position.step);
        let decision = control.after_step(asked, is_last)?;
        *task.position() = control.last_position(position)?;
        self.save_if(task, &decision)?;
        Ok(decision.stop)
    }

    /// Whether an evaluation is due after this step, beside those after each epoch. After the last step of an
    /// uneven epoch there is none, because not all ranks have taken it.
    fn evaluates_after(&self, Position { step, step_in_epoch, .. }: Position) -> bool {
        let is_last = step_in_epoch == self.steps_per_epoch;
        let every = self.config.evaluate_every.filter(|&every| every > 0 && step_in_epoch > 0);
        every.is_some_and(|every| step.is_multiple_of(every)) && !(self.config.uneven && is_last)
    }

    /// How the ranks decide.
    fn control<B, T: Task<B> + ?Sized>(&self, task: &mut T) -> Control {
        let in_step = task.parts().iter().all(|(_, part)| part.is_in_step());
        let hooks_act = self.hooks.iter().any(|hook| hook.acts_after_steps());
        Control::new(task.group(), &self.config.interrupt, hooks_act, in_step)
    }

    /// The report of an epoch, after its evaluation. `None` if a signal has cut the evaluation: then nothing has
    /// changed.
    fn end_epoch<B, T, E>(
        &mut self,
        task: &mut T,
        test: Option<&E>,
        clock: &EpochClock,
    ) -> Result<Option<(EpochReport, Decision)>>
    where
        B: Collated,
        T: Task<B> + ?Sized,
        E: Dataset<Batch = B> + Clone,
    {
        let group = task.group().clone();
        let train_seconds = clock.start.elapsed().as_secs_f64();
        let (option, _) = task.strategy();
        let steps = figures(task, option) - clock.figures;
        let traffic = traffic(task) - clock.traffic;
        let residual_norm = residual_norm(task);
        if steps.skipped > 1 {
            let note = format!("{} of {} steps were left out", steps.skipped, steps.steps);
            self.note(&group, &note);
        }
        let own = std::mem::take(&mut self.metrics);
        let trained = own.over_ranks(&*group)?;
        self.lines.trained(&trained);
        let mut asked = Action::NOTHING;
        let mut evaluated = None;
        if let Some(test) = test {
            let Some((metrics, action)) = self.evaluate(task, test)? else {
                self.metrics = own;
                return Ok(None);
            };
            (evaluated, asked) = (Some(metrics), action);
        }
        let seconds = clock.start.elapsed().as_secs_f64();
        self.lines.evaluated(evaluated.as_ref(), seconds);
        let report = EpochReport {
            epoch: task.position().epoch - 1,
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
            parameters_sha256: equal_parameters(task)?,
        };
        let mut actions = Vec::new();
        self.each_hook(task, |hook, run| {
            actions.push(hook.after_epoch(run, &report)?);
            Ok(())
        })?;
        let asked = actions.into_iter().fold(asked, Action::and);
        Ok(Some((report, Decision::from(asked))))
    }

    /// Evaluates on all of `test`, and asks the hooks. `None` if a signal has cut it, on all ranks.
    fn evaluate<B, T, E>(&mut self, task: &mut T, test: &E) -> Result<Option<(Metrics, Action)>>
    where
        B: Collated,
        T: Task<B> + ?Sized,
        E: Dataset<Batch = B> + Clone,
    {
        let batch = self.config.batch_size;
        let control = self.control(task);
        let metrics = evaluation::run(task, test, batch, &self.loading, || control.goes_on())?;
        let Some(metrics) = metrics else { return Ok(None) };
        self.evaluated = task.position().step;
        let mut actions = Vec::new();
        self.each_hook(task, |hook, run| {
            actions.push(hook.on_evaluate(run, &metrics)?);
            Ok(())
        })?;
        Ok(Some((metrics, actions.into_iter().fold(Action::NOTHING, Action::and))))
    }

    fn after_step<B, T: Task<B> + ?Sized>(&mut self, task: &mut T) -> Result<Action> {
        let mut actions = Vec::new();
        self.each_hook(task, |hook, run| {
            let asked = hook.after_step(run)?;
            if hook.acts_after_steps() {
                actions.push(asked);
            }
            Ok(())
        })?;
        Ok(actions.into_iter().fold(Action::NOTHING, Action::and))
    }

    fn is_due(&self, step: u64) -> bool {
        self.checkpoints.as_ref().is_some_and(|all| all.is_due(step))
    }

    /// Makes a checkpoint if the ranks have decided so.
    fn save_if<B, T: Task<B> + ?Sized>(&mut self, task: &mut T, decision: &Decision) -> Result<()> {
        if decision.save { self.save(task, decision.best) } else { Ok(()) }
    }

    fn save<B, T: Task<B> + ?Sized>(&mut self, task: &mut T, best: Option<f64>) -> Result<()> {
        let Some(mut checkpoints) = self.checkpoints.take() else { return Ok(()) };
        let position = *task.position();
        let states = self.hooks.iter().map(|hook| (hook.name().to_owned(), hook.state()));
        let states = states.chain([(EVALUATED.to_owned(), self.evaluated.into())]);
        let state = RunState {
            position,
            settings: self.settings.clone(),
            shared: states.collect(),
            metrics: self.metrics.clone(),
        };
        let saved = checkpoints.save(&mut as_parts(&mut task.parts()), &state, best);
        self.checkpoints = Some(checkpoints);
        let saved = saved?;
        if let Some(why) = &saved.failed {
            self.note(task.group(), &format!("{why}; the training goes on"));
        }
        self.each_hook(task, |hook, run| hook.on_checkpoint(run, &saved))
    }

    /// Makes the last checkpoint, waits for it, and tells the hooks.
    fn finish<B, T: Task<B> + ?Sized>(
        &mut self,
        task: &mut T,
        stopped: Option<&str>,
    ) -> Result<()> {
        let step = task.position().step;
        if self.checkpoints.as_ref().is_some_and(|all| all.last() != Some(step)) {
            self.save(task, None)?;
        }
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.finish()?;
        }
        if let Some(why) = stopped {
            let saved = self.checkpoints.as_ref().map(|all| all.path_of(step));
            let saved = saved.map(|path| format!("; saved {}", path.display())).unwrap_or_default();
            self.note(task.group(), &format!("the training ends after {step} steps: {why}{saved}"));
        }
        self.each_hook(task, |hook, run| hook.on_end(run, stopped))
    }

    /// Calls `f` with each hook.
    fn each_hook<B, T: Task<B> + ?Sized>(
        &mut self,
        task: &mut T,
        mut f: impl FnMut(&mut (dyn Hook + 'a), &mut Run<'_, '_>) -> Result<()>,
    ) -> Result<()> {
        if self.hooks.is_empty() {
            return Ok(());
        }
        let position = *task.position();
        let mut parts = task.parts();
        for hook in &mut self.hooks {
            let mut run = Run {
                position,
                steps_per_epoch: self.steps_per_epoch,
                epochs: self.end,
                global_batch_size: self.global_batch,
                resumed: self.resumed.as_deref(),
                loss: self.loss,
                metrics: &self.metrics,
                parts: &mut parts,
            };
            f(&mut **hook, &mut run)?;
        }
        Ok(())
    }

    fn note(&mut self, group: &Group, note: &str) {
        self.note_with(group, note, None);
    }

    /// Prints a note on rank 0, and keeps it for the report. Steps often repeat a note, so only the first few of an
    /// epoch are printed and kept.
    fn note_with(&mut self, group: &Group, note: &str, progress: Option<&Progress>) {
        if self.notes.len() == MOST_NOTES && progress.is_some() {
            return;
        }
        if group.is_world_root() {
            Progress::note(progress, note);
        }
        self.hooks.iter_mut().for_each(|hook| hook.on_note(note));
        self.notes.push(note.to_owned());
    }
}

/// The models as parts of a checkpoint.
fn as_parts<'p>(parts: &'p mut [(&'p str, &mut dyn RanksOpt)]) -> Vec<(&'p str, &'p mut dyn Part)> {
    parts.iter_mut().map(|(name, part)| (*name, &mut **part as &mut dyn Part)).collect()
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
    task.parts().first().map(|(_, part)| part.figures(option)).unwrap_or_default()
}

fn traffic<B, T: Task<B> + ?Sized>(task: &mut T) -> CommStats {
    task.parts().first().map(|(_, part)| part.traffic()).unwrap_or_default()
}

fn residual_norm<B, T: Task<B> + ?Sized>(task: &mut T) -> f64 {
    task.parts().first().map_or(0.0, |(_, part)| part.residual_norm())
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
    let digests = digests(&task.parts())?;
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
