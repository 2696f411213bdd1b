//! The numbers of a pretrained model: where each of them lies, and which of them a model has taken.

mod gguf;
mod gguf_config;
mod gguf_metadata;
mod gguf_names;
mod naming;
mod partial_values;
mod safetensors;
mod saved;

use std::collections::BTreeSet;

use candelabrum_nn::{InitialValues, LoadReport, QuantizedMatrix, ShapeMismatch};
use candle_core::{DType, Device, Result as CandleResult, Shape, Var};
use parking_lot::Mutex;

pub(crate) use self::gguf::GgufFile;
pub(crate) use self::gguf_config::{gguf_config, gguf_generation};
pub(crate) use self::gguf_metadata::metadata_config;
pub(crate) use self::naming::Naming;
pub(crate) use self::safetensors::{INDEX, SafetensorsFiles, WEIGHTS, shards_of, weights_file};
pub(crate) use self::saved::{NamedTensors, is_of_adapter, save, save_named};
use crate::config::Config;
use crate::error::{Error, Result};

/// Whether the matrices of a GGUF file stay as they are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quantization {
    /// All numbers become parameters of the store's type.
    #[default]
    Dequantize,
    /// Matrices of linear layers and embeddings that the file has in few bits stay so, and are frozen.
    Keep,
}

/// The files that hold the numbers.
#[derive(Debug)]
pub(crate) enum WeightFiles {
    Safetensors(SafetensorsFiles),
    Gguf(Box<GgufFile>),
}

impl WeightFiles {
    pub(crate) fn names(&self) -> Vec<String> {
        match self {
            Self::Safetensors(files) => files.names().map(str::to_owned).collect(),
            Self::Gguf(file) => file.names().map(str::to_owned).collect(),
        }
    }

    fn has(&self, name: &str) -> bool {
        match self {
            Self::Safetensors(files) => files.has(name),
            Self::Gguf(file) => file.has(name),
        }
    }

    fn dims(&self, name: &str) -> Vec<usize> {
        match self {
            Self::Safetensors(files) => files.dims(name).to_vec(),
            Self::Gguf(file) => file.dims(name),
        }
    }

    /// Whether two tensors are stored with the same bytes. The head of a GGUF file's model is never there twice.
    fn are_equal(&self, one: &str, other: &str) -> Result<bool> {
        match self {
            Self::Safetensors(files) => files.are_equal(one, other),
            Self::Gguf(_) => Ok(false),
        }
    }

    fn read(&self, name: &str, dtype: DType, device: &Device) -> Result<Var> {
        match self {
            Self::Safetensors(files) => files.read(name, dtype, device),
            Self::Gguf(file) => file.read(name, dtype, device),
        }
    }
}

/// The pretrained numbers, while a model is created from them.
pub(crate) struct WeightSource {
    files: WeightFiles,
    config: Config,
    naming: Naming,
    quantization: Quantization,
    taken: Mutex<LoadProgress>,
    /// The error that ended the creation of the model. Within candle's errors it would lose its kind.
    failure: Mutex<Option<Error>>,
}

#[derive(Default)]
struct LoadProgress {
    /// Names in the files.
    theirs: BTreeSet<String>,
    loaded: Vec<String>,
    missing: Vec<String>,
    unfit: Vec<ShapeMismatch>,
}

impl WeightSource {
    pub(crate) fn new(
        files: WeightFiles,
        config: Config,
        naming: Naming,
        quantization: Quantization,
    ) -> Self {
        let (taken, failure) = (Mutex::default(), Mutex::default());
        Self { files, config, naming, quantization, taken, failure }
    }

    /// The error that ended the creation of the model, of which `error` says only the text.
    pub(crate) fn failure(&self, error: candle_core::Error) -> Error {
        self.failure.lock().take().unwrap_or(Error::Candle(error))
    }

    fn fail(&self, error: Error) -> candle_core::Error {
        let text = candle_core::Error::Msg(error.to_string());
        *self.failure.lock() = Some(error);
        text
    }

    /// Refuses a parameter of more numbers than all files have, before memory is taken for it: a size in the config is
    /// wrong.
    fn check_size(&self, name: &str, dims: &[usize]) -> Result<()> {
        let count =
            |dims: &[usize]| dims.iter().try_fold(1, |all: usize, &dim| all.checked_mul(dim));
        let names = self.files.names();
        let all = names.iter().filter_map(|name| count(&self.files.dims(name))).sum::<usize>();
        // A new head may be larger than a small model.
        if count(dims).is_some_and(|count| count <= all.max(1 << 24)) {
            return Ok(());
        }
        let there = match self.theirs(name) {
            Some(theirs) => format!("it has {:?} in the files", self.files.dims(&theirs)),
            None => "the files do not have it".to_owned(),
        };
        let says = |(key, value): (&String, &serde_json::Value)| {
            let is_size =
                value.as_u64().is_some_and(|value| dims.iter().any(|&dim| dim as u64 == value));
            is_size.then(|| format!("{key} = {value}"))
        };
        let says: Vec<_> =
            self.config.json().as_object().into_iter().flatten().filter_map(says).collect();
        let says = if says.is_empty() { String::new() } else { format!(" ({})", says.join(", ")) };
        Err(self.config.fault(format!(
            "has sizes that are not those of the files{says}: `{name}` would have {dims:?}, and {there}"
        )))
    }

