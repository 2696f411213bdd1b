//! What must be the same on all ranks of a run, and in a run that continues it.

use candelabrum_datasets::Dataset;
use candelabrum_dist::{Group, check_consistency};
use candelabrum_nn::DistOption;

use super::config::FitConfig;
use super::task_view::TaskView;
use crate::checkpoint::{Position, RunSettings};
use crate::{Result, parts};

/// The settings without which a continued run would not be the same one.
pub(super) fn of_run(config: &FitConfig, train: &impl Dataset) -> Result<RunSettings> {
    Ok(RunSettings {
        seed: Some(config.seed),
        data: Some(parts::described(train)?),
        // The parts of ranks may differ in size.
        samples: (train.shared_by() == 1).then(|| train.len()),
        sampling: Some(sampling(config)),
        uneven: Some(config.uneven),
        ..RunSettings::default()
    })
}

/// The order of the samples, and the batches of an epoch.
fn sampling(config: &FitConfig) -> String {
    let limit = config.limit_train_batches;
    let limit = limit.map(|most| format!(", at most {most} steps in an epoch"));
    format!("{}{}", config.sampling, limit.unwrap_or_default())
}

/// Adds the settings that a continued run may change. The user learns of it.
pub(super) fn add_that_may_change(settings: &mut RunSettings, task: &TaskView<'_>) {
    let (option, spars) = task.strategy;
    settings.strategy = Some(match option {
        DistOption::SparseTopK | DistOption::SparseThreshold | DistOption::Custom(_) => {
            format!("{option} spars={spars}")
        }
        dense => dense.to_string(),
    });
    let described = task.optimizers.iter().filter_map(|(name, optimizer)| {
        Some(((*name).to_owned(), optimizer.describe_optimizer()?))
    });
    settings.optimizers = described.collect();
}

/// Refuses ranks whose runs would differ.
pub(super) fn check_same(
    group: &Group,
    of_run: &RunSettings,
    config: &FitConfig,
    position: Position,
    other: Vec<(String, String)>,
) -> Result<()> {
    let checkpoints =
        config.checkpoints.as_ref().map(|(dir, config)| (dir.display().to_string(), config));
    let text = |value: Option<String>| value.unwrap_or_default();
    let own = [
        ("the seed", text(of_run.seed.map(|seed| seed.to_string()))),
        ("the training data", text(of_run.data.clone())),
        ("the number of training samples", text(of_run.samples.map(|len| len.to_string()))),
        ("the sampling", sampling(config)),
        ("`uneven`", config.uneven.to_string()),
        ("the dist option", config.dist_option.to_string()),
        ("spars", config.spars.to_string()),
        ("the number of micro-batches", config.accumulate.to_string()),
        ("the number of epochs", config.epochs.to_string()),
        ("the maximum number of steps", format!("{:?}", config.max_steps)),
        ("the maximum time", format!("{:?}", config.max_time)),
        ("the number of epochs and steps trained before", format!("{position:?}")),
        ("the batch size", config.batch_size.to_string()),
        ("the steps between evaluations", format!("{:?}", config.evaluate_every)),
        ("`profile_memory`", config.profile_memory.to_string()),
        ("the checkpoints", format!("{checkpoints:?}")),
    ];
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
    Ok(check_consistency(&**group, &own.chain(other).collect::<Vec<_>>())?)
}
