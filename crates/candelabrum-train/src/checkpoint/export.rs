//! The weights of the best checkpoint in a file of their own, for other programs.

use std::collections::BTreeMap;
use std::path::Path;

use candelabrum_datasets::write_whole;
use safetensors::SafeTensors;
use safetensors::tensor::serialize;

use super::best::{average_file, find};
use super::manifest::BestCheckpoint;
use super::model::PARAMETERS;
use super::whole_file::{self, unusable};
use crate::{Error, Result};

/// Writes parameters and buffers of the best checkpoint in the directory `dir` to the safetensors file `path`, and says
/// which checkpoint it was. [`load_best`](super::load_best) has the meaning of `measure`.
///
/// The file has the names of the parameters, and numbers in f32: [`Params::load_weights`](candelabrum_nn::Params) and
/// candle's `VarBuilder` read it. What a pretrained model has from its own files and nothing trains is not in
/// checkpoints, and so not in the file. The file replaces an existing one when it is complete. It is for one process: a
/// training of several ranks exports by the hook [`ExportBest`](crate::hooks::ExportBest).
///
/// # Errors
/// No best checkpoint by this value, a checkpoint that is damaged or of a training of several models, and
/// [`Error::Write`] if the file cannot be written. An existing file is then unchanged.
pub fn export_best(
    dir: impl AsRef<Path>,
    measure: Option<&str>,
    path: impl AsRef<Path>,
) -> Result<BestCheckpoint> {
    let (best, checkpoint) = find(dir.as_ref(), measure)?;
    write(path.as_ref(), &whole_file::read(&checkpoint, PARAMETERS)?)?;
    Ok(best)
}

/// [`export_best`] with the average of the weights in place of the weights. `average` is the name of the hook: `"ema"` or
/// `"swa"`. Buffers and frozen parameters are those of the checkpoint.
///
/// # Errors
/// Those of [`export_best`], and a checkpoint of a run without this hook.
pub fn export_best_average(
    dir: impl AsRef<Path>,
    measure: Option<&str>,
    average: &str,
    path: impl AsRef<Path>,
) -> Result<BestCheckpoint> {
    let (best, checkpoint) = find(dir.as_ref(), measure)?;
    let average = whole_file::read(&checkpoint, &average_file(&checkpoint, average)?)?;
    let weights = whole_file::read(&checkpoint, PARAMETERS)?;
    let mut all = BTreeMap::new();
    for bytes in [&weights, &average] {
        let file =
            SafeTensors::deserialize(bytes).map_err(|error| unusable(&checkpoint, &error))?;
        all.extend(file.tensors());
    }
    let bytes = serialize(all, None).map_err(|error| unusable(&checkpoint, &error))?;
    write(path.as_ref(), &bytes)?;
    Ok(best)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    write_whole(path, |out| out.write_all(bytes)).map_err(Error::write("weights", path))
}