    /// Refuses a head of its own in the files of a model whose weights are tied, unless it is the table once more. Gives
    /// the name of the head then.
    fn second_head(&self) -> Result<Option<String>> {
        let Some((head, table)) = self.naming.tied else { return Ok(None) };
        if !self.files.has(head) || self.taken.lock().theirs.contains(head) {
            return Ok(None);
        }
        let table = self.theirs(table).unwrap_or_default();
        if self.files.has(&table) && self.files.are_equal(head, &table)? {
            return Ok(Some(head.to_owned()));
        }
        Err(self.config.fault(format!(
            "says by tie_word_embeddings that the table `{table}` makes the logits, and the files have another matrix \
             `{head}`: set tie_word_embeddings to false in config.json, or remove the tensor"
        )))
    }

    /// The name in the files of what a model calls `name`.
    fn theirs(&self, name: &str) -> Option<String> {
        let base = self.naming.base;
        if self.naming.skips_heads && name.starts_with("classifier.") {
            return None;
        }
        let mut names = vec![name.to_owned()];
        if !base.is_empty() {
            let below = name.strip_prefix(base).and_then(|rest| rest.strip_prefix('.'));
            names.extend(below.map(str::to_owned));
            names.push(format!("{base}.{name}"));
        }
        // Files from TensorFlow call weight and bias of a normalisation so.
        let old = |name: &String| {
            let (layer, part) = name.rsplit_once('.')?;
            let part = match part {
                "weight" => "gamma",
                "bias" => "beta",
                _ => return None,
            };
            layer.ends_with("LayerNorm").then(|| format!("{layer}.{part}"))
        };
        let olds: Vec<String> = names.iter().filter_map(old).collect();
        names.into_iter().chain(olds).find(|name| self.files.has(name))
    }

    /// The name in the files of what a model calls `name`, if the shape fits. Notes what was found.
    fn find(&self, name: &str, dims: &[usize]) -> Option<String> {
        let mut taken = self.taken.lock();
        let Some(theirs) = self.theirs(name) else {
            taken.missing.push(name.to_owned());
            return None;
        };
        let mut got = self.files.dims(&theirs);
        if self.naming.transposes(name) {
            got.reverse();
        }
        taken.theirs.insert(theirs.clone());
        if got == dims {
            taken.loaded.push(name.to_owned());
            return Some(theirs);
        }
        let (name, expected) = (name.to_owned(), dims.to_vec());
        taken.unfit.push(ShapeMismatch { name, theirs, expected, got });
        None
    }

    /// The tensors that no layer has taken and that are written again, by the names of files without a head.
    pub(crate) fn kept(&self, dtype: DType) -> Result<NamedTensors> {
        let Some(is_kept) = self.naming.is_kept else { return Ok(NamedTensors::new()) };
        let taken = self.taken.lock();
        let names = self.files.names().into_iter();
        let kept = names.filter(|name| is_kept(name) && !taken.theirs.contains(name));
        kept.map(|name| {
            let own = name.strip_prefix(self.naming.base).and_then(|own| own.strip_prefix('.'));
            let values = self.files.read(&name, dtype, &Device::Cpu)?.as_detached_tensor();
            Ok((own.unwrap_or(&name).to_owned(), values))
        })
        .collect()
    }

    /// What the model has taken, and what not.
    ///
    /// # Errors
    /// A model with two matrices for the logits.
    pub(crate) fn report(&self) -> Result<LoadReport> {
        let head = self.second_head()?;
        let taken = self.taken.lock();
        let is_known = |name: &str| self.naming.is_known.is_some_and(|is_known| is_known(name));
        let unused = self.files.names().into_iter().filter(|name| Some(name) != head.as_ref());
        Ok(LoadReport {
            loaded: taken.loaded.clone(),
            missing: taken.missing.clone(),
            unused: unused.filter(|name| !taken.theirs.contains(name) && !is_known(name)).collect(),
            unfit: taken.unfit.clone(),
        })
    }
}

impl InitialValues for WeightSource {
    fn variable(
        &self,
        name: &str,
        shape: &Shape,
        dtype: DType,
        device: &Device,
    ) -> CandleResult<Option<Var>> {
        let Some(theirs) = self.find(name, shape.dims()) else {
            self.check_size(name, shape.dims()).map_err(|error| self.fail(error))?;
            return Ok(None);
        };
        let read = |dtype, device: &Device| {
            self.files.read(&theirs, dtype, device).map_err(|error| self.fail(error))
        };
        if !self.naming.transposes(name) || shape.rank() != 2 {
            return read(dtype, device).map(Some);
        }
        let stored = read(dtype, &Device::Cpu)?.as_detached_tensor();
        Ok(Some(Var::from_tensor(&stored.t()?.contiguous()?.to_device(device)?)?))
    }

    fn quantized(
        &self,
        name: &str,
        (rows, columns): (usize, usize),
        device: &Device,
    ) -> CandleResult<Option<QuantizedMatrix>> {
        let (Quantization::Keep, WeightFiles::Gguf(file)) = (self.quantization, &self.files) else {
            return Ok(None);
        };
        let Some(theirs) = self.theirs(name).filter(|theirs| file.is_quantized(theirs)) else {
            return Ok(None);
        };
        let Some(theirs) = self.find(name, &[rows, columns]).filter(|found| *found == theirs)
        else {
            return Ok(None);
        };
        file.matrix(&theirs, device).map(Some).map_err(|error| self.fail(error))
    }
}
