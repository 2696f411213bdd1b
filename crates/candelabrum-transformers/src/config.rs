//! The JSON files of others: one reader with errors that name the file and the key.
//!
//! Each key is read, or [`neutral`](crate::neutral), or refused by name ([`Config::finish`]): a key that says what nobody
//! here has asked for may change what the model computes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candelabrum_nn::Activation;
use parking_lot::Mutex;
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::neutral::Neutral;

/// The largest size that a config may say. Products of two sizes fit into 64 bits.
const LARGEST_SIZE: u64 = 1 << 31;

/// A `config.json`, or another JSON file of a folder, or what a GGUF file says instead.
#[derive(Clone, Debug)]
pub struct Config {
    path: PathBuf,
    /// The path of an object within the file, with a point at its end: `rope_scaling.` for instance.
    within: String,
    json: Value,
    /// The keys that were asked for.
    read: Arc<Mutex<BTreeSet<String>>>,
    /// Keys that the user has named as of no effect. `None` where the user cannot name any.
    accepted: Option<Arc<[String]>>,
    /// The number of tensors in the files, if they are known. A model has fewer layers.
    tensors: usize,
}

impl Config {
    pub(crate) fn new(path: &Path, json: Value) -> Self {
        let (path, within) = (path.to_owned(), String::new());
        Self { path, within, json, read: Arc::default(), accepted: None, tensors: usize::MAX }
    }

