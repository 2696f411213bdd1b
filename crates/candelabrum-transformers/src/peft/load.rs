//! Adapters from a folder of `peft`: its tensors decide which layers have adapters and which were trained as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use candelabrum_nn::{Buffer, LoraConfig, LoraLayers, Params};
use candle_core::{Device, Tensor};

use super::python::{from_python, tied, to_python};
use super::{BATCHES, CONFIG, PREFIX, WEIGHTS, config, is_named, layer_of};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::weights::SafetensorsFiles;

/// Attaches the adapters of `folder`, which `peft` or [`save_adapter`](crate::save_adapter) wrote, to the model of `params`,
/// and freezes all other parameters. Nothing changes if the folder cannot be used.
///
/// # Errors
/// A folder without an adapter, an adapter of a kind that is not supported, or one that does not fit the model: the error
/// names the key, the tensor or the layer.
pub fn load_adapter(params: &Params, folder: impl AsRef<Path>) -> Result<LoraLayers> {
    let folder = folder.as_ref();
    let Some(json) = Config::read_if_there(&folder.join(CONFIG))? else {
        let what = format!("has no {CONFIG}: name the folder of an adapter");
        return Err(Error::file(folder, what));
    };
    let (config, modules) = config::read(&json)?;
    let path = folder.join(WEIGHTS);
    let mut file = AdapterFile { params, path: &path, tensors: read(&path, params)? };
    file.check_tie()?;
    let targets = file.targets(&config)?;
    let trained = file.trained(&modules)?;
    let config = LoraConfig {
        targets: targets.into_iter().collect(),
        trained: trained.into_iter().collect(),
        ..config
    };
    let layers = LoraLayers::attach(params, &config)?;
    for (name, tensor) in file.tensors {
        match buffer(params, &name) {
            Some(buffer) => buffer.set(&tensor.to_dtype(buffer.value().dtype())?)?,
            None => params.get(&name)?.set(&tensor)?,
        }
    }
    Ok(layers)
}

/// The tensors of an adapter by the names of the model.
struct AdapterFile<'a> {
    params: &'a Params,
    path: &'a Path,
    tensors: BTreeMap<String, Tensor>,
}

