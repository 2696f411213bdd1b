//! The checkpoints that a run makes.

use std::time::Instant;

use super::session_record::{self, SessionRecord};
use super::task_view::TaskView;
use super::trainer_state::TrainerState;
use crate::Result;
use crate::checkpoint::{BestCheckpoint, Ranked, RunState, SaveOutcome, Snapshot};
use crate::hooks::NamedVector;

impl TrainerState<'_, '_> {
    /// Whether a checkpoint is due after so many steps.
    pub(super) fn is_due(&self, step: u64) -> bool {
        self.checkpoints.as_ref().is_some_and(|all| all.is_due(step))
    }

    /// Makes a checkpoint. `best` has the hooks for which it is the best one, with the values.
    pub(super) fn save(&mut self, task: &mut TaskView<'_>, best: &[(usize, f64)]) -> Result<()> {
        if self.checkpoints.is_none() {
            return Ok(());
        }
        // The states of hooks depend on whether the checkpoint before this one is on the disk.
        self.settle(task)?;
        let state = self.run_state(task, best);
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        let begin = Instant::now();
        let mut snapshot = checkpoints.snapshot()?;
        let keys = session_record::keys(&self.hooks);
        self.each_hook(task, |number, hook, run| {
            let file = session_record::vectors_file(&keys[number]);
            hook.vectors(run)?.into_iter().try_for_each(|vector| put(&mut snapshot, &file, vector))
        })?;
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        let saved = checkpoints.save_snapshot(snapshot, &mut task.stateful(), &state)?;
        // The vectors of hooks, averages of the weights for instance, are a part of what the step pays for.
        let saved = SaveOutcome { took: begin.elapsed(), ..saved };
        self.each_hook(task, |_, hook, run| hook.on_checkpoint(run, &saved))
    }

    /// What a checkpoint has beside the models.
    fn run_state(&self, task: &TaskView<'_>, best: &[(usize, f64)]) -> RunState {
        let position = task.position;
        let files = session_record::best_files(&self.hooks);
        let best = best.iter().filter_map(|&(hook, value)| {
            let (file, measure) = files.get(hook).cloned().flatten()?;
            let mut ranked = self.hooks.get(hook)?.best_checkpoints();
            if ranked.is_empty() {
                ranked.push(Ranked { step: position.step, value });
            }
            Some((file, BestCheckpoint::from_ranked(measure, ranked)?))
        });
        let states = self.hooks.iter().map(|hook| hook.state());
        let record = SessionRecord {
            hooks: session_record::keys(&self.hooks).into_iter().zip(states).collect(),
            evaluated: self.evaluated.clone(),
            ended: self.ended.clone(),
            closed: self.closed,
        };
        RunState {
            position,
            settings: self.settings.clone(),
            shared: record.to_shared(),
            metrics: self.metrics.clone(),
            best: best.collect(),
        }
    }

    /// Waits for the checkpoint that is being written, and tells the hooks whether it is on the disk.
    pub(super) fn settle(&mut self, task: &mut TaskView<'_>) -> Result<()> {
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        let Some(outcome) = checkpoints.wait()? else { return Ok(()) };
        if let Some(why) = &outcome.failed {
            self.note(&format!("{why}; the training goes on"));
        }
        self.each_hook(task, |_, hook, run| hook.on_written(run, &outcome))
    }

    /// Makes the last checkpoint, waits for it, and tells the hooks. `is_said`: the user knows why the run has ended.
    pub(super) fn finish(
        &mut self,
        task: &mut TaskView<'_>,
        stopped: Option<&str>,
        is_said: bool,
    ) -> Result<()> {
        self.settle(task)?;
        let step = task.position.step;
        if self.checkpoints.as_ref().is_some_and(|all| all.last() != Some(step)) {
            self.save(task, &[])?;
        }
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.finish()?;
        }
        if let Some(why) = stopped.filter(|_| !is_said) {
            let saved = self.checkpoints.as_ref().map(|all| all.path_of(step));
            let saved = saved.map(|path| format!("; saved {}", path.display())).unwrap_or_default();
            self.note(&format!("the training ends after {step} steps: {why}{saved}"));
        }
        self.each_hook(task, |_, hook, run| hook.on_end(run, stopped))
    }
}

/// Copies a vector of a hook, or this rank's shard of it, to the file called `name`.
fn put(snapshot: &mut Snapshot, name: &str, vector: NamedVector<'_>) -> Result<()> {
    let NamedVector { name: vector, dims, values, shard } = vector;
    let put = match shard {
        Some(start) => snapshot.shard("", name).put_shard(&vector, start, &dims, values),
        None => snapshot.shared("", name).map_or(Ok(()), |file| file.put(&vector, &dims, values)),
    };
    Ok(put.map_err(candelabrum_dist::Error::from)?)
}
