//! Whether a run may continue a checkpoint.

use std::path::Path;

use super::manifest::Manifest;
use super::restored::Restored;
use super::settings::{ChangedSetting, RunSettings};
use super::stateful::Stateful;
use crate::{Error, Result};

/// The names of parts are in the names of files.
pub(super) fn check_part_names(dir: &Path, parts: &[(&str, &mut dyn Stateful)]) -> Result<()> {
    let is_bad = |name: &str| name.contains(['/', '\0']) || name.contains("-rank-");
    match parts.iter().find(|(name, _)| is_bad(name)) {
        None => Ok(()),
        Some((name, _)) => {
            let what = format!(
                "cannot have files for the model `{name}`: its name must have neither `/` nor `-rank-`"
            );
            Err(Error::checkpoint(dir, what))
        }
    }
}

/// The settings that a run that continues must not change.
pub(super) fn check_settings(restored: &Restored, settings: &RunSettings) -> Result<()> {
    let Manifest { settings: there, format, .. } = restored.manifest();
    // The fingerprints of some data were made otherwise in format 1. The training says that it could not compare.
    let data = if *format == 1 { there.data.clone() } else { settings.data.clone() };
    let here = RunSettings { data, ..settings.clone() };
    let Some(change) = there.refused(&here) else { return Ok(()) };
    let ChangedSetting { what, there, here } = change;
    let what = format!(
        "was made with {what} `{there}`, this run has `{here}`: another run needs another directory"
    );
    Err(Error::checkpoint(restored.path(), what))
}

/// The global batches must stay as they are. A run asks for them by the batch size of its first start, at any number of
/// ranks, or by any other batch size with which its ranks have the same global batch.
pub(super) fn check_batch(restored: &Restored, settings: &RunSettings, ranks: usize) -> Result<()> {
    let Manifest { settings: there, world_size, .. } = restored.manifest();
    let (Some(saved), Some(here)) = (there.global_batch_size, settings.global_batch_size) else {
        return Ok(());
    };
    if !saved.is_multiple_of(ranks) {
        let what = format!(
            "has a global batch of {saved}, which {ranks} ranks cannot divide equally: use a number of ranks by which it can be divided"
        );
        return Err(Error::checkpoint(restored.path(), what));
    }
    let is_asked_for_again = match (there.rank_batch_size, settings.rank_batch_size) {
        (Some(first), Some(asked)) => first == asked,
        // An earlier version, or a loop of its own, has not noted it.
        _ => *world_size != ranks,
    };
    if saved == here || is_asked_for_again {
        return Ok(());
    }
    let part = saved / ranks;
    let first = there.rank_batch_size.filter(|first| *first != part);
    let first = first.map(|first| format!(", or {first} as at the first start"));
    let what = format!(
        "was made with a global batch of {saved}, this run has one of {here}: the batch size times the micro-batches must be {part} on each of {ranks} rank(s){}",
        first.unwrap_or_default()
    );
    Err(Error::checkpoint(restored.path(), what))
}

pub(super) fn check_names(restored: &Restored, names: &[String]) -> Result<()> {
    match restored.manifest().parts.keys().find(|name| !names.contains(name)) {
        None => Ok(()),
        Some(name) => Err(Error::checkpoint(
            restored.path(),
            format!("has a part `{name}`, which this run does not have"),
        )),
    }
}
