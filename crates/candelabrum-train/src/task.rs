//! What a training repeats: a step on a batch, and a measurement of one.

use candelabrum_datasets::Batch;
use candelabrum_dist::DistOpt;
use candelabrum_nn::DistOption;
use candle_core::Tensor;

use crate::checkpoint::Position;
use crate::{Metrics, Result};

/// A training as [`Fit`](crate::Fit) sees it. [`Trainer`](crate::Trainer) is the task of one model with one
/// optimizer. Implement it for several models, several losses, or inputs of your own type.
///
/// All ranks call the methods together.
pub trait Task<B> {
    /// Takes a training step on this rank's batch, and counts it in `metrics`. Returns the loss.
    ///
    /// # Errors
    /// Those of a step.
    fn train(&mut self, batch: &B, metrics: &mut Metrics) -> Result<f32>;

    /// Counts this rank's batch in `metrics` without training on it. Layers are in evaluation mode.
    ///
    /// # Errors
    /// Those of a forward pass.
    fn evaluate(&mut self, batch: &B, metrics: &mut Metrics) -> Result<()>;

    /// Takes part in the steps of the ranks that still have batches, at the end of an epoch with
    /// [`FitConfig::uneven`](crate::FitConfig::uneven).
    ///
    /// # Errors
    /// Those of a step.
    fn join(&mut self) -> Result<()> {
        Ok(())
    }

    /// The optimizer of the model, or of the first one of several models.
    fn optimizer(&mut self) -> &mut DistOpt;

    /// The optimizers of all models, the first one first, by names that distinguish the models. The names are in the
    /// names of a checkpoint's files. A task with one model leaves it out.
    fn optimizers(&mut self) -> Vec<(&str, &mut DistOpt)> {
        vec![("", self.optimizer())]
    }

    /// How far the training is. It begins with the default, and [`Fit`](crate::Fit) keeps it up to date.
    fn position(&mut self) -> &mut Position;

    /// Whether [`train`](Self::train) and [`join`](Self::join) obey `accumulate`, `uneven` and `dist_option` of
    /// [`FitConfig`](crate::FitConfig). For a task that does not, these settings are refused.
    fn obeys_step_settings(&self) -> bool {
        false
    }

    /// The strategy of the steps and its parameter, for reports.
    fn strategy(&self) -> (DistOption, f32) {
        (DistOption::Fp32, 0.0)
    }
}

/// A batch of inputs with a target each.
#[diagnostic::on_unimplemented(
    message = "a batch of type `{Self}` has no inputs and targets",
    note = "two tensors in memory become a dataset of such batches by `TensorDataset::labelled(xs, ys)`",
    note = "a `FnDataset` or `RecordDataset` has them if its function returns a pair `(x, y)`"
)]
pub trait Supervised {
    /// The inputs, the batch first.
    fn xs(&self) -> &Tensor;

    /// The targets, the batch first.
    fn ys(&self) -> &Tensor;
}

impl Supervised for Batch {
    fn xs(&self) -> &Tensor {
        &self.xs
    }

    fn ys(&self) -> &Tensor {
        &self.ys
    }
}

impl Supervised for (Tensor, Tensor) {
    fn xs(&self) -> &Tensor {
        &self.0
    }

    fn ys(&self) -> &Tensor {
        &self.1
    }
}

/// A batch of inputs, with or without targets: what [`Trainer::predict`](crate::Trainer::predict) reads. Every
/// [`Supervised`] batch is one, and so is a tensor of inputs alone.
#[diagnostic::on_unimplemented(
    message = "a batch of type `{Self}` has no inputs",
    note = "a tensor in memory becomes a dataset of such batches by `TensorDataset::single(xs)`"
)]
pub trait Inputs {
    /// The inputs, the batch first.
    fn inputs(&self) -> &Tensor;
}

impl<B: Supervised> Inputs for B {
    fn inputs(&self) -> &Tensor {
        self.xs()
    }
}

impl Inputs for Tensor {
    fn inputs(&self) -> &Tensor {
        self
    }
}
