//! What must be the same on all ranks of a run, and in a run that continues it.

use std::collections::BTreeMap;

use candelabrum_datasets::Dataset;
use candelabrum_dist::{Group, check_consistency};

use super::config::FitConfig;
use crate::Result;
use crate::checkpoint::Position;

/// The settings without which a continued run would not be the same one.
pub(super) fn of_run(config: &FitConfig, train: &impl Dataset) -> Result<BTreeMap<String, String>> {
    let facts = [
        ("the seed", config.seed.to_string()),
        ("the training data", train.fingerprint()?),
        ("the number of training samples", train.len().to_string()),
    ];
    Ok(facts.map(|(name, value)| (name.to_owned(), value)).into())
}

/// Refuses ranks whose runs would differ.
pub(super) fn check_same(
    group: &Group,
    of_run: &BTreeMap<String, String>,
    config: &FitConfig,
    position: Position,
    test: Option<String>,
) -> Result<()> {
    let checkpoints =
        config.checkpoints.as_ref().map(|(dir, config)| (dir.display().to_string(), config));
    let own = [
        ("the dist option", config.dist_option.to_string()),
        ("spars", config.spars.to_string()),
        ("the number of micro-batches", config.accumulate.to_string()),
        ("the number of epochs", config.epochs.to_string()),
        ("the number of epochs and steps trained before", format!("{position:?}")),
        ("the batch size", config.batch_size.to_string()),
        ("the steps between evaluations", format!("{:?}", config.evaluate_every)),
        ("the checkpoints", format!("{checkpoints:?}")),
        ("the test data", test.unwrap_or_default()),
    ];
    let own = own.map(|(name, value)| (name.to_owned(), value));
    let facts = of_run.iter().map(|(name, value)| (name.clone(), value.clone())).chain(own);
    Ok(check_consistency(&**group, &facts.collect::<Vec<_>>())?)
}