    /// The config of a model's folder.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        if let Some(config) = Self::read_if_there(&path)? {
            return Ok(config);
        }
        let has = |name: &str| folder.join(name).exists();
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut files = entries.filter_map(|entry| entry.file_name().into_string().ok());
        if let Some(gguf) = files.find(|name| name.ends_with(".gguf")) {
            let what = format!("has no config.json: name the file {gguf} instead of the folder");
            return Err(Error::file(folder, what));
        }
        Err(Error::file(
            folder,
            if has("adapter_config.json") {
                "has adapters and no model: open their model, and then `load_adapter` (the example `generate` has `--adapters`)"
            } else if has("params.json") {
                "has a params.json and no config.json: it is in Meta's or Mistral's own form; take the folder that transformers opens"
            } else {
                "has no config.json: a model's folder has config.json, model.safetensors and tokenizer.json; name the folder \
                 of the model, a GGUF file, or a model of the hub as OWNER/NAME"
            },
        ))
    }

    /// The JSON object in the file at `path`, if there is a file.
    ///
    /// # Errors
    /// A file that cannot be read, is no JSON object, or is the pointer that Git LFS has in the place of a file.
    pub(crate) fn read_if_there(path: &Path) -> Result<Option<Self>> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("read", path)(error)),
        };
        Self::of_bytes(path, &bytes).map(Some)
    }

    /// The JSON object in `bytes`, which are those of the file at `path`.
    ///
    /// # Errors
    /// Those of [`read_if_there`](Self::read_if_there) for what is in the file.
    pub(crate) fn of_bytes(path: &Path, bytes: &[u8]) -> Result<Self> {
        refuse_lfs_pointer(path, bytes)?;
        let json: Map<String, Value> = serde_json::from_slice(bytes)
            .map_err(|error| Error::file(path, format!("is no JSON object: {error}")))?;
        Ok(Self::new(path, Value::Object(json)))
    }

    /// With keys that the user has named as of no effect.
    pub(crate) fn accepting(self, accepted: &Arc<[String]>) -> Self {
        Self { accepted: Some(accepted.clone()), ..self }
    }

    /// The config of a model whose files have so many tensors.
    pub(crate) fn with_tensors(self, tensors: usize) -> Self {
        Self { tensors, ..self }
    }

    /// The whole text.
    pub fn json(&self) -> &Value {
        &self.json
    }

    /// Hugging Face's `model_type`, `llama` for instance.
    ///
    /// # Errors
    /// A config without one.
    pub fn model_type(&self) -> Result<&str> {
        self.text("model_type")?.ok_or_else(|| {
            self.fault("has no model_type: this is not the config of a transformer".to_owned())
        })
    }

    /// Refuses the keys that were not read and are not neutral, all in one error. A null says nothing.
    ///
    /// # Errors
    /// Such keys, with their values and what to do.
    pub(crate) fn finish(&self, neutral: &[&[Neutral]]) -> Result<()> {
        let read = self.read.lock();
        let accepted = self.accepted.as_deref().unwrap_or_default();
        let keys = self.json.as_object().into_iter().flatten();
        let unread = keys.filter(|(key, value)| {
            !value.is_null()
                && !read.contains(*key)
                && !accepted
                    .iter()
                    .any(|name| name == *key || *name == format!("{}{key}", self.within))
        });
        let refused = |(key, value): (&String, &Value)| {
            let why = Neutral::refuses(neutral, key, value)?;
            let (within, value) = (&self.within, shortened(value));
            Some(if why.is_empty() {
                format!("`{within}{key}` = {value}")
            } else {
                format!("`{within}{key}` = {value} ({why})")
            })
        };
        let refused: Vec<String> = unread.filter_map(refused).collect();
        if refused.is_empty() {
            return Ok(());
        }
        let or = match &self.accepted {
            Some(_) => ", or name it in `Pretrained::accept` (the examples have `--accept KEY`)",
            None => "",
        };
        let (s, them) = if refused.len() == 1 { ("", "it is") } else { ("s", "they are") };
        Err(self.fault(format!(
            "has the key{s} {}, and {them} not supported. If a key has no effect on the model's results, remove the key from \
             the file{or}",
            refused.join(", ")
        )))
    }

    /// The object at `key`.
    ///
    /// # Errors
    /// Another value.
    pub(crate) fn object(&self, key: &str) -> Result<Option<Self>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        if !value.is_object() {
            return Err(
                self.fault(format!("has {}{key} = {value}, which is no object", self.within))
            );
        }
        let within = format!("{}{key}.", self.within);
        Ok(Some(Self { within, json: value.clone(), read: Arc::default(), ..self.clone() }))
    }

    /// The object at `key`, without which the file is of no use.
    pub(crate) fn needed_object(&self, key: &str) -> Result<Self> {
        self.object(key)?.ok_or_else(|| self.fault(format!("has no {}{key}", self.within)))
    }

    /// An error that names the file.
    pub(crate) fn fault(&self, what: String) -> Error {
        Error::file(&self.path, what)
    }

    /// The value of `key`, which counts as read. A null is none.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.read.lock().insert(key.to_owned());
        self.json.get(key).filter(|value| !value.is_null())
    }

    /// Whether the file says `key = null`, which for some keys is not the default.
    pub(crate) fn is_null(&self, key: &str) -> bool {
        self.json.get(key).is_some_and(Value::is_null)
    }

    /// The value of `key` of the kind that `of` takes, which `kind` names.
    fn value<'a, T>(
        &'a self,
        key: &str,
        kind: &str,
        of: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || {
            let (within, value) = (&self.within, shortened(value));
            self.fault(format!("has {within}{key} = {value}, which is {kind}"))
        };
        of(value).map(Some).ok_or_else(wrong)
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>> {
        self.value(key, "no text", Value::as_str)
    }

    pub(crate) fn needed_text(&self, key: &str) -> Result<&str> {
        self.text(key)?.ok_or_else(|| self.fault(format!("has no {}{key}", self.within)))
    }

    /// A list of texts.
    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<String>>> {
        self.value(key, "no list of texts", |value| {
            value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
        })
    }

    pub(crate) fn size(&self, key: &str) -> Result<Option<usize>> {
        let size = self.value(key, "no whole number", Value::as_u64)?;
        let fits = |&size: &u64| size <= LARGEST_SIZE;
        let too_large = |size: u64| {
            self.fault(format!("has {}{key} = {size}, which no model has", self.within))
        };
        match size {
            Some(size) if !fits(&size) => Err(too_large(size)),
            size => Ok(size.map(|size| size as usize)),
        }
    }

    /// A size that the model cannot do without.
    pub(crate) fn needed(&self, key: &str) -> Result<usize> {
        match self.size(key)? {
            Some(0) => Err(self.fault(format!("has {}{key} = 0", self.within))),
            Some(size) => Ok(size),
            None => Err(self.fault(format!("has no {}{key}", self.within))),
        }
    }

    /// The number of layers.
    ///
    /// # Errors
    /// No number, or more layers than the files can have.
    pub(crate) fn layers(&self, key: &str) -> Result<usize> {
        let (layers, tensors) = (self.needed(key)?, self.tensors);
        if layers > tensors {
            let what = format!("has {key} = {layers}, and the files have {tensors} tensors in all");
            return Err(self.fault(what));
        }
        Ok(layers)
    }

    pub(crate) fn real(&self, key: &str) -> Result<Option<f64>> {
        self.value(key, "no number", Value::as_f64)
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.value(key, "neither true nor false", Value::as_bool)
    }

    /// A probability of dropout, 0 by default.
    pub(crate) fn dropout(&self, key: &str) -> Result<f32> {
        self.dropout_or(key, 0.0)
    }

    /// A probability of dropout.
    pub(crate) fn dropout_or(&self, key: &str, default: f64) -> Result<f32> {
        match self.real(key)?.unwrap_or(default) {
            p if (0.0..1.0).contains(&p) => Ok(p as f32),
            p => Err(self.fault(format!("has {key} = {p}, which is not from 0 to below 1"))),
        }
    }

    /// The number of heads of `width` features, which the heads divide.
    pub(crate) fn heads(&self, key: &str, width: usize) -> Result<usize> {
        let heads = self.needed(key)?;
        if !width.is_multiple_of(heads) {
            return Err(
                self.fault(format!("has {heads} heads, which do not divide {width} features"))
            );
        }
        Ok(heads)
    }

    pub(crate) fn activation(&self, key: &str, default: &str) -> Result<Activation> {
        match self.text(key)?.unwrap_or(default) {
            "gelu" => Ok(Activation::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::GeluTanh),
            "relu" => Ok(Activation::Relu),
            "silu" | "swish" => Ok(Activation::Silu),
            "tanh" => Ok(Activation::Tanh),
            other => {
                Err(self
                    .fault(format!("has {key} = {other:?}, an activation that is not supported")))
            }
        }
    }

    /// The number of classes of a classifier.
    ///
    /// # Errors
    /// Two numbers.
    pub(crate) fn classes(&self) -> Result<Option<usize>> {
        let names = self.value("id2label", "no object", Value::as_object)?.map(Map::len);
        match (self.size("num_labels")?, names) {
            (Some(count), Some(names)) if count != names => Err(self.fault(format!(
                "has num_labels = {count} and {names} names in id2label: correct one of them"
            ))),
            (count, names) => Ok(count.or(names)),
        }
    }
}

