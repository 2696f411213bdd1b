//! Values of parameters and buffers in safetensors files, by name: those of other libraries, too.
//!
//! PyTorch, candle and this crate store the weights of linear layers, convolutions, embeddings and norms
//! in the same layout, so only names differ. A [`NameMap`] translates them, and a [`LoadReport`] says
//! what did not match.

mod name_map;
mod report;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor, safetensors};

pub use self::name_map::NameMap;
pub use self::report::{LoadReport, ShapeMismatch};
use crate::{Error, Params, Result};

impl Params {
    /// Sets parameters and buffers to the values of the same names in a safetensors file. `names`
    /// translates the file's names. Values of another float type are converted. The model must have
    /// created its parameters: see [`Model::compile`](crate::Model::compile).
    ///
    /// What does not match is left as it is, and the report lists it. [`LoadReport::complete`] makes it
    /// an error. All ranks must call this function together, before the first step, and with the same
    /// file, or rank 0 calls it alone before `DistOpt::new` makes all ranks equal to it.
    ///
    /// # Errors
    /// [`Error::Weights`] for a file that cannot be read or is damaged, two names in it that become one, whole
    /// numbers (of a quantised model), or numbers that are too large for the parameter's type. Then no parameter has changed.
    pub fn load_weights(&self, path: impl AsRef<Path>, names: &NameMap) -> Result<LoadReport> {
        let path = path.as_ref();
        let unreadable = |error| Error::Weights {
            path: path.to_owned(),
            what: format!("cannot be read: {error}"),
        };
        self.load_weight_bytes(&fs::read(path).map_err(unreadable)?, path, names)
    }

    /// [`Self::load_weights`] from the bytes of a safetensors file. Errors say that they come from `path`.
    ///
    /// # Errors
    /// Those of [`Self::load_weights`].
    pub fn load_weight_bytes(
        &self,
        bytes: &[u8],
        path: impl AsRef<Path>,
        names: &NameMap,
    ) -> Result<LoadReport> {
        let path = path.as_ref();
        let refuse = |what: String| Error::Weights { path: path.to_owned(), what };
        let file = safetensors::load_buffer(bytes, &Device::Cpu)
            .map_err(|error| refuse(format!("is no safetensors file: {error}")))?;
        // In the order of the names, so that an error always names the same ones.
        let file: BTreeMap<String, Tensor> = file.into_iter().collect();
        let mut found = BTreeMap::new();
        for (theirs, value) in file {
            let Some(ours) = names.translate(&theirs) else { continue };
            if let Some((other, _)) = found.insert(ours.clone(), (theirs.clone(), value)) {
                return Err(refuse(format!("has `{other}` and `{theirs}`, both as `{ours}`")));
            }
        }
        self.load_named(found, names, &refuse)
    }

    /// Writes all parameters and buffers to a safetensors file, by their names. Other libraries read it.
    /// Parameters in f16 and bf16 are written in their own type. An older file of this name is replaced
    /// when the new one is whole.
    ///
    /// # Errors
    /// [`Error::Weights`] for a file that cannot be written.
    pub fn save_weights(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let refuse = |error: &dyn std::fmt::Display| Error::Weights {
            path: path.to_owned(),
            what: format!("cannot be written: {error}"),
        };
        let mut values = BTreeMap::new();
        for param in self.list() {
            param.gather()?;
            values.insert(param.name().to_owned(), param.var().as_detached_tensor());
        }
        for buffer in self.buffers() {
            values.insert(buffer.name().to_owned(), buffer.value());
        }
        let partial = partial_path(path);
        let written = new_file(&partial).map_err(|error| refuse(&error)).and_then(|permissions| {
            safetensors::save(&values.into_iter().collect(), &partial)
                .map_err(|error| refuse(&error))?;
            // The library has put a file of its own in this place, which only its user may read.
            fs::set_permissions(&partial, permissions)
                .and_then(|()| replace(&partial, path))
                .map_err(|error| refuse(&error))
        });
        if written.is_err() {
            drop(fs::remove_file(&partial));
        }
        written
    }

    fn load_named(
        &self,
        mut found: BTreeMap<String, (String, Tensor)>,
        names: &NameMap,
        refuse: &dyn Fn(String) -> Error,
    ) -> Result<LoadReport> {
        let mut report = LoadReport::default();
        let mut changes = Vec::new();
        let params = self.list().into_iter().map(WeightTarget::Param);
        for target in params.chain(self.buffers().into_iter().map(WeightTarget::Buffer)) {
            let name = target.name().to_owned();
            let Some((theirs, value)) = found.remove(&name) else {
                report.missing.push(name);
                continue;
            };
            let (expected, dtype) = target.expected();
            let value = if names.is_transposed(&theirs) && value.rank() == 2 {
                Cow::Owned(value.t()?)
            } else {
                Cow::Borrowed(&value)
            };
            if value.dims() != expected {
                let got = value.dims().to_vec();
                report.unfit.push(ShapeMismatch { name, theirs, expected, got });
                continue;
            }
            if !value.dtype().is_float() {
                let type_ = value.dtype().as_str();
                return Err(refuse(format!(
                    "has `{theirs}` as {type_}, which are no weights: convert a quantised file first"
                )));
            }
            let converted = value.to_dtype(dtype)?.contiguous()?;
            let is_same = value.dtype() == dtype;
            if !is_same && is_finite(&value)? && !is_finite(&converted)? {
                let dtype = dtype.as_str();
                return Err(refuse(format!(
                    "has numbers in `{theirs}` that are too large for {dtype}"
                )));
            }
            changes.push((target, converted));
            report.loaded.push(name);
        }
        report.unused = found.into_values().map(|(theirs, _)| theirs).collect();
        report.unused.sort();
        for (target, value) in changes {
            target.set(&value.to_device(self.device())?)?;
        }
        Ok(report)
    }
}

/// Whether the largest magnitude is finite.
fn is_finite(values: &Tensor) -> Result<bool> {
    if values.elem_count() == 0 {
        return Ok(true);
    }
    let largest = values.to_dtype(DType::F64)?.abs()?.max_all()?.to_scalar::<f64>()?;
    Ok(largest.is_finite())
}

/// What gets a value.
enum WeightTarget {
    Param(crate::Param),
    Buffer(crate::Buffer),
}

impl WeightTarget {
    fn name(&self) -> &str {
        match self {
            Self::Param(param) => param.name(),
            Self::Buffer(buffer) => buffer.name(),
        }
    }

    fn expected(&self) -> (Vec<usize>, DType) {
        match self {
            Self::Param(param) => (param.dims().to_vec(), param.dtype()),
            Self::Buffer(buffer) => (buffer.value().dims().to_vec(), buffer.value().dtype()),
        }
    }

    fn set(&self, value: &Tensor) -> Result<()> {
        match self {
            Self::Param(param) => param.set(value),
            Self::Buffer(buffer) => buffer.set(value),
        }
    }
}

/// The permissions of a new file at `path`, which the user's mask decides.
fn new_file(path: &Path) -> std::io::Result<fs::Permissions> {
    Ok(fs::File::create(path)?.metadata()?.permissions())
}

/// Renames `partial` to `path` when its content is on the disk.
fn replace(partial: &Path, path: &Path) -> std::io::Result<()> {
    fs::File::open(partial)?.sync_all()?;
    fs::rename(partial, path)
}

/// The name of a file beside `path` until it is whole.
fn partial_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".partial-{}", std::process::id()));
    path.with_file_name(name)
}
