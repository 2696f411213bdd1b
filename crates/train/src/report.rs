//! The JSON report of a run: what was trained, how, and what came out.

use std::fs;
use std::io::Write;
use std::path::Path;

use serde::Serialize;

use crate::{Error, Result};

/// A run, as `--report` writes it. Field names are a contract with scripts.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of this crate.
    pub version: String,
    /// How many ranks trained.
    pub world_size: usize,
    /// `single`, `local`, `mpi`.
    pub backend: String,
    /// `cpu`.
    pub device: String,
    /// Compute threads per rank.
    pub threads: usize,
    /// `mnist` or `synthetic digits`.
    pub dataset: String,
    /// Why it is not the data that was hoped for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset_note: Option<String>,
    /// The strategy's name.
    pub dist_option: String,
    /// The parameter of a sparse strategy.
    pub spars: f32,
    /// The run's seed.
    pub seed: u64,
    /// Samples per step and rank.
    pub batch_size: usize,
    /// Training samples left out each epoch because they do not fill a global batch.
    pub dropped_per_epoch: usize,
    /// One entry per epoch.
    pub epochs: Vec<EpochReport>,
    /// The digest of each rank's final parameters.
    pub parameters_sha256: Vec<String>,
}

/// One epoch.
#[derive(Clone, Debug, Serialize)]
pub struct EpochReport {
    /// Sum over all ranks and steps of the batches' mean losses.
    pub train_loss: f64,
    /// Share of training samples that were right when they were trained on.
    pub train_accuracy: f64,
    /// Share of test samples that were right after the epoch.
    pub eval_accuracy: f64,
    /// Training and evaluation.
    pub seconds: f64,
    /// Training alone.
    pub train_seconds: f64,
    /// Training images of all ranks per second of training.
    pub images_per_second: f64,
    /// Payload that rank 0 handed to the transport while training.
    pub bytes_sent: u64,
    /// Payload that rank 0 took from the transport while training.
    pub bytes_received: u64,
    /// Time that rank 0's collectives took, waiting for slower ranks included.
    pub comm_seconds: f64,
    /// Time that rank 0 stood still waiting for collectives.
    pub exposed_comm_seconds: f64,
    /// The digest of each rank's parameters after the epoch: equal, or something is wrong.
    pub parameters_sha256: Vec<String>,
}

impl Report {
    /// Writes the report to `path`, whole or not at all.
    ///
    /// # Errors
    /// [`Error::Report`].
    pub fn write(&self, path: &Path) -> Result<()> {
        let write = || -> std::io::Result<()> {
            let mut text = serde_json::to_vec_pretty(self)?;
            text.push(b'\n');
            let mut name = path.file_name().unwrap_or_default().to_owned();
            name.push(format!(".{}.tmp", std::process::id()));
            let temporary = path.with_file_name(name);
            let written = fs::File::create(&temporary)
                .and_then(|mut file| file.write_all(&text))
                .and_then(|()| fs::rename(&temporary, path));
            if written.is_err() {
                // Nothing half-written stays behind; the first error is the one that matters.
                drop(fs::remove_file(&temporary));
            }
            written
        };
        write().map_err(|source| Error::Report { path: path.to_owned(), source })
    }

    /// Refuses at the start a path that could not be written at the end.
    ///
    /// # Errors
    /// [`Error::Report`].
    pub fn check_path(path: &Path) -> Result<()> {
        let fail = |what: &str| {
            let source = std::io::Error::other(what);
            Err(Error::Report { path: path.to_owned(), source })
        };
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_goes_where_it_can_and_says_where_it_cannot() {
        let dir = tempfile::tempdir().unwrap();
        let report = Report {
            version: "0".into(),
            world_size: 1,
            backend: "single".into(),
            device: "cpu".into(),
            threads: 1,
            dataset: "mnist".into(),
            dataset_note: None,
            dist_option: "fp32".into(),
            spars: 0.05,
            seed: 0,
            batch_size: 64,
            dropped_per_epoch: 0,
            epochs: Vec::new(),
            parameters_sha256: vec!["00".into()],
        };
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
