//! LoRA adapters as folders of Python's `peft`: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use candelabrum_nn::{LoraConfig, LoraLayers, Params};
use candle_core::{Device, Tensor};
use serde_json::{Value, json};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::weights::{Named, SafetensorsFiles, save_named};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// What `peft` puts before a model's own names.
const PREFIX: &str = "base_model.model.";

/// Writes the adapters, and the layers that were trained as a whole, into `folder`, which Python's `peft` opens. `base` is
/// the name or folder of the model to which the adapters belong. One rank calls this function.
///
/// # Errors
/// A folder or file that cannot be written.
pub fn save_adapter(
    layers: &LoraLayers,
    params: &Params,
    base: impl AsRef<Path>,
    folder: impl AsRef<Path>,
) -> Result<()> {
    let (base, folder) = (base.as_ref().to_string_lossy(), folder.as_ref());
    std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    let LoraConfig { rank, alpha, dropout, trained, dora, .. } = layers.config();
    let is_gpt2 = params.list().iter().any(|param| param.name().ends_with(".attn.c_attn.weight"));
    let config = json!({
        "peft_type": "LORA",
        "task_type": Value::Null,
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": dropout,
        "use_dora": dora,
        "use_rslora": false,
        "bias": "none",
        "fan_in_fan_out": is_gpt2,
        "inference_mode": true,
        "target_modules": target_modules(layers, params),
        "modules_to_save": if trained.is_empty() { Value::Null } else { json!(trained) },
    });
    let mut named = Named::new();
    for param in layers.trained() {
        named.insert(format!("{PREFIX}{}", param.name()), param.var().as_detached_tensor());
    }
    save_named(named, &folder.join(WEIGHTS))?;
    let path = folder.join(CONFIG);
    std::fs::write(&path, format!("{config:#}\n")).map_err(Error::io("write", &path))
}

/// The names of the layers with adapters, by their last parts if all layers with these have adapters.
fn target_modules(layers: &LoraLayers, params: &Params) -> Vec<String> {
    let last = |layer: &str| layer.rsplit('.').next().unwrap_or(layer).to_owned();
    let adapted: BTreeSet<String> = layers.names().into_iter().map(str::to_owned).collect();
    let parts: BTreeSet<String> = adapted.iter().map(|layer| last(layer)).collect();
    let all = params.weights();
    let has_all = all
        .iter()
        .all(|weight| adapted.contains(weight.layer()) || !parts.contains(&last(weight.layer())));
    if has_all { parts } else { adapted }.into_iter().collect()
}

/// Attaches the adapters of `folder`, which `peft` or [`save_adapter`] wrote, to the model of `params`, and freezes all
/// other parameters. Nothing changes if the folder cannot be used.
///
/// # Errors
/// A folder without an adapter, an adapter of a kind that is not supported, or one that does not fit the model: the error
/// names the layer.
pub fn load_adapter(params: &Params, folder: impl AsRef<Path>) -> Result<LoraLayers> {
    let folder = folder.as_ref();
    let path = folder.join(CONFIG);
    let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
    let json = serde_json::from_str(&text)
        .map_err(|error| Error::file(&path, format!("is no JSON: {error}")))?;
    let json = Config::new(&path, json);
    let (tensors, config) = (read(&folder.join(WEIGHTS), params)?, config(&json)?);
    let path = folder.join(WEIGHTS);
    let mut targets = BTreeSet::new();
    let weights: BTreeMap<_, _> =
        params.weights().into_iter().map(|weight| (weight.layer().to_owned(), weight)).collect();
    for (name, tensor) in &tensors {
        let fits = |expected: &[usize]| {
            let got = tensor.dims();
            (got == expected).then_some(()).ok_or_else(|| {
                Error::file(&path, format!("has `{name}` of {got:?}, the model takes {expected:?}"))
            })
        };
        let Some((layer, part)) = name.split_once(".lora_") else {
            let param = params.get(name).map_err(|_| {
                Error::file(&path, format!("has `{name}`, which the model does not have"))
            })?;
            fits(param.var().dims())?;
            continue;
        };
        let Some(weight) = weights.get(layer) else {
            let what =
                format!("has an adapter for `{layer}`, which is no linear layer of the model");
            return Err(Error::file(&path, what));
        };
        let (outputs, inputs) = weight.dims();
        match part {
            "A.weight" => fits(&[config.rank, inputs])?,
            "B.weight" => fits(&[outputs, config.rank])?,
            "magnitude_vector" if config.dora => fits(&[outputs])?,
            _ => return Err(Error::file(&path, format!("has `{name}`, which is not supported"))),
        }
        targets.insert(layer.to_owned());
    }
    for layer in &targets {
        let magnitude = config.dora.then_some("magnitude_vector");
        for part in ["A.weight", "B.weight"].into_iter().chain(magnitude) {
            let name = format!("{layer}.lora_{part}");
            if !tensors.contains_key(&name) {
                return Err(Error::file(&path, format!("lacks `{name}`")));
            }
        }
    }
    if targets.is_empty() {
        return Err(Error::file(&path, "has no adapters"));
    }
    let config = LoraConfig { targets: targets.into_iter().collect(), ..config };
    let layers = LoraLayers::attach(params, &config)?;
    for (name, tensor) in tensors {
        params.get(&name)?.set(&tensor)?;
    }
    Ok(layers)
}

/// The configuration, without the layers.
fn config(json: &Config) -> Result<LoraConfig> {
    if !matches!(json.text("peft_type")?, None | Some("LORA")) {
        let kind = json.text("peft_type")?.unwrap_or_default();
        return Err(json.fault(format!("has an adapter of the kind {kind}: LORA is supported")));
    }
    if !matches!(json.text("bias")?, None | Some("none")) {
        return Err(json.fault("trains biases, which is not supported".to_owned()));
    }
    for key in ["rank_pattern", "alpha_pattern", "layer_replication", "target_parameters"] {
        let is_empty = |value: &Value| match value {
            Value::Object(map) => map.is_empty(),
            Value::Array(list) => list.is_empty(),
            _ => false,
        };
        if json.get(key).is_some_and(|value| !is_empty(value)) {
            return Err(json.fault(format!("has {key}, which is not supported")));
        }
    }
    let rank = json.needed("r")?;
    let mut alpha = json.real("lora_alpha")?.unwrap_or(rank as f64);
    if json.flag("use_rslora")?.unwrap_or(false) {
        alpha *= (rank as f64).sqrt();
    }
    let trained = json.get("modules_to_save").and_then(Value::as_array);
    let trained = trained.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    Ok(LoraConfig {
        rank,
        alpha,
        dropout: json.dropout("lora_dropout")?,
        targets: Vec::new(),
        trained: trained.collect(),
        dora: json.flag("use_dora")?.unwrap_or(false),
    })
}

/// The tensors by a model's names.
fn read(path: &Path, params: &Params) -> Result<BTreeMap<String, Tensor>> {
    let files = SafetensorsFiles::of_file(path)?;
    let mut tensors = BTreeMap::new();
    for name in files.names() {
        let Some(ours) = name.strip_prefix(PREFIX) else {
            return Err(Error::file(
                path,
                format!("has `{name}`, which does not begin with {PREFIX}"),
            ));
        };
        let value = files.read(name, params.dtype(), &Device::Cpu)?.as_detached_tensor();
        tensors.insert(ours.to_owned(), value.to_device(params.device())?);
    }
    Ok(tensors)
}
