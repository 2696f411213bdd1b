//! A GGUF file, as llama.cpp writes them: numbers in few bits, with all that a `config.json` would say.
//!
//! llama.cpp stores the rows of `q_proj` and `k_proj` of the `llama` architecture in another order, in which the two
//! coordinates that turn together are neighbours. The rows are put back here, also those of quantised matrices, whose
//! blocks never reach over a row.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use candelabrum_nn::QuantizedMatrix;
use candle_core::quantized::gguf_file::{Content, TensorInfo, Value};
use candle_core::quantized::{QStorage, QTensor};
use candle_core::{DType, Device, Var};
use parking_lot::Mutex;

use super::gguf_metadata::metadata_config;
use super::gguf_names::hugging_face_name;
use super::partial_values::PartialValues;
use crate::config::{Config, refuse_lfs_pointer};
use crate::error::{Error, Result};

/// A file with its metadata, before any numbers are read. A model may have several files, of which the first one has all
/// metadata.
pub(crate) struct GgufFile {
    path: PathBuf,
    parts: Vec<GgufPart>,
    /// All but long lists.
    metadata: Config,
    /// The part of a tensor and its name there, for Hugging Face's name.
    names: BTreeMap<String, (usize, String)>,
    /// Tensors that no model of ours has.
    others: Vec<String>,
}

/// A file, and where its tensors are.
struct GgufPart {
    path: PathBuf,
    file: Mutex<BufReader<File>>,
    content: Content,
}

impl std::fmt::Debug for GgufFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GgufFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl GgufPart {
    fn open(path: &Path) -> Result<Self> {
        let mut file = File::open(path).map_err(Error::io("open", path))?;
        let size = file.metadata().map_err(Error::io("read", path))?.len();
        let content = match Content::read(&mut BufReader::new(&mut file)) {
            Ok(content) => content,
            Err(error) => return Err(unreadable(path, &error.to_string())),
        };
        let end = |(name, info): (&String, &TensorInfo)| {
            let bytes = info.shape.elem_count() / info.ggml_dtype.block_size()
                * info.ggml_dtype.type_size();
            (content.tensor_data_offset + info.offset + bytes as u64, name.clone())
        };
        if let Some((end, name)) = content.tensor_infos.iter().map(end).max()
            && end > size
        {
            let what = format!(
                "has {size} bytes of {end}, and lacks numbers of `{name}`: it is truncated; download the file again"
            );
            return Err(Error::file(path, what));
        }
        Ok(Self { path: path.to_owned(), file: Mutex::new(BufReader::new(file)), content })
    }

    /// Which part of how many this file is.
    fn place(&self) -> Result<(usize, usize)> {
        let metadata = &self.content.metadata;
        let split = metadata_config(&self.path, metadata, |key| key.starts_with("split."));
        let Some(split) = split.object("split")? else { return Ok((0, 1)) };
        Ok((split.size("no")?.unwrap_or(0), split.size("count")?.unwrap_or(1).max(1)))
    }
}

/// The error of a file that candle cannot read.
fn unreadable(path: &Path, why: &str) -> Error {
    // ggml's numbers of the formats that candle does not know.
    const FORMATS: [(&str, &str); 20] = [
        ("16", "IQ2_XXS"),
        ("17", "IQ2_XS"),
        ("18", "IQ3_XXS"),
        ("19", "IQ1_S"),
        ("20", "IQ4_NL"),
        ("21", "IQ3_S"),
        ("22", "IQ2_S"),
        ("23", "IQ4_XS"),
        ("24", "I8"),
        ("25", "I16"),
        ("26", "I32"),
        ("27", "I64"),
        ("28", "F64"),
        ("29", "IQ1_M"),
        ("34", "TQ1_0"),
        ("35", "TQ2_0"),
        ("39", "MXFP4"),
        ("40", "NVFP4"),
        ("41", "Q1_0"),
        ("36", "IQ4_NL_4_4"),
    ];
    let mut start = [0; 64];
    let read = File::open(path).and_then(|mut file| std::io::Read::read(&mut file, &mut start));
    let start = &start[..read.unwrap_or(0)];
    if let Err(error) = refuse_lfs_pointer(path, start) {
        return error;
    }
    let format = why.split_once("unknown dtype for tensor ").map(|(_, number)| number);
    let Some(format) = format.and_then(|number| number.split_whitespace().next()) else {
        let what = if start.starts_with(b"GGUF") || start.len() < 4 {
            "is a GGUF file that ends within its header, or is damaged: download the file again"
        } else if path.extension().is_some_and(|extension| extension == "safetensors") {
            "is no GGUF file: name the folder that has it and config.json"
        } else {
            "is no GGUF file"
        };
        return Error::file(path, format!("{what} ({why})"));
    };
    let name = FORMATS.iter().find(|(number, _)| *number == format);
    let name = name.map_or_else(|| format!("the number {format}"), |(_, name)| (*name).to_owned());
    Error::file(
        path,
        format!(
            "has tensors in the format {name}, which is not supported: take a file of the model in Q8_0, Q6_K, Q5_K, Q4_K, \
             Q4_0 or F16"
        ),
    )
}

