//! The numbers of a pretrained model: where each of them lies, and which of them a model has taken.

mod gguf;
mod gguf_names;
mod naming;
mod numbers;
mod safetensors;
mod saved;

use std::collections::BTreeSet;

use candelabrum_nn::{InitialValues, LoadReport, QuantizedMatrix, Unfit};
use candle_core::{DType, Device, Result as CandleResult, Shape, Var};
use parking_lot::Mutex;

pub(crate) use self::gguf::GgufFile;
pub(crate) use self::naming::Naming;
pub(crate) use self::safetensors::{SafetensorsFiles, weights_file};
pub(crate) use self::saved::{Named, is_of_adapter, save, save_named};
use crate::error::Result;

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
pub(crate) enum Files {
    Safetensors(SafetensorsFiles),
    Gguf(Box<GgufFile>),
}

impl Files {
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

    fn read(&self, name: &str, dtype: DType, device: &Device) -> Result<Var> {
        match self {
            Self::Safetensors(files) => files.read(name, dtype, device),
            Self::Gguf(file) => file.read(name, dtype, device),
        }
    }
}

/// The pretrained numbers, while a model is created from them.
pub(crate) struct Source {
    files: Files,
    naming: Naming,
    quantization: Quantization,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    /// Names in the files.
    theirs: BTreeSet<String>,
    loaded: Vec<String>,
    missing: Vec<String>,
    unfit: Vec<Unfit>,
}

impl Source {
    pub(crate) fn new(files: Files, naming: Naming, quantization: Quantization) -> Self {
        Self { files, naming, quantization, taken: Mutex::default() }
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
        taken.unfit.push(Unfit { name, theirs, expected, got });
        None
    }

    /// The tensors that no layer has taken and that are written again, by the names of files without a head.
    pub(crate) fn kept(&self, dtype: DType) -> Result<Named> {
        let Some(is_kept) = self.naming.is_kept else { return Ok(Named::new()) };
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
    pub(crate) fn report(&self) -> LoadReport {
        let taken = self.taken.lock();
        let is_known = |name: &str| self.naming.is_known.is_some_and(|is_known| is_known(name));
        let unused = self.files.names().into_iter();
        LoadReport {
            loaded: taken.loaded.clone(),
            missing: taken.missing.clone(),
            unused: unused.filter(|name| !taken.theirs.contains(name) && !is_known(name)).collect(),
            unfit: taken.unfit.clone(),
        }
    }
}

impl InitialValues for Source {
    fn variable(
        &self,
        name: &str,
        shape: &Shape,
        dtype: DType,
        device: &Device,
    ) -> CandleResult<Option<Var>> {
        let Some(theirs) = self.find(name, shape.dims()) else { return Ok(None) };
        let read = |dtype, device: &Device| {
            self.files.read(&theirs, dtype, device).map_err(candle_core::Error::wrap)
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
        let (Quantization::Keep, Files::Gguf(file)) = (self.quantization, &self.files) else {
            return Ok(None);
        };
        let Some(theirs) = self.theirs(name).filter(|theirs| file.is_quantized(theirs)) else {
            return Ok(None);
        };
        let Some(theirs) = self.find(name, &[rows, columns]).filter(|found| *found == theirs)
        else {
            return Ok(None);
        };
        file.matrix(&theirs, device).map(Some).map_err(candle_core::Error::wrap)
    }
}
