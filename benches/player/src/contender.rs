//! A library that trains a network, and the cost of its steps.

use std::time::Duration;

use candelabrum::dist::StepFigures;
use candle_core::Tensor;
use serde_json::Value;

use crate::pace::Timing;
use crate::problem::ProblemBatches;

/// A network with its optimizer.
pub(crate) trait TrainableNetwork {
    /// Forward, loss, backward, update. Returns the loss before the update.
    fn step(&mut self, xs: &Tensor, ys: &Tensor) -> anyhow::Result<Tensor>;

    /// Of all parameters.
    fn elements(&self) -> usize;

    /// The evaluation of examples on which it does not train, if the contender has one.
    fn evaluate(&self, _: &ProblemBatches) -> anyhow::Result<Option<Evaluation>> {
        Ok(None)
    }

    /// The cost of the steps so far on this rank, if the contender measures it.
    fn cost(&self) -> Option<StepCost> {
        None
    }
}

/// Sums over the labels of an evaluation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Evaluation {
    pub(crate) loss: f64,
    /// The labels that have the highest score.
    pub(crate) right: f64,
    pub(crate) count: usize,
}

impl Evaluation {
    /// Adds the means to a sample.
    pub(crate) fn add_to(&self, sample: &mut Value) {
        sample["test_loss"] = (self.loss / self.count as f64).into();
        sample["test_accuracy"] = (self.right / self.count as f64).into();
    }
}

/// The cost of steps on one rank.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepCost {
    /// The forward pass and the loss; `None` if they are part of a recorded step.
    pub(crate) forward: Option<Duration>,
    pub(crate) figures: StepFigures,
    /// The norm after the last step; `None` if the strategy keeps no residuals.
    pub(crate) residual_norm: Option<f64>,
}

impl StepCost {
    /// Adds the parts of the mean step since `before` to a sample.
    pub(crate) fn add_to(&self, sample: &mut Value, before: &Self, timed: &Timing) {
        let figures = self.figures - before.figures;
        let forward = self.forward.zip(before.forward).map(|(after, before)| after - before);
        let StepFigures { backward, compress, exposed, decompress, update, .. } = figures;
        let known =
            forward.unwrap_or_default() + backward + compress + exposed + decompress + update;
        let times = [
            ("backward_seconds", backward),
            ("compress_seconds", compress),
            ("exposed_seconds", exposed),
            ("decompress_seconds", decompress),
            ("update_seconds", update),
            // The parts are measured with separate clock readings, so their sum may exceed the total.
            ("other_seconds", timed.time.saturating_sub(known)),
            // The time in which collectives were running, whether or not a thread waited for them.
            ("communication_seconds", figures.communication),
        ];
        let steps = f64::from(timed.steps);
        for (name, time) in times.into_iter().chain(forward.map(|time| ("forward_seconds", time))) {
            sample[name] = (time.as_secs_f64() / steps).into();
        }
        sample["bytes_sent_per_step"] = (figures.bytes_sent as f64 / steps).into();
        sample["bytes_received_per_step"] = (figures.bytes_received as f64 / steps).into();
        if let Some(norm) = self.residual_norm {
            sample["residual_norm"] = norm.into();
        }
    }
}
