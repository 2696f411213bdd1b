//! How a run continues from a checkpoint.

use super::session_record::{self, RunEnd, SessionRecord};
use super::settings;
use super::task_view::TaskView;
use super::trainer_state::TrainerState;
use crate::checkpoint::{
    ChangedSetting, Checkpoints, Position, Restored, Resumed, RunSettings, RunState, hook_vectors,
};
use crate::{Error, Result};

/// Where a run goes on.
pub(super) struct Continuation {
    pub(super) position: Position,
    /// This rank's batch: at another number of ranks the global batches stay as they were.
    pub(super) batch: usize,
}

impl TrainerState<'_, '_> {
    /// Opens the directory of checkpoints, if the run has one, and continues from a checkpoint, if there is one.
    pub(super) fn open_checkpoints(
        &mut self,
        task: &mut TaskView<'_>,
        batch: usize,
    ) -> Result<Option<Continuation>> {
        let Some((dir, config)) = &self.config.checkpoints else { return Ok(None) };
        let begins = task.position == Position::default();
        let mut checkpoints = Checkpoints::open(dir, &self.group, config.clone(), begins)?;
        let resumed = match begins {
            true => checkpoints.resume(&mut task.stateful(), &self.settings)?,
            false => None,
        };
        let resumed = resumed.map(|resumed| self.resume(task, resumed, batch)).transpose()?;
        if resumed.is_some() {
            let abandoned = checkpoints.abandon()?;
            if abandoned > 0 {
                self.note(&format!(
                    "{abandoned} later checkpoint(s) now have names that begin with `abandoned-`"
                ));
            }
        }
        self.checkpoints = Some(checkpoints);
        Ok(resumed)
    }

    /// Takes over what a checkpoint has.
    fn resume(
        &mut self,
        task: &mut TaskView<'_>,
        resumed: Resumed,
        batch: usize,
    ) -> Result<Continuation> {
        let Resumed { path, state, world_size, skipped, is_branch, restored } = resumed;
        let RunState { position, settings, shared, metrics, .. } = state;
        let ranks = self.group.world_size();
        // The checkpoint was refused if its global batches could not go on.
        let batch = settings.global_batch_size.map_or(batch, |saved| saved / ranks);
        if settings.rank_batch_size.is_some() {
            self.settings.rank_batch_size = settings.rank_batch_size;
        }
        let record = SessionRecord::of_shared(&shared, position.step)
            .map_err(|error| Error::checkpoint(&path, format!("cannot be continued: {error}")))?;
        self.metrics = metrics;
        for why in skipped {
            self.note(&format!("skipped a newer checkpoint: {why}"));
        }
        let Position { epoch, step_in_epoch, step } = position;
        let here = path.display();
        let mut note =
            format!("continues {here}: epoch {epoch}, step {step_in_epoch}, {step} steps in all");
        if world_size != ranks {
            note += &format!("; {world_size} rank(s) before, {ranks} now, with batches of {batch}");
        }
        if epoch >= self.config.epochs {
            note += &format!("; {epoch} epoch(s) are done, so nothing is trained");
        } else if self.has_all_steps(position) {
            note += &format!("; {step} step(s) are done, so nothing is trained");
        }
        self.note(&note);
        self.note_changes(task, &settings);
        self.restore_hooks(task, record, &restored, is_branch)?;
        self.resumed = Some(path);
        Ok(Continuation { position, batch })
    }

    /// Says which settings are others than those of the checkpoint.
    fn note_changes(&mut self, task: &TaskView<'_>, saved: &RunSettings) {
        if saved.data.is_some() && saved.data != self.settings.data {
            // Of format 1, whose fingerprints of some data were others. It is refused otherwise.
            let note = "the checkpoint is of an earlier version, so its training data could not be compared with these";
            self.note(note);
        }
        let mut own = RunSettings::default();
        settings::add_that_may_change(&mut own, task);
        for ChangedSetting { what, there, here } in saved.changed(&own) {
            self.note(&format!("{what} was `{there}` until then, and is `{here}` from now on"));
        }
    }

    /// Continues the hooks with their states.
    fn restore_hooks(
        &mut self,
        task: &mut TaskView<'_>,
        record: SessionRecord,
        restored: &Restored,
        is_branch: bool,
    ) -> Result<()> {
        let keys = session_record::keys(&self.hooks);
        let mut notes = Vec::new();
        self.each_hook(task, |number, hook, run| {
            let key = &keys[number];
            if let Some(state) = record.state_of(key, hook) {
                notes.extend(session_record::restore(hook, state)?);
            }
            let file = session_record::vectors_file(key);
            if restored.has_hook_vectors(&file) {
                let parts = hook.own_parts(run)?;
                hook.restore_vectors(hook_vectors(restored, &file, &parts)?)?;
            }
            Ok(())
        })?;
        notes.iter().for_each(|note| self.note(note));
        self.evaluated = record.evaluated;
        self.closed = record.closed;
        // Who goes back to a checkpoint wants to go on from there, and so does who leaves the hook out.
        let is_left_out =
            |ended: &RunEnd| ended.hook.as_ref().is_some_and(|hook| !keys.contains(hook));
        self.ended = record.ended.filter(|ended| !is_branch && !is_left_out(ended));
        Ok(())
    }
}
