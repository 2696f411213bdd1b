//! What must be the same on all ranks of a run, and in a run that continues it.

use candelabrum_datasets::Dataset;
use candelabrum_dist::{Group, check_consistency};
use candelabrum_nn::DistOption;

use super::config::{AgreedSetting, FitConfig};
use super::task_view::TaskView;
use crate::checkpoint::{Position, RunSettings};
use crate::{Result, parts};

/// The settings without which a continued run would not be the same one.
pub(super) fn of_run(config: &FitConfig, train: &impl Dataset) -> Result<RunSettings> {
    let fixed = config.settings().into_iter().filter(|setting| !setting.fixed.is_empty());
    Ok(RunSettings {
        data: Some(parts::described(train)?),
        // The parts of ranks may differ in size.
        samples: (train.shared_by() == 1).then(|| train.len()),
        ..fixed.map(|AgreedSetting { name, value, .. }| (name.to_owned(), value)).collect()
    })
}

/// Adds the settings that a continued run may change. The user learns of it.
pub(super) fn add_that_may_change(settings: &mut RunSettings, task: &TaskView<'_>) {
    let (option, spars) = task.strategy;
    settings.strategy = Some(match option {
        DistOption::Fp32 | DistOption::Fp16 | DistOption::Bf16 | DistOption::PartialUpdate => {
            option.to_string()
        }
        other => format!("{other} spars={spars}"),
    });
    let described = task
        .optimizers
        .iter()
        .map(|(name, optimizer)| ((*name).to_owned(), optimizer.optimizer().describe()));
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
    let text = |value: Option<String>| value.unwrap_or_default();
    let of_data = [
        ("the training data", text(of_run.data.clone())),
        ("the number of training samples", text(of_run.samples.map(|len| len.to_string()))),
        ("the number of epochs and steps trained before", format!("{position:?}")),
    ];
    let settings =
        config.settings().into_iter().map(|AgreedSetting { name, value, .. }| (name, value));
    let own = settings.chain(of_data).map(|(name, value)| (name.to_owned(), value));
    Ok(check_consistency(&**group, &own.chain(other).collect::<Vec<_>>())?)
}
