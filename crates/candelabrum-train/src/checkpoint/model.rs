//! The buffers of a model in a checkpoint, and the names of the files of a model.

use candelabrum_nn::{Params, with_span};

use super::restored::VectorFile;
use super::vector_set::VectorSet;
use crate::{Error, Result};

/// The file of the parameters. Those of a half-precision model are its masters in f32.
pub(super) const PARAMETERS: &str = "parameters";

/// The file of what a rank has not sent yet.
pub(super) const OPTIMIZER: &str = "optimizer";
pub(super) const RESIDUALS: &str = "residuals";

/// Copies all buffers.
pub(super) fn save_buffers(params: &Params, to: &mut VectorSet) -> Result<()> {
    for buffer in params.buffers() {
        let value = buffer.value();
        with_span(&value, |values| {
            to.put(buffer.name(), value.dims(), values).map_err(candle_core::Error::from)
        })?;
    }
    Ok(())
}

/// Returns an error if the file is not of the buffers of this model.
pub(super) fn check_buffers(params: &Params, from: &VectorFile) -> Result<()> {
    from.check(&buffers(params).collect::<Vec<_>>())
}

/// Sets all buffers.
pub(super) fn load_buffers(params: &Params, from: &VectorFile) -> Result<()> {
    for buffer in params.buffers() {
        let old = buffer.value();
        let values = from.values(buffer.name())?;
        let value = candle_core::Tensor::from_vec(values, old.shape(), &candle_core::Device::Cpu)?;
        buffer.set(&value.to_dtype(old.dtype())?.to_device(old.device())?)?;
    }
    params.keep_buffers();
    Ok(())
}

/// The names and dimensions of all buffers.
pub(super) fn buffers(params: &Params) -> impl Iterator<Item = (String, Vec<usize>)> {
    params.buffers().into_iter().map(|b| (b.name().to_owned(), b.value().dims().to_vec()))
}

/// The error of a device.
pub(super) fn device(error: candelabrum_memory::Error) -> Error {
    candelabrum_dist::Error::from(error).into()
}

/// The mean of a vector over files. Where a file does not have it, it is zero.
pub(super) fn mean_of(files: &[&VectorFile], name: &str) -> Result<Vec<f32>> {
    if let [file] = files {
        return file.values(name);
    }
    let mut sum: Vec<f64> = Vec::new();
    for file in files.iter().filter(|file| file.has(name)) {
        let values = file.values(name)?;
        sum.resize(values.len().max(sum.len()), 0.0);
        sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += f64::from(value));
    }
    Ok(sum.into_iter().map(|sum| (sum / files.len().max(1) as f64) as f32).collect())
}
