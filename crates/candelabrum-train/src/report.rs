//! The JSON report of a run: its settings and its results.

use std::collections::BTreeMap;
use std::path::Path;

use candelabrum_datasets::write_whole;
use candelabrum_dist::{DistOpt, StepFigures, parameters_sha256};
use candelabrum_nn::DistOption;
use candelabrum_runlog::number;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Error, Result};

/// The report that `--report` writes. Scripts rely on the field names.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The settings of the run by their names, beside the results in the same file.
    #[serde(flatten)]
    pub settings: Map<String, Value>,
    /// One entry per epoch.
    pub epochs: Vec<EpochReport>,
    /// The digest of each rank's final parameters.
    pub parameters_sha256: Vec<String>,
    /// Why the run ended before its last epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_early: Option<String>,
}

/// The digests of all models' parameters on each rank, in rank order.
pub(crate) fn digests(optimizers: &[(&str, &mut DistOpt)]) -> Result<Vec<String>> {
    let Some((_, first)) = optimizers.first() else { return Ok(Vec::new()) };
    let own = optimizers.iter().map(|(_, optimizer)| parameters_sha256(optimizer.params()));
    let own = own.collect::<candelabrum_dist::Result<Vec<_>>>()?;
    Ok(first.group().all_gather_text(&own.join(" "))?)
}

/// One epoch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EpochReport {
    /// The number of the epoch, counted from 0.
    #[serde(default)]
    pub epoch: usize,
    /// The sum of the batches' mean losses over all ranks and steps.
    #[serde(with = "number::single")]
    pub train_loss: f64,
    /// The share of training samples that the model classified correctly when it trained on them. `None` for a
    /// model that is no classifier.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "number::optional")]
    pub train_accuracy: Option<f64>,
    /// The share of test samples that the model classified correctly after the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "number::optional")]
    pub eval_accuracy: Option<f64>,
    /// The mean loss of a sample in the evaluation after the epoch. `None` without an evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "number::optional")]
    pub eval_loss: Option<f64>,
    /// What was measured: `train/NAME`, `evaluation/NAME` and `evaluation/loss`, and `SET/NAME` and `SET/loss` of further
    /// [`EvaluationSets`](crate::EvaluationSets).
    #[serde(default, with = "number::by_name")]
    pub measures: BTreeMap<String, f64>,
    /// The time of training and evaluation.
    #[serde(with = "number::single")]
    pub seconds: f64,
    /// The time of training.
    #[serde(with = "number::single")]
    pub train_seconds: f64,
    /// Training images of all ranks per second of training.
    #[serde(with = "number::single")]
    pub images_per_second: f64,
    /// Payload that rank 0 gave to the transport during training. The evaluation is not included;
    /// with partialUpdate it averages all parameters first.
    pub bytes_sent: u64,
    /// Payload that rank 0 received from the transport during training.
    pub bytes_received: u64,
    /// The time of rank 0's collectives. Waiting for slower ranks is included.
    #[serde(with = "number::single")]
    pub comm_seconds: f64,
    /// The time for which rank 0 was blocked by collectives.
    #[serde(with = "number::single")]
    pub exposed_comm_seconds: f64,
    /// The cost of the strategy's steps on rank 0.
    pub strategy: StrategyReport,
    /// The strategy's notes, such as that it sent a dense message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The digest of each rank's parameters after the epoch. Different digests mean an error.
    pub parameters_sha256: Vec<String>,
}

impl EpochReport {
    /// The share of test samples that the model classified correctly after the epoch. 0 if nothing was classified.
    pub fn accuracy(&self) -> f64 {
        self.eval_accuracy.unwrap_or(0.0)
    }
}

/// The cost of the steps of an epoch on one rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StrategyReport {
    /// The strategy's name.
    pub dist_option: String,
    /// The number of steps. Skipped steps are included.
    pub steps: u64,
    /// The number of steps that all ranks skipped because an average overflowed.
    pub skipped_steps: u64,
    /// The number of steps whose forward and backward pass were replayed as CUDA graphs.
    pub replayed_steps: u64,
    /// Payload given to the transport, per step.
    #[serde(with = "number::single")]
    pub bytes_sent_per_step: f64,
    /// Payload received from the transport, per step.
    #[serde(with = "number::single")]
    pub bytes_received_per_step: f64,
    /// candle's backward pass, and copying gradients into buckets.
    #[serde(with = "number::single")]
    pub backward_seconds: f64,
    /// Error feedback, and making messages.
    #[serde(with = "number::single")]
    pub compress_seconds: f64,
    /// Collectives. Waiting for slower ranks is included.
    #[serde(with = "number::single")]
    pub communication_seconds: f64,
    /// The time for which the steps were blocked by collectives. Waking this thread is included.
    #[serde(with = "number::single")]
    pub exposed_seconds: f64,
    /// Making averages of messages, and checking that the averages are finite.
    #[serde(with = "number::single")]
    pub decompress_seconds: f64,
    /// The optimizer.
    #[serde(with = "number::single")]
    pub update_seconds: f64,
    /// The Euclidean norm of the residuals (the values not sent) at the end of the epoch. 0 without
    /// error feedback.
    #[serde(with = "number::single")]
    pub residual_norm: f64,
}

