//! What a checkpoint saves and restores.

use std::path::Path;

use candelabrum_nn::Params;

use super::manifest::PartState;
use super::restored::Restored;
use super::snapshot::Snapshot;
use crate::Result;

/// A model with its optimizer, as a checkpoint saves and restores it: a part of the checkpoint.
pub trait Stateful {
    /// The parameters that the optimizer updates.
    fn params(&self) -> &Params;

    /// Makes one model of the ranks' models, before an evaluation, before a checkpoint and at the end.
    ///
    /// # Errors
    /// A failure of another rank or a passed deadline.
    fn average_parameters(&mut self) -> Result<()>;

    /// Copies the state of the part called `name` into `snapshot`. `dir` is the directory of the checkpoint that
    /// is being made: servers write their files there. All ranks call it together, after
    /// [`average_parameters`](Self::average_parameters).
    ///
    /// # Errors
    /// A device's error, a failure of another rank, or a passed deadline.
    fn save(&mut self, name: &str, snapshot: &mut Snapshot, dir: &Path) -> Result<PartState>;

    /// Returns an error if the part called `name` of a checkpoint is not of this model. It does not change
    /// anything, and needs no other rank.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](crate::Error::Checkpoint), which names the first difference.
    fn check(&mut self, name: &str, restored: &Restored) -> Result<()>;

    /// Continues with the state of the part called `name`. All ranks call it together.
    ///
    /// # Errors
    /// What does not fit, a device's error, a failure of another rank, or a passed deadline.
    fn load(&mut self, name: &str, restored: &Restored) -> Result<()>;
}
