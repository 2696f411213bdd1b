//! What must be the same on all ranks of a run, and in a run that continues it.

use std::collections::BTreeMap;

use candelabrum_datasets::Dataset;
use candelabrum_dist::{Group, check_consistency};
use candelabrum_nn::DistOption;

use super::config::FitConfig;
use crate::Result;
use crate::checkpoint::Position;
use crate::task::Task;

/// The settings without which a continued run would not be the same one.
pub(super) fn of_run(config: &FitConfig, train: &impl Dataset) -> Result<BTreeMap<String, String>> {
    let facts = [
        ("the seed", config.seed.to_string()),
        ("the training data", train.fingerprint()?),
        ("the number of training samples", train.len().to_string()),
    ];
    Ok(facts.map(|(name, value)| (name.to_owned(), value)).into())
}

/// The settings that a continued run may change. The user learns of it.
pub(super) fn that_may_change<B, T: Task<B> + ?Sized>(task: &mut T) -> BTreeMap<String, String> {
    let (option, spars) = task.strategy();
    let strategy = match option {
        DistOption::SparseTopK | DistOption::SparseThreshold | DistOption::Custom(_) => {
            format!("{option} spars={spars}")
        }
        dense => dense.to_string(),
    };
    let parts = task.parts().into_iter().filter_map(|(name, part)| {
        let of = if name.is_empty() { String::new() } else { format!(" of `{name}`") };
        Some((format!("the optimizer{of}"), part.describe_optimizer()?))
    });
    parts.chain([("the strategy".to_owned(), strategy)]).collect()
}

/// Refuses ranks whose runs would differ.
pub(super) fn check_same(
    group: &Group,
    of_run: &BTreeMap<String, String>,
    config: &FitConfig,
    position: Position,
    other: [(&str, String); 2],
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
    ];
    let own = own.into_iter().chain(other).map(|(name, value)| (name.to_owned(), value));
    let facts = of_run.iter().map(|(name, value)| (name.clone(), value.clone())).chain(own);
    Ok(check_consistency(&**group, &facts.collect::<Vec<_>>())?)
}