/// The first characters of a value.
fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text,
    }
}

/// Refuses the few lines that stand in the place of a file in a clone without Git LFS.
///
/// # Errors
/// Such a file.
pub(crate) fn refuse_lfs_pointer(path: &Path, start: &[u8]) -> Result<()> {
    if !start.starts_with(b"version https://git-lfs") {
        return Ok(());
    }
    let what = "is a pointer of Git LFS in the place of the file: run `git lfs pull` in the folder, or download the file";
    Err(Error::file(path, what))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::neutral;

    fn config(json: Value) -> Config {
        Config::new(Path::new("config.json"), json)
    }

    #[test]
    fn faults_name_the_file_and_the_key() {
        let faults = [
            config(json!({})).needed("hidden_size").map(drop),
            config(json!({"hidden_size": -1})).needed("hidden_size").map(drop),
            config(json!({"heads": 5})).heads("heads", 12).map(drop),
            config(json!({"hidden_size": 1_000_000_000_000_u64})).needed("hidden_size").map(drop),
            config(json!({"layers": 9})).with_tensors(8).layers("layers").map(drop),
            config(json!({"num_labels": 3, "id2label": {"0": "a"}})).classes().map(drop),
            config(json!({"list": ["a", 1]})).texts("list").map(drop),
            config(json!({"act": "mish"})).activation("act", "gelu").map(drop),
        ];
        let words = [
            "no hidden_size",
            "-1",
            "5 heads",
            "which no model has",
            "8 tensors",
            "1 names in id2label",
            "no list of texts",
            "mish",
        ];
        for (fault, word) in faults.into_iter().zip(words) {
            let text = fault.unwrap_err().to_string();
            assert!(text.starts_with("config.json: ") && text.contains(word), "{text}");
        }
    }

    #[test]
    fn a_key_is_read_or_neutral_or_refused_by_name() -> Result<()> {
        let json = json!({
            "hidden_size": 8, "use_cache": true, "is_decoder": false, "foo": null, "auto_map": {}, "pruned_heads": {},
        });
        let of = |key: &str, value: Value| {
            let mut json = json.clone();
            json[key] = value;
            let config = config(json);
            config.needed("hidden_size")?;
            config.finish(&[neutral::CONFIG, neutral::ENCODER])
        };
        of("chunk_size_feed_forward", json!(4))?;
        of("partial_rotary_factor", json!(1))?;
        let refused = |key: &str, value: Value| of(key, value).unwrap_err().to_string();
        let error = refused("foo", json!(3));
        assert!(
            error.starts_with("config.json: has the key `foo` = 3, and it is not supported"),
            "{error}"
        );
        let error = refused("is_decoder", json!(true));
        assert!(
            error.contains("`is_decoder` = true (an encoder that computes as a decoder)"),
            "{error}"
        );
        let long = refused("auto_map", json!("x".repeat(100)));
        assert!(long.contains("xxx.. (code of the model's own"), "{long}");
        // An object within, and what the user accepts.
        let config = config(json!({"rope": {"a": 1, "b": 2}, "c": 3}));
        let accepting = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            config.clone().accepting(&Arc::from(names))
        };
        let own = accepting(&["a"]).object("rope")?.expect("an object");
        let error = own.finish(&[]).unwrap_err().to_string();
        assert!(
            error.contains("the key `rope.b` = 2") && error.contains("Pretrained::accept"),
            "{error}"
        );
        accepting(&["a", "rope.b"]).object("rope")?.expect("an object").finish(&[])?;
        accepting(&["c"]).finish(&[])
    }

    #[test]
    fn a_pointer_of_git_lfs_is_named() {
        let bytes = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n";
        let error = Config::of_bytes(Path::new("config.json"), bytes).unwrap_err().to_string();
        assert!(error.contains("git lfs pull"), "{error}");
        let error = Config::of_bytes(Path::new("config.json"), b"[]").unwrap_err().to_string();
        assert!(error.contains("is no JSON object"), "{error}");
    }
}