impl AdapterFile<'_> {
    fn fault(&self, what: String) -> Error {
        Error::file(self.path, what)
    }

    fn check_dims(&self, name: &str, expected: &[usize]) -> Result<()> {
        let got = self.tensors[name].dims();
        if got == expected {
            return Ok(());
        }
        Err(self.fault(format!("has `{name}` of {got:?}, the model takes {expected:?}")))
    }

    /// The value that the model has.
    fn value_of(&self, name: &str) -> Result<Tensor> {
        if let Some(buffer) = buffer(self.params, name) {
            return Ok(buffer.value());
        }
        let own = self.params.get(name).map_err(|_| {
            let is_quantized = self.params.constants().iter().any(|(other, _)| other == name);
            self.fault(match is_quantized {
                true => format!(
                    "has `{name}`, which the model keeps quantised: open the model dequantised"
                ),
                false => format!("has `{name}`, which the model does not have"),
            })
        })?;
        Ok(own.var().as_detached_tensor())
    }

    /// Whether the model has this value already.
    fn is_unchanged(&self, name: &str, value: &Tensor) -> Result<bool> {
        let own = self.value_of(name)?;
        Ok(own.dims() == value.dims() && same(&own, &value.to_dtype(own.dtype())?)?)
    }

    /// Takes an output matrix out that is the table of the tokens, as it must be in this model.
    ///
    /// # Errors
    /// Another output matrix: in `peft` a table that is trained as a whole gets a copy, and the output matrix stays.
    fn check_tie(&mut self) -> Result<()> {
        let Some((table, head)) = tied(self.params) else { return Ok(()) };
        let output = self.tensors.remove(head);
        let is_same = match (self.tensors.get(table), &output) {
            (Some(table), Some(output)) => table.dims() == output.dims() && same(table, output)?,
            (Some(value), None) | (None, Some(value)) => self.is_unchanged(table, value)?,
            (None, None) => true,
        };
        if is_same {
            return Ok(());
        }
        Err(self.fault(format!(
            "has other numbers for `{table}` than for `{head}`, and the model has one matrix for both \
             (tie_word_embeddings). Train it in Python with `ensure_weight_tying=True`, or save the model there with \
             `tie_word_embeddings=False` and two matrices, and open that one"
        )))
    }

    /// The layers with adapters.
    fn targets(&self, config: &LoraConfig) -> Result<BTreeSet<String>> {
        let weights = self.params.weights();
        let mut targets = BTreeSet::new();
        for name in self.tensors.keys() {
            let Some((layer, part)) = name.split_once(".lora_") else { continue };
            let Some(weight) = weights.iter().find(|weight| weight.layer() == layer) else {
                return Err(self.fault(format!(
                    "has an adapter for `{layer}`, which is no linear layer of the model"
                )));
            };
            let (outputs, inputs) = weight.dims();
            match part {
                "A.weight" => self.check_dims(name, &[config.rank, inputs])?,
                "B.weight" => self.check_dims(name, &[outputs, config.rank])?,
                "magnitude_vector" if config.dora => self.check_dims(name, &[outputs])?,
                _ => return Err(self.fault(format!("has `{name}`, which is not supported"))),
            }
            targets.insert(layer.to_owned());
        }
        if targets.is_empty() {
            return Err(self.fault("has no adapters".to_owned()));
        }
        let magnitude = config.dora.then_some("magnitude_vector");
        for layer in &targets {
            for part in ["A.weight", "B.weight"].into_iter().chain(magnitude) {
                self.needs(&format!("{layer}.lora_{part}"))?;
            }
        }
        Ok(targets)
    }

    fn needs(&self, name: &str) -> Result<()> {
        if self.tensors.contains_key(name) {
            return Ok(());
        }
        Err(self.fault(format!("lacks `{name}`")))
    }

    /// The layers that were trained as a whole: those of `modules` that the file has. Tensors of other layers must be as the
    /// model has them, and running statistics may be others.
    fn trained(&self, modules: &[String]) -> Result<BTreeSet<String>> {
        let is_of = |layer: &str, modules: &[String]| {
            is_named(&to_python(layer), modules) || is_named(layer, modules)
        };
        let mut layers = BTreeSet::new();
        for (name, tensor) in self.tensors.iter().filter(|(name, _)| !name.contains(".lora_")) {
            self.check_dims(name, self.value_of(name)?.dims())?;
            if buffer(self.params, name).is_some() {
                continue;
            }
            if is_of(layer_of(name), modules) {
                layers.insert(layer_of(name).to_owned());
            } else if !self.is_unchanged(name, tensor)? {
                return Err(self.fault(format!(
                    "has new numbers for `{name}`, which modules_to_save of {CONFIG} does not name: add its module there"
                )));
            }
        }
        let params = self.params.list();
        for param in params.iter().filter(|param| layers.contains(layer_of(param.name()))) {
            self.needs(param.name())?;
        }
        for module in modules {
            let is_of = |layer: &str| is_of(layer, std::slice::from_ref(module));
            let lost = params.iter().find(|param| is_of(layer_of(param.name())));
            if let Some(lost) = lost.filter(|_| !layers.iter().any(|layer| is_of(layer))) {
                return Err(self.fault(format!(
                    "lacks `{}`, which modules_to_save of {CONFIG} names by {module:?}",
                    lost.name()
                )));
            }
        }
        Ok(layers)
    }
}

fn buffer(params: &Params, name: &str) -> Option<Buffer> {
    params.buffers().into_iter().find(|buffer| buffer.name() == name)
}

/// Whether two tensors of one shape have the same numbers.
fn same(a: &Tensor, b: &Tensor) -> Result<bool> {
    let b = b.to_device(a.device())?;
    Ok(a.ne(&b)?.flatten_all()?.max(0)?.to_scalar::<u8>()? == 0)
}

/// The tensors by a model's names.
fn read(path: &Path, params: &Params) -> Result<BTreeMap<String, Tensor>> {
    if !path.exists() {
        let what = "is not there: save the adapter in Python with `save_pretrained(.., safe_serialization=True)`";
        return Err(Error::file(path, what));
    }
    let files = SafetensorsFiles::of_file(path)?;
    let mut tensors = BTreeMap::new();
    for name in files.names().filter(|name| !name.ends_with(BATCHES)) {
        let Some(theirs) = name.strip_prefix(PREFIX) else {
            let what = format!("has `{name}`, which does not begin with {PREFIX}");
            return Err(Error::file(path, what));
        };
        let value = files.read(name, params.dtype(), &Device::Cpu)?.as_detached_tensor();
        let value = value.to_device(params.device())?;
        if tensors.insert(from_python(theirs), value).is_some() {
            return Err(Error::file(path, format!("has `{name}` under its new and its old name")));
        }
    }
    Ok(tensors)
}
