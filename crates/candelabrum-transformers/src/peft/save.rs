//! Adapters, and what was trained beside them, as a folder that `peft` opens.

use std::collections::BTreeSet;
use std::path::Path;

use candelabrum_nn::{LoraConfig, LoraLayers, Param, Params};
use candle_core::{Device, Tensor};
use serde_json::{Value, json};

use super::python::{TaskType, tied, to_python};
use super::{BATCHES, CONFIG, PREFIX, WEIGHTS, is_named, layer_of};
use crate::error::{Error, Result};
use crate::new_files::NewFiles;
use crate::weights::{NamedTensors, is_of_adapter, save_named};

/// What `peft` trains as a whole in every classifier of texts.
const HEADS: [&str; 2] = ["classifier", "score"];

/// Writes the adapters, and all else that is trained, into `folder`, which Python's `peft` opens: the layers that are
/// trained as a whole, and the running statistics of batch normalisations. `base` is the name or folder of the model to
/// which the adapters belong. One rank calls this function.
///
/// # Errors
/// A folder or file that cannot be written. A parameter that is trained in a layer with an adapter.
pub fn save_adapter(
    layers: &LoraLayers,
    params: &Params,
    base: impl AsRef<Path>,
    folder: impl AsRef<Path>,
) -> Result<()> {
    let mut folder = NewFiles::new(folder.as_ref())?;
    let adapted: BTreeSet<String> = layers.names().into_iter().map(to_python).collect();
    let task = TaskType::from_params(params);
    // peft adds a copy of the head to each classifier, unless the head has adapters.
    let has_head =
        task == Some(TaskType::Texts) && !adapted.iter().any(|layer| is_named(layer, &HEADS));
    let mut modules = whole_modules(layers, params)?;
    if has_head {
        modules.extend(HEADS.map(str::to_owned));
    }
    // peft gives each module a copy, and not a part of a copy another one.
    let wrapped: Vec<String> = modules.iter().cloned().collect();
    modules.retain(|module| !is_named(layer_of(module), &wrapped));
    let mut named = NamedTensors::new();
    let mut put = |name: &str, value: Tensor| named.insert(format!("{PREFIX}{name}"), value);
    for param in params.list() {
        let name = to_python(param.name());
        if is_of_adapter(&name) || is_named(layer_of(&name), &wrapped) {
            // Other ranks may keep a part of the values.
            param.gather()?;
            put(&name, param.var().as_detached_tensor());
        }
    }
    for buffer in params.buffers() {
        let name = to_python(buffer.name());
        if name.ends_with("running_mean") && is_named(layer_of(&name), &wrapped) {
            let batches = Tensor::zeros((), candle_core::DType::I64, &Device::Cpu)?;
            put(&format!("{}.{BATCHES}", layer_of(&name)), batches);
        }
        put(&name, buffer.value());
    }
    let tie = tied(params).filter(|(table, _)| is_named(layer_of(table), &wrapped));
    if let Some((table, head)) = tie {
        // In peft the table gets a copy of its own, and the output matrix is another module.
        put(head, params.get(table)?.var().as_detached_tensor());
        modules.insert(layer_of(head).to_owned());
    }
    folder.write(WEIGHTS, |path| save_named(named, path))?;

    let LoraConfig { rank, alpha, dropout, dora, .. } = layers.config();
    let is_gpt2 = params.list().iter().any(|param| param.name().ends_with(".attn.c_attn.weight"));
    let config = json!({
        "peft_type": "LORA",
        "task_type": task.and_then(TaskType::name).filter(|_| has_head || task != Some(TaskType::Texts)),
        "auto_mapping": auto_mapping(task, has_head, params),
        "base_model_name_or_path": base.as_ref().to_string_lossy(),
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": dropout,
        "use_dora": dora,
        "use_rslora": false,
        "bias": "none",
        "fan_in_fan_out": is_gpt2,
        "inference_mode": true,
        "target_modules": target_modules(adapted, task, params),
        "modules_to_save": if modules.is_empty() { Value::Null } else { json!(modules) },
        "ensure_weight_tying": tie.is_some(),
    });
    folder.finish(CONFIG, &format!("{config:#}\n"))
}

/// The modules that are trained as a whole.
///
/// # Errors
/// A parameter that is trained in a layer with an adapter or outside of layers, which `peft` cannot have.
fn whole_modules(layers: &LoraLayers, params: &Params) -> Result<BTreeSet<String>> {
    let adapted = layers.names();
    // Those of the adapters' making, and those that were unfrozen since.
    let trained: Vec<Param> = layers.trained().iter().cloned().chain(params.trainable()).collect();
    let whole = trained.iter().map(Param::name).filter(|name| !is_of_adapter(name));
    whole
        .map(|name| match layer_of(name) {
            layer if layer.is_empty() || adapted.contains(&layer) => Err(Error::argument(format!(
                "`{name}` is trained, and is in no layer or in one with an adapter, which a folder of peft cannot have: \
                 `merge` the adapters, and save the whole model"
            ))),
            layer => Ok(to_python(layer)),
        })
        .collect()
}

/// The class by which `transformers` opens the model, where a task does not say it.
fn auto_mapping(task: Option<TaskType>, has_head: bool, params: &Params) -> Value {
    let (class, family) = match task {
        Some(TaskType::Images) => ("ViTForImageClassification", "vit"),
        Some(TaskType::Texts) if !has_head => {
            let has = |name: &str| params.list().iter().any(|param| param.name().starts_with(name));
            if has("roberta.") {
                ("RobertaForSequenceClassification", "roberta")
            } else if has("distilbert.") {
                ("DistilBertForSequenceClassification", "distilbert")
            } else {
                ("BertForSequenceClassification", "bert")
            }
        }
        _ => return Value::Null,
    };
    let library = format!("transformers.models.{family}.modeling_{family}");
    json!({"base_model_class": class, "parent_library": library})
}

/// The names of the layers with adapters, by their last parts if all layers with these have adapters.
fn target_modules(
    adapted: BTreeSet<String>,
    task: Option<TaskType>,
    params: &Params,
) -> BTreeSet<String> {
    let last = |layer: &str| layer.rsplit('.').next().unwrap_or(layer).to_owned();
    let parts: BTreeSet<String> = adapted.iter().map(|layer| last(layer)).collect();
    let all = params.weights();
    let mut all = all.iter().map(|weight| to_python(weight.layer()));
    let has_all = all.all(|layer| adapted.contains(&layer) || !parts.contains(&last(&layer)));
    // An encoder of Python has a pooler besides, whose layer has the last part of others.
    if has_all && task != Some(TaskType::Features) { parts } else { adapted }
}
