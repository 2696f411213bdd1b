//! A GGUF file, as llama.cpp writes them: numbers in few bits, with all that a `config.json` would say.
//!
//! llama.cpp stores the rows of `q_proj` and `k_proj` of the `llama` architecture in another order, in which the two
//! coordinates that turn together are neighbours. The rows are put back here, also those of quantised matrices, whose
//! blocks never reach over a row.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use candelabrum_nn::QuantizedMatrix;
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::quantized::{QStorage, QTensor};
use candle_core::{DType, Device, Var};
use parking_lot::Mutex;
use serde_json::{Map, Value as Json, json};

use super::gguf_names::hugging_face_name;
use super::numbers::Numbers;
use crate::error::{Error, Result};

/// A file with its metadata, before any numbers are read.
pub(crate) struct GgufFile {
    path: PathBuf,
    file: Mutex<BufReader<File>>,
    content: Content,
    /// The file's name of a tensor for Hugging Face's name.
    names: BTreeMap<String, String>,
    /// Tensors that no model of ours has.
    others: Vec<String>,
}

impl std::fmt::Debug for GgufFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GgufFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl GgufFile {
    /// Reads the metadata of the file at `path`.
    ///
    /// # Errors
    /// A file that is no GGUF file, or that is shorter than its metadata says.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let size = file.metadata().map_err(Error::io("read", path))?.len();
        let mut file = BufReader::new(file);
        let content = Content::read(&mut file).map_err(|error| {
            Error::file(path, format!("is no GGUF file, or it ends within its header: {error}"))
        })?;
        let end = |(name, info): (&String, &candle_core::quantized::gguf_file::TensorInfo)| {
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
        let mut theirs: Vec<&String> = content.tensor_infos.keys().collect();
        theirs.sort();
        let (mut names, mut others) = (BTreeMap::new(), Vec::new());
        for name in theirs {
            match hugging_face_name(name) {
                Some(ours) => drop(names.insert(ours, name.clone())),
                None => others.push(name.clone()),
            }
        }
        Ok(Self { path: path.to_owned(), file: Mutex::new(file), content, names, others })
    }