impl GgufFile {
    /// Reads the metadata of the file at `path`, and of the other parts if it is one of several.
    ///
    /// # Errors
    /// A file that is no GGUF file, or that is shorter than its metadata says. A part that is missing.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let parts = Self::parts(path)?;
        let whole = &parts[0].content.metadata;
        // The lists are those of the tokenizer, which are long.
        let is_short = |key: &str| !matches!(&whole[key], Value::Array(list) if list.len() > 1024);
        let metadata = metadata_config(&parts[0].path, whole, is_short);
        let (mut names, mut others) = (BTreeMap::new(), Vec::new());
        let mut all: Vec<(&String, usize)> = Vec::new();
        for (number, part) in parts.iter().enumerate() {
            all.extend(part.content.tensor_infos.keys().map(|name| (name, number)));
        }
        all.sort();
        if let Some(pair) = all.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let what = format!("has `{}`, which another part has, too", pair[0].0);
            return Err(Error::file(&parts[pair[1].1].path, what));
        }
        let said =
            metadata.object("split")?.and_then(|split| split.size("tensors.count").transpose());
        if let Some(said) = said.transpose()?.filter(|said| *said != all.len()) {
            let what = format!(
                "says split.tensors.count = {said}, and its parts have {} tensors",
                all.len()
            );
            return Err(Error::file(path, what));
        }
        for (name, part) in all {
            match hugging_face_name(name) {
                Some(ours) => drop(names.insert(ours, (part, name.clone()))),
                None => others.push(name.clone()),
            }
        }
        Ok(Self { path: path.to_owned(), parts, metadata, names, others })
    }

    /// The parts of the model, of which the file at `path` is one. Their names end as llama.cpp wants it:
    /// `-00001-of-00003.gguf`.
    fn parts(path: &Path) -> Result<Vec<GgufPart>> {
        let this = GgufPart::open(path)?;
        let (number, count) = this.place()?;
        if count == 1 {
            return Ok(vec![this]);
        }
        let end = |number: usize| format!("-{:05}-of-{count:05}.gguf", number + 1);
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(start) = name.strip_suffix(&end(number)) else {
            let what = format!(
                "is part {} of {count} (split.no, split.count in its metadata), and its name must end with {}",
                number + 1,
                end(number)
            );
            return Err(Error::file(path, what));
        };
        let mut this = Some(this);
        (0..count)
            .map(|other| {
                if let Some(part) = this.take_if(|_| other == number) {
                    return Ok(part);
                }
                let part = path.with_file_name(format!("{start}{}", end(other)));
                if !part.exists() {
                    let what = format!(
                        "is missing, part {} of {count} of the model: download all parts into one folder",
                        other + 1
                    );
                    return Err(Error::file(part, what));
                }
                let part = GgufPart::open(&part)?;
                match part.place()? {
                    place if place == (other, count) => Ok(part),
                    (number, of) => {
                        let what = format!("says that it is part {} of {of}", number + 1);
                        Err(Error::file(&part.path, what))
                    }
                }
            })
            .collect()
    }

    /// The metadata but long lists.
    pub(super) fn metadata(&self) -> &Config {
        &self.metadata
    }

    /// The metadata as the file has them, with the lists of the tokenizer.
    pub(crate) fn raw_metadata(&self) -> &HashMap<String, Value> {
        &self.parts[0].content.metadata
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().chain(&self.others).map(String::as_str)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    fn info(&self, name: &str) -> Option<&TensorInfo> {
        let (part, name) = self.names.get(name)?;
        self.parts[*part].content.tensor_infos.get(name)
    }

    pub(crate) fn dims(&self, name: &str) -> Vec<usize> {
        self.info(name).map_or_else(Vec::new, |info| info.shape.dims().to_vec())
    }

    /// Whether the tensor is a matrix in few bits for each number.
    pub(crate) fn is_quantized(&self, name: &str) -> bool {
        self.info(name)
            .is_some_and(|info| info.ggml_dtype.block_size() > 1 && info.shape.rank() == 2)
    }

    /// The matrix `name` as it is stored.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(crate) fn matrix(&self, name: &str, device: &Device) -> Result<QuantizedMatrix> {
        let tensor = self.tensor(name)?;
        let tensor = self.rows_in_order(name, &tensor, device)?;
        Ok(QuantizedMatrix::new(tensor)?)
    }

    /// The tensor `name` as a variable.
    ///
    /// # Errors
    /// A file that cannot be read, or a type that no parameter has.
    pub(crate) fn read(&self, name: &str, dtype: DType, device: &Device) -> Result<Var> {
        let tensor = self.rows_in_order(name, &self.tensor(name)?, &Device::Cpu)?;
        let dims = tensor.shape().dims().to_vec();
        let Some(mut numbers) = PartialValues::new(dtype, tensor.shape().elem_count()) else {
            return Err(Error::argument(format!(
                "`{name}` as {dtype:?}: no parameter has this type"
            )));
        };
        let values = tensor.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
        if !numbers.extend(values.into_iter().map(f64::from)) {
            let what = format!("has numbers in `{name}` that are too large for {dtype:?}");
            return Err(Error::file(&self.path, what));
        }
        Ok(numbers.into_variable(&dims, device)?)
    }

    fn tensor(&self, name: &str) -> Result<QTensor> {
        let missing = || Error::file(&self.path, format!("has no tensor `{name}`"));
        let (part, theirs) = self.names.get(name).ok_or_else(missing)?;
        let GgufPart { path, file, content } = &self.parts[*part];
        let read = content.tensor(&mut *file.lock(), theirs, &Device::Cpu);
        read.map_err(|error| Error::file(path, format!("cannot be read at `{name}`: {error}")))
    }

    /// The rows of a tensor on `device` in Hugging Face's order.
    fn rows_in_order(&self, name: &str, tensor: &QTensor, device: &Device) -> Result<QTensor> {
        let heads = match name.rsplit_once(".self_attn.").map(|(_, part)| part) {
            Some("q_proj.weight" | "q_proj.bias") => self.llama_heads("attention.head_count")?,
            Some("k_proj.weight" | "k_proj.bias") => self.llama_heads("attention.head_count_kv")?,
            _ => None,
        };
        let format = tensor.dtype();
        let data = tensor.data()?;
        let data = if let Some(heads) = heads {
            let rows = tensor.shape().dims()[0];
            if !rows.is_multiple_of(2 * heads) {
                let what = format!("has `{name}` of {rows} rows for {heads} heads");
                return Err(Error::file(&self.path, what));
            }
            Cow::Owned(in_halves(&data, rows, rows / heads))
        } else {
            data
        };
        let storage = QStorage::from_data(data, device, format)?;
        Ok(QTensor::new(storage, tensor.shape())?)
    }

    /// The number of heads by the metadata of an architecture `llama`. `None` for another one.
    fn llama_heads(&self, key: &str) -> Result<Option<usize>> {
        let Some(own) = self.metadata.object("llama")? else { return Ok(None) };
        match own.size(key)? {
            Some(0) => Err(self.metadata.fault(format!("has llama.{key} = 0"))),
            Some(heads) => Ok(Some(heads)),
            None => own.needed("attention.head_count").map(Some),
        }
    }
}

/// Rows of heads of `head` rows each, in which rows 2 i and 2 i + 1 turn together, so that rows i and i + head / 2 do.
fn in_halves(data: &[u8], rows: usize, head: usize) -> Vec<u8> {
    let len = data.len() / rows;
    let half = head / 2;
    let mut ordered = Vec::with_capacity(data.len());
    for row in 0..rows {
        let (first, within) = (row / head * head, row % head);
        let there = first + if within < half { 2 * within } else { 2 * (within - half) + 1 };
        ordered.extend_from_slice(&data[there * len..][..len]);
    }
    ordered
}
