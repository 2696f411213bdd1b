//! A task without its batches: what hooks, checkpoints and reports need of it.

use candelabrum_nn::{DistOption, Params};

use crate::checkpoint::{Position, Stateful};
use crate::task::Task;
use candelabrum_dist::DistOpt;

/// A task at one position.
pub(super) struct TaskView<'t> {
    pub(super) position: Position,
    /// The strategy of the steps and its parameter.
    pub(super) strategy: (DistOption, f32),
    pub(super) optimizers: Vec<(&'t str, &'t mut DistOpt)>,
}

impl<'t> TaskView<'t> {
    pub(super) fn new<B, T: Task<B> + ?Sized>(task: &'t mut T) -> Self {
        let (position, strategy) = (*task.position(), task.strategy());
        Self { position, strategy, optimizers: task.optimizers() }
    }

    /// The parameters of each model.
    pub(super) fn params(&self) -> Vec<Params> {
        self.optimizers.iter().map(|(_, optimizer)| optimizer.params().clone()).collect()
    }

    /// The notes of all optimizers since the last call.
    pub(super) fn take_notes(&mut self) -> Vec<String> {
        self.optimizers.iter_mut().flat_map(|(_, optimizer)| optimizer.take_notes()).collect()
    }

    /// The models as a checkpoint saves and restores them.
    pub(super) fn stateful(&mut self) -> Vec<(&str, &mut dyn Stateful)> {
        let optimizers = self.optimizers.iter_mut();
        optimizers.map(|(name, it)| (*name, &mut **it as &mut dyn Stateful)).collect()
    }
}
