//! What an epoch has cost and measured, for its report and for the line of progress.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use candelabrum_dist::{CommStats, DistOpt, StepFigures};
use candelabrum_nn::DistOption;

use super::task_view::TaskView;
use super::trainer_state::TrainerState;
use crate::report::digests;
use crate::{EpochReport, Error, Metrics, Result, StrategyReport};

/// What an epoch is measured against.
pub(super) struct EpochClock {
    pub(super) start: Instant,
    option: DistOption,
    figures: StepFigures,
    traffic: CommStats,
    /// The first step, which is not 0 if the run continues in the middle of the epoch.
    first_step: usize,
}

/// What the steps of an epoch have cost this rank.
pub(super) struct EpochCosts {
    option: DistOption,
    train_seconds: f64,
    pub(super) steps: StepFigures,
    traffic: CommStats,
    residual_norm: f64,
    first_step: usize,
}

impl EpochClock {
    pub(super) fn start(optimizer: &DistOpt, option: DistOption, first_step: usize) -> Self {
        let (figures, traffic) = (optimizer.figures(option), optimizer.traffic());
        Self { start: Instant::now(), option, figures, traffic, first_step }
    }

    /// The costs since the start.
    pub(super) fn costs(&self, optimizer: &DistOpt) -> EpochCosts {
        let &Self { start, option, figures, traffic, first_step } = self;
        EpochCosts {
            option,
            train_seconds: start.elapsed().as_secs_f64(),
            steps: optimizer.figures(option) - figures,
            traffic: optimizer.traffic() - traffic,
            residual_norm: optimizer.residual_norm(),
            first_step,
        }
    }
}

impl EpochCosts {
    /// The average cost of a step, for the progress line. Empty if nothing was sent.
    pub(super) fn per_step(&self) -> String {
        let figures = &self.steps;
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
        if self.residual_norm > 0.0 {
            line += &format!("; residual {:.2}", self.residual_norm);
        }
        if figures.skipped > 0 {
            line += &format!("; {} skipped", figures.skipped);
        }
        line
    }
}

impl TrainerState<'_, '_> {
    /// The report of the epoch that has ended, which has these metrics over all ranks.
    pub(super) fn epoch_report(
        &mut self,
        task: &TaskView<'_>,
        epoch: usize,
        costs: &EpochCosts,
        (trained, evaluated): (&Metrics, Option<&Metrics>),
        seconds: f64,
    ) -> Result<EpochReport> {
        let &EpochCosts { option, train_seconds, steps, traffic, residual_norm, first_step } =
            costs;
        // The steps of this process.
        let last_step = match task.position.step_in_epoch {
            0 => self.steps_per_epoch,
            inside => inside,
        };
        let taken = last_step.saturating_sub(first_step) as f64;
        Ok(EpochReport {
            epoch,
            train_loss: trained.loss,
            train_accuracy: trained.measure("accuracy"),
            eval_accuracy: evaluated.and_then(|metrics| metrics.measure("accuracy")),
            eval_loss: evaluated.map(Metrics::mean_loss),
            measures: measures(trained, evaluated),
            seconds,
            train_seconds,
            images_per_second: taken * self.global_batch as f64 / train_seconds,
            bytes_sent: traffic.bytes_sent,
            bytes_received: traffic.bytes_received,
            comm_seconds: traffic.busy.as_secs_f64(),
            exposed_comm_seconds: traffic.exposed.as_secs_f64(),
            strategy: StrategyReport::new(option, &steps, residual_norm),
            notes: std::mem::take(&mut self.notes),
            parameters_sha256: equal_parameters(&task.optimizers)?,
        })
    }
}

/// All measures of an epoch, by `train/NAME`, `evaluation/NAME`, and the names of further evaluation sets.
fn measures(trained: &Metrics, evaluated: Option<&Metrics>) -> BTreeMap<String, f64> {
    let named = |(name, value): (&str, f64)| (format!("train/{name}"), value);
    let evaluated = evaluated.into_iter();
    let of_main = evaluated.clone().flat_map(|metrics| metrics.measures_of("evaluation"));
    let of_sets = evaluated.flat_map(Metrics::measures_of_sets);
    trained.measures().map(named).chain(of_main).chain(of_sets).collect()
}

/// The digest of each rank's parameters, which must be the same.
fn equal_parameters(optimizers: &[(&str, &mut DistOpt)]) -> Result<Vec<String>> {
    let digests = digests(optimizers)?;
    match digests.iter().position(|digest| *digest != digests[0]) {
        Some(rank) => Err(Error::ReplicasDiffer { rank }),
        None => Ok(digests),
    }
}