    /// The metadata, in which a tokenizer may be.
    pub(crate) fn metadata(&self) -> &std::collections::HashMap<String, Value> {
        &self.content.metadata
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().chain(&self.others).map(String::as_str)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    pub(crate) fn dims(&self, name: &str) -> Vec<usize> {
        let info = self.names.get(name).and_then(|name| self.content.tensor_infos.get(name));
        info.map_or_else(Vec::new, |info| info.shape.dims().to_vec())
    }

    /// Whether the tensor is a matrix in few bits for each number.
    pub(crate) fn is_quantized(&self, name: &str) -> bool {
        let info = self.names.get(name).and_then(|name| self.content.tensor_infos.get(name));
        info.is_some_and(|info| info.ggml_dtype.block_size() > 1 && info.shape.rank() == 2)
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
        let Some(mut numbers) = Numbers::new(dtype, tensor.shape().elem_count()) else {
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
        let theirs = self.names.get(name).ok_or_else(missing)?;
        let mut file = self.file.lock();
        let read = self.content.tensor(&mut *file, theirs, &Device::Cpu);
        read.map_err(|error| {
            Error::file(&self.path, format!("cannot be read at `{name}`: {error}"))
        })
    }

    /// The rows of a tensor on `device` in Hugging Face's order.
    fn rows_in_order(&self, name: &str, tensor: &QTensor, device: &Device) -> Result<QTensor> {
        let heads = match name.rsplit_once(".self_attn.").map(|(_, part)| part) {
            Some("q_proj.weight" | "q_proj.bias") => self.number("attention.head_count")?,
            Some("k_proj.weight" | "k_proj.bias") => self.kv_heads()?,
            _ => 0,
        };
        let format = tensor.dtype();
        let data = tensor.data()?;
        let data = if heads == 0 || self.architecture()? != "llama" {
            data
        } else {
            let rows = tensor.shape().dims()[0];
            if !rows.is_multiple_of(2 * heads) {
                let what = format!("has `{name}` of {rows} rows for {heads} heads");
                return Err(Error::file(&self.path, what));
            }
            Cow::Owned(in_halves(&data, rows, rows / heads))
        };
        let storage = QStorage::from_data(data, device, format)?;
        Ok(QTensor::new(storage, tensor.shape())?)
    }

    fn architecture(&self) -> Result<&str> {
        self.text("general.architecture")
    }

    fn text(&self, key: &str) -> Result<&str> {
        let value = self.content.metadata.get(key).and_then(|value| value.to_string().ok());
        value.map(String::as_str).ok_or_else(|| self.lacks(key))
    }

    fn lacks(&self, key: &str) -> Error {
        Error::file(&self.path, format!("lacks {key} in its metadata, which a model needs"))
    }

    fn number(&self, key: &str) -> Result<usize> {
        let key = format!("{}.{key}", self.architecture()?);
        let value = self.content.metadata.get(&key).and_then(|value| value.to_u64().ok());
        let value = value.and_then(|value| usize::try_from(value).ok());
        value.ok_or_else(|| self.lacks(&key))
    }

    fn real(&self, key: &str) -> Result<Option<f64>> {
        let key = format!("{}.{key}", self.architecture()?);
        let value = self.content.metadata.get(&key);
        Ok(value.and_then(|value| value.to_f32().map(f64::from).or_else(|_| value.to_f64()).ok()))
    }

    fn kv_heads(&self) -> Result<usize> {
        let count = self.number("attention.head_count_kv");
        count.or_else(|_| self.number("attention.head_count"))
    }

    /// The file's metadata as Hugging Face's `config.json`.
    ///
    /// # Errors
    /// An architecture that is none of ours, or metadata that lack a size.
    pub(crate) fn config(&self) -> Result<Json> {
        let (model_type, class) = match self.architecture()? {
            "llama" => ("llama", "LlamaForCausalLM"),
            "qwen2" => ("qwen2", "Qwen2ForCausalLM"),
            "qwen3" => ("qwen3", "Qwen3ForCausalLM"),
            other => {
                let what = format!(
                    "has the architecture {other:?}: llama, qwen2 and qwen3 are read from GGUF files"
                );
                return Err(Error::file(&self.path, what));
            }
        };
        if self.content.tensor_infos.contains_key("rope_freqs.weight") {
            let what = "has scaled rotary positions (rope_freqs.weight): take the model's safetensors folder";
            return Err(Error::file(&self.path, what));
        }
        let (width, heads) =
            (self.number("embedding_length")?, self.number("attention.head_count")?);
        let vocabulary = self.dims("model.embed_tokens.weight");
        let Some(&vocabulary) = vocabulary.first() else {
            return Err(self.lacks("token_embd.weight"));
        };
        let mut config = Map::new();
        let mut set = |key: &str, value: Json| drop(config.insert(key.to_owned(), value));
        set("model_type", json!(model_type));
        set("architectures", json!([class]));
        set("hidden_size", json!(width));
        set("intermediate_size", json!(self.number("feed_forward_length")?));
        set("num_hidden_layers", json!(self.number("block_count")?));
        set("num_attention_heads", json!(heads));
        set("num_key_value_heads", json!(self.kv_heads()?));
        let head_dim = self.number("attention.key_length").unwrap_or(width / heads.max(1));
        set("head_dim", json!(head_dim));
        set("hidden_act", json!("silu"));
        set("max_position_embeddings", json!(self.number("context_length")?));
        let eps = self.real("attention.layer_norm_rms_epsilon")?;
        // The file has f32, and 1e-5 is meant.
        let eps = eps.map_or(1e-5, |eps| (eps * 1e10).round() / 1e10);
        set("rms_norm_eps", json!(eps));
        set("rope_theta", json!(self.real("rope.freq_base")?.unwrap_or(10_000.0)));
        set("vocab_size", json!(vocabulary));
        set("tie_word_embeddings", json!(!self.has("lm_head.weight")));
        set("attention_bias", json!(self.has("model.layers.0.self_attn.q_proj.bias")));
        for (key, name) in
            [("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding")]
        {
            let key_there = format!("tokenizer.ggml.{name}_token_id");
            if let Some(id) = self.content.metadata.get(&key_there).and_then(|id| id.to_u64().ok())
            {
                set(key, json!(id));
            }
        }
        Ok(Json::Object(config))
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
