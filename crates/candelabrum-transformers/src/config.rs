//! The `config.json` of a folder: one reader with errors that name the file and the key.

use std::path::{Path, PathBuf};

use candelabrum_nn::Activation;
use candelabrum_nn::ops::{Rotary, RotaryScaling};
use serde_json::Value;

use crate::error::{Error, Result};

/// A `config.json`, or what a GGUF file says instead.
#[derive(Clone, Debug)]
pub struct Config {
    path: PathBuf,
    json: Value,
}

impl Config {
    pub(crate) fn new(path: &Path, json: Value) -> Self {
        Self { path: path.to_owned(), json }
    }

    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        if !path.exists() && folder.join("adapter_config.json").exists() {
            let what = "has adapters and no model: open their model, and then `load_adapter` (the example `generate` has `--adapters`)";
            return Err(Error::file(folder, what));
        }
        let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        let json = serde_json::from_str(&text)
            .map_err(|error| Error::file(&path, format!("is no JSON: {error}")))?;
        Ok(Self { path, json })
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

    /// An error that names the file.
    pub(crate) fn fault(&self, what: String) -> Error {
        Error::file(&self.path, what)
    }

    /// The value of `key`. A null is none.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.json.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>> {
        let wrong = |value: &Value| self.fault(format!("has {key} = {value}, which is no text"));
        self.get(key).map(|value| value.as_str().ok_or_else(|| wrong(value))).transpose()
    }

    pub(crate) fn size(&self, key: &str) -> Result<Option<usize>> {
        let wrong =
            |value: &Value| self.fault(format!("has {key} = {value}, which is no whole number"));
        let number = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
        self.get(key).map(|value| number(value).ok_or_else(|| wrong(value))).transpose()
    }

    /// A size that the model cannot do without.
    pub(crate) fn needed(&self, key: &str) -> Result<usize> {
        match self.size(key)? {
            Some(0) => Err(self.fault(format!("has {key} = 0"))),
            Some(size) => Ok(size),
            None => Err(self.fault(format!("has no {key}"))),
        }
    }

    pub(crate) fn real(&self, key: &str) -> Result<Option<f64>> {
        let wrong = |value: &Value| self.fault(format!("has {key} = {value}, which is no number"));
        self.get(key).map(|value| value.as_f64().ok_or_else(|| wrong(value))).transpose()
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>> {
        let wrong = |value: &Value| {
            self.fault(format!("has {key} = {value}, which is neither true nor false"))
        };
        self.get(key).map(|value| value.as_bool().ok_or_else(|| wrong(value))).transpose()
    }

    /// A probability of dropout.
    pub(crate) fn dropout(&self, key: &str) -> Result<f32> {
        match self.real(key)?.unwrap_or(0.0) {
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
    pub(crate) fn classes(&self) -> Result<Option<usize>> {
        if let Some(count) = self.size("num_labels")? {
            return Ok(Some(count));
        }
        Ok(self.get("id2label").and_then(Value::as_object).map(serde_json::Map::len))
    }

    /// Rotary positions and the factor of the scores that their scaling asks for, in the form of `transformers` 5
    /// (`rope_parameters`) or the older one (`rope_theta` and `rope_scaling`).
    pub(crate) fn rotary(&self) -> Result<(Rotary, f64)> {
        let parameters = self.get("rope_parameters").or_else(|| self.get("rope_scaling"));
        let own = parameters.map(|json| Self::new(&self.path, json.clone()));
        let own = own.unwrap_or_else(|| Self::new(&self.path, Value::Null));
        let base = match own.real("rope_theta")? {
            Some(base) => base,
            None => self.real("rope_theta")?.unwrap_or(10_000.0),
        };
        let kind = match own.text("rope_type")? {
            Some(kind) => kind,
            None => own.text("type")?.unwrap_or("default"),
        };
        let real = |key: &str| {
            own.real(key)?.ok_or_else(|| {
                self.fault(format!("has scaled rotary positions ({kind}) without {key}"))
            })
        };
        let original = || match own.real("original_max_position_embeddings")? {
            Some(original) => Ok(original),
            None => self.needed("max_position_embeddings").map(|original| original as f64),
        };
        let mut temperature = 1.0;
        let scaling = match kind {
            "default" => RotaryScaling::None,
            "linear" => RotaryScaling::Linear { factor: real("factor")? },
            "llama3" => RotaryScaling::Llama3 {
                factor: real("factor")?,
                low: real("low_freq_factor")?,
                high: real("high_freq_factor")?,
                original: original()?,
            },
            "yarn" => {
                if own.flag("truncate")? == Some(false) || own.get("mscale").is_some() {
                    let what = "has a variant of yarn (truncate, mscale) that is not supported";
                    return Err(self.fault(what.to_owned()));
                }
                let factor = real("factor")?;
                temperature = match own.real("attention_factor")? {
                    Some(temperature) => temperature,
                    None => RotaryScaling::yarn_temperature(factor),
                };
                RotaryScaling::Yarn {
                    factor,
                    fast: own.real("beta_fast")?.unwrap_or(32.0),
                    slow: own.real("beta_slow")?.unwrap_or(1.0),
                    original: original()?,
                }
            }
            other => {
                let what = format!(
                    "has rotary positions of the kind {other:?}: default, linear, llama3 and yarn are supported"
                );
                return Err(self.fault(what));
            }
        };
        Ok((Rotary { base, offset: 0, scaling }, temperature * temperature))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(json: Value) -> Config {
        Config::new(Path::new("config.json"), json)
    }

    #[test]
    fn both_forms_of_rotary_positions_say_the_same() -> Result<()> {
        let new =
            json!({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}});
        let old = json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}});
        assert_eq!(config(new).rotary()?, config(old).rotary()?);
        let plain = config(json!({"rope_scaling": null})).rotary()?;
        assert_eq!(plain, (Rotary::default(), 1.0));
        Ok(())
    }

    #[test]
    fn faults_name_the_file_and_the_key() {
        let faults = [
            config(json!({})).needed("hidden_size").map(drop),
            config(json!({"hidden_size": -1})).needed("hidden_size").map(drop),
            config(json!({"heads": 5})).heads("heads", 12).map(drop),
            config(json!({"rope_scaling": {"type": "dynamic"}})).rotary().map(drop),
            config(json!({"rope_scaling": {"type": "linear"}})).rotary().map(drop),
            config(json!({"act": "mish"})).activation("act", "gelu").map(drop),
        ];
        let words = ["no hidden_size", "-1", "5 heads", "dynamic", "without factor", "mish"];
        for (fault, word) in faults.into_iter().zip(words) {
            let text = fault.unwrap_err().to_string();
            assert!(text.starts_with("config.json: ") && text.contains(word), "{text}");
        }
    }
}