impl StrategyReport {
    pub(crate) fn new(option: DistOption, figures: &StepFigures, residual_norm: f64) -> Self {
        let per_step = |total: u64| total as f64 / figures.steps.max(1) as f64;
        Self {
            dist_option: option.to_string(),
            steps: figures.steps,
            skipped_steps: figures.skipped,
            replayed_steps: figures.replayed,
            bytes_sent_per_step: per_step(figures.bytes_sent),
            bytes_received_per_step: per_step(figures.bytes_received),
            backward_seconds: figures.backward.as_secs_f64(),
            compress_seconds: figures.compress.as_secs_f64(),
            communication_seconds: figures.communication.as_secs_f64(),
            exposed_seconds: figures.exposed.as_secs_f64(),
            decompress_seconds: figures.decompress.as_secs_f64(),
            update_seconds: figures.update.as_secs_f64(),
            residual_norm,
        }
    }
}

impl Report {
    /// Writes the report to `path`. After an error there is no partial file.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn write(&self, path: &Path) -> Result<()> {
        write_whole(path, |out| {
            serde_json::to_writer_pretty(&mut *out, self)?;
            out.write_all(b"\n")
        })
        .map_err(Error::write("report", path))
    }

    /// Refuses, before the run, a path to which the report could not be written.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn check_path(path: &Path) -> Result<()> {
        writable(path).map_err(Error::write("report", path))
    }
}

/// Returns an error if a file at `path` could not be made, as far as this can be known in advance.
pub(crate) fn writable(path: &Path) -> std::io::Result<()> {
    let fail = |what: &str| Err(std::io::Error::other(what));
    if path.is_dir() {
        return fail("it is a directory");
    }
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() && !parent.is_dir() => {
            fail("its directory does not exist")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_epoch_comes_back_with_every_number() {
        let report = EpochReport {
            epoch: 3,
            train_loss: f64::NAN,
            train_accuracy: None,
            eval_accuracy: Some(0.1 + 0.2),
            eval_loss: Some(f64::INFINITY),
            measures: [("train/perplexity".to_owned(), f64::NEG_INFINITY)].into(),
            seconds: 1e-300,
            train_seconds: -0.0,
            images_per_second: f64::INFINITY,
            bytes_sent: u64::MAX,
            strategy: StrategyReport { residual_norm: f64::NAN, ..StrategyReport::default() },
            ..EpochReport::default()
        };
        let text = serde_json::to_string(&report).unwrap();
        assert!(!text.contains("null"), "{text}");
        let read: EpochReport = serde_json::from_str(&text).unwrap();
        assert!(read.train_loss.is_nan() && read.strategy.residual_norm.is_nan());
        assert_eq!(read.eval_accuracy.map(f64::to_bits), Some((0.1_f64 + 0.2).to_bits()));
        assert_eq!((read.eval_loss, read.train_accuracy), (Some(f64::INFINITY), None));
        assert_eq!((&read.measures, read.seconds), (&report.measures, 1e-300));
        assert!(read.train_seconds.is_sign_negative());
    }

    #[test]
    fn a_report_goes_where_it_can_and_says_where_it_cannot() {
        let dir = tempfile::tempdir().unwrap();
        let settings = [("world_size".to_owned(), Value::from(1))].into_iter().collect();
        let report = Report { settings, ..Report::default() };
        let path = dir.path().join("report.json");
        report.write(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("\"world_size\": 1"), "{text}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let missing = dir.path().join("no/report.json");
        for error in
            [report.write(&missing).unwrap_err(), Report::check_path(&missing).unwrap_err()]
        {
            assert!(error.to_string().contains("no/report.json"), "{error}");
        }
        assert!(Report::check_path(dir.path()).is_err());
        assert!(Report::check_path(Path::new("report.json")).is_ok());
    }
}
