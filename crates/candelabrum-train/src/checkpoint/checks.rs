//! Whether a run may continue a checkpoint.

use std::path::Path;

use super::manifest::Manifest;
use super::restored::Restored;
use super::settings::{Change, RunSettings};
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
    let Change { what, there, here } = change;
    let what = format!(
        "was made with {what} `{there}`, this run has `{here}`: another run needs another directory"
    );
    Err(Error::checkpoint(restored.path(), what))
}

/// At another number of ranks the global batches must stay as they are.
pub(super) fn check_batch(restored: &Restored, settings: &RunSettings, ranks: usize) -> Result<()> {
    let Manifest { settings: there, world_size, .. } = restored.manifest();
    let (Some(saved), Some(here)) = (there.global_batch_size, settings.global_batch_size) else {
        return Ok(());
    };
    if *world_size == ranks && saved != here {
        let what = format!("was made with a global batch of {saved}, this run has one of {here}");
        return Err(Error::checkpoint(restored.path(), what));
    }
    if !saved.is_multiple_of(ranks) {
        let what = format!(
            "has a global batch of {saved}, which {ranks} ranks cannot divide equally: use a number of ranks by which it can be divided"
        );
        return Err(Error::checkpoint(restored.path(), what));
    }
    Ok(())
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
