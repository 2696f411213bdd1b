//! The weights of the best checkpoint.

use std::fs;
use std::path::{Path, PathBuf};

use candelabrum_dist::{Error as DistError, Group};
use candelabrum_nn::{NameMap, Params};

use super::directory::{BEST, Directory};
use super::manifest::{BestCheckpoint, Ranked};
use super::model::PARAMETERS;
use super::restored::HOOK_FILES;
use super::shard::SHARD;
use super::whole_file;
use crate::{Error, Result};

/// Loads parameters and buffers of the best checkpoint in the directory `dir`, and says which checkpoint it was. A run
/// with a [`BestModel`](crate::hooks::BestModel) has made it. Where several of these hooks have their best checkpoints,
/// `measure` names the value, `"mae"` for instance; `None` is the value of the first hook.
///
/// # Errors
/// No best checkpoint by this value, a model with other parameters, and those of [`Params::load_weights`].
pub fn load_best(
    dir: impl AsRef<Path>,
    measure: Option<&str>,
    params: &Params,
) -> Result<BestCheckpoint> {
    let (best, path) = find(dir.as_ref(), measure)?;
    let weights = whole_file::read(&path, PARAMETERS)?;
    let mut report = params.load_weight_bytes(&weights, &path, &NameMap::new())?;
    // What the model has from its own files and nothing trains is not in checkpoints.
    let is_constant = |name: &String| params.get(name).is_ok_and(|param| param.is_constant());
    report.missing.retain(|name| !is_constant(name));
    report.complete()?;
    Ok(best)
}

/// [`load_best`] with the average of the weights in place of the weights. `average` is the name of the hook:
/// `"ema"` or `"swa"`. Buffers and frozen parameters are those of the checkpoint.
///
/// # Errors
/// Those of [`load_best`], and a checkpoint of a run without this hook.
pub fn load_best_average(
    dir: impl AsRef<Path>,
    measure: Option<&str>,
    average: &str,
    params: &Params,
) -> Result<BestCheckpoint> {
    let (dir, best) = (dir.as_ref(), load_best(&dir, measure, params)?);
    let (_, path) = find(dir, measure)?;
    let averages = whole_file::read(&path, &average_file(&path, average)?)?;
    let mut report = params.load_weight_bytes(&averages, &path, &NameMap::new())?;
    let trained = params.trainable();
    report.missing.retain(|name| trained.iter().any(|param| param.name() == name));
    report.complete()?;
    Ok(best)
}

/// Those of `ranked` that the directory still has, as rank 0 sees it, on all ranks. States of earlier versions have no
/// steps: for these the directory has noted the step of the value.
pub(crate) fn still_there(
    dir: &Path,
    measure: &str,
    ranked: &[Ranked],
    group: &Group,
) -> Result<Vec<Ranked>> {
    let directory = Directory::new(dir, String::new());
    let noted = directory.best().unwrap_or_default();
    let noted =
        noted.values().filter(|best| best.measure == measure).flat_map(BestCheckpoint::ranked);
    let noted: Vec<Ranked> = noted.collect();
    let is_here = |ranked: &Ranked| directory.of_step(ranked.step).exists();
    let found = |wanted: &Ranked| {
        let of_value = noted.iter().find(|noted| noted.value.to_bits() == wanted.value.to_bits());
        [wanted].into_iter().chain(of_value).copied().find(is_here)
    };
    let own: Vec<Ranked> = ranked.iter().filter_map(found).collect();
    let own = serde_json::to_string(&own).unwrap_or_default();
    let unreadable = |error| DistError::Protocol {
        what: format!("rank 0 sent an unreadable list of its best checkpoints: {error}"),
    };
    Ok(serde_json::from_str(&group.broadcast_text(&own, 0)?).map_err(unreadable)?)
}

/// The name of the file of a checkpoint's average, without its ending.
pub(super) fn average_file(checkpoint: &Path, average: &str) -> Result<String> {
    if has_average(checkpoint, average) {
        return Ok(format!("{HOOK_FILES}{average}"));
    }
    let what =
        format!("has no average `{average}` of the weights: the hook WeightAverage makes it");
    Err(Error::checkpoint(checkpoint, what))
}

/// Whether a checkpoint has this average of the weights.
pub(crate) fn has_average(checkpoint: &Path, average: &str) -> bool {
    let (name, entries) = (format!("{HOOK_FILES}{average}"), fs::read_dir(checkpoint));
    let is_of_average = |file: &str| {
        file == format!("{name}.safetensors") || file.starts_with(&format!("{name}{SHARD}"))
    };
    let files = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
    files.into_iter().any(|file| is_of_average(&file.to_string_lossy()))
}

/// The directory of the best checkpoint by this value, if there is one.
pub(crate) fn best_checkpoint(dir: &Path, measure: Option<&str>) -> Result<Option<PathBuf>> {
    Ok(noted(dir, measure)?.map(|(_, path)| path))
}

/// The best checkpoint by this value, and its directory.
pub(super) fn find(dir: &Path, measure: Option<&str>) -> Result<(BestCheckpoint, PathBuf)> {
    let by = measure.map(|measure| format!(" by `{measure}`")).unwrap_or_default();
    let none = || format!("has no best checkpoint{by}: the hook BestModel makes it");
    noted(dir, measure)?.ok_or_else(|| Error::checkpoint(dir, none()))
}

fn noted(dir: &Path, measure: Option<&str>) -> Result<Option<(BestCheckpoint, PathBuf)>> {
    let directory = Directory::new(dir, String::new());
    let mut all = directory
        .best()
        .map_err(|error| Error::checkpoint(dir, format!("cannot be read: {error}")))?;
    let best = match measure {
        None => all.remove(BEST),
        Some(measure) => all.into_values().find(|best| best.measure == measure),
    };
    Ok(best.map(|best| {
        let path = directory.of_step(best.step);
        (best, path)
    }))
}

#[cfg(test)]
mod tests {
    use candelabrum_dist::World;

    use super::*;

    #[test]
    fn what_is_no_longer_there_does_not_count_and_steps_come_from_the_notes() -> Result<()> {
        let ranked = |step, value| Ranked { step, value };
        let dir = tempfile::tempdir().map_err(candle_core::Error::wrap)?;
        let directory = Directory::new(dir.path(), String::new());
        for step in [7, 9] {
            fs::create_dir(directory.of_step(step)).map_err(candle_core::Error::wrap)?;
        }
        let all = [ranked(9, 0.25), ranked(8, 0.5), ranked(7, 0.75)];
        let best = BestCheckpoint::from_ranked("loss".to_owned(), all).expect("a list of three");
        directory.record_best(BEST, &best).map_err(candle_core::Error::wrap)?;
        let group = World::single().group();
        let there = |ranked: &[Ranked]| still_there(dir.path(), "loss", ranked, &group);
        assert_eq!(there(&all)?, [all[0], all[2]]);
        // An earlier version has kept the value alone.
        assert_eq!(there(&[ranked(0, 0.75)])?, [all[2]]);
        assert_eq!(there(&[ranked(0, 0.5), ranked(0, 3.0)])?, []);
        Ok(())
    }
}
