//! What the metadata of a GGUF file say of the model, as Hugging Face's `config.json`.

use std::sync::Arc;

use serde_json::{Map, Value as Json, json};

use super::gguf::GgufFile;
use crate::config::Config;
use crate::error::Result;
use crate::neutral;

/// The file's metadata as Hugging Face's `config.json`.
///
/// # Errors
/// An architecture that is none of ours, metadata that lack a size or contradict the tensors, and, with the keys that the
/// user has `accepted`, other metadata that are not understood.
pub(crate) fn gguf_config(file: &GgufFile, accepted: Option<&Arc<[String]>>) -> Result<Json> {
    let metadata = file.metadata().clone();
    let metadata = accepted.map_or(metadata.clone(), |accepted| metadata.accepting(accepted));
    let general = metadata.needed_object("general")?;
    let architecture = general.needed_text("architecture")?;
    let (model_type, class) = match architecture {
        "llama" => ("llama", "LlamaForCausalLM"),
        "qwen2" => ("qwen2", "Qwen2ForCausalLM"),
        "qwen3" => ("qwen3", "Qwen3ForCausalLM"),
        other => {
            let what = format!(
                "has the architecture {other:?}: llama, qwen2 and qwen3 are read from GGUF files"
            );
            return Err(metadata.fault(what));
        }
    };
    if file.names().any(|name| name == "rope_freqs.weight") {
        let what =
            "has scaled rotary positions (rope_freqs.weight): take the model's safetensors folder";
        return Err(metadata.fault(what.to_owned()));
    }
    let own = metadata.needed_object(architecture)?;
    let (width, heads) = (own.needed("embedding_length")?, own.needed("attention.head_count")?);
    let dims = file.dims("model.embed_tokens.weight");
    let Some(&vocabulary) = dims.first() else {
        return Err(metadata.fault("lacks the tensor token_embd.weight".to_owned()));
    };
    if let Some(said) = own.size("vocab_size")?.filter(|said| *said != vocabulary) {
        let what = format!(
            "has {architecture}.vocab_size = {said}, and {vocabulary} rows in token_embd.weight"
        );
        return Err(metadata.fault(what));
    }
    let head_dim = own.size("attention.key_length")?.unwrap_or(width / heads);
    for key in ["attention.value_length", "rope.dimension_count"] {
        if let Some(other) = own.size(key)?.filter(|other| *other != head_dim) {
            let what = format!(
                "has {architecture}.{key} = {other} for heads of {head_dim}, which is not supported"
            );
            return Err(metadata.fault(what));
        }
    }
    let mut config = Map::new();
    let mut set = |key: &str, value: Json| drop(config.insert(key.to_owned(), value));
    set("model_type", json!(model_type));
    set("architectures", json!([class]));
    set("hidden_size", json!(width));
    set("intermediate_size", json!(own.needed("feed_forward_length")?));
    set("num_hidden_layers", json!(own.needed("block_count")?));
    set("num_attention_heads", json!(heads));
    set("num_key_value_heads", json!(own.size("attention.head_count_kv")?.unwrap_or(heads)));
    set("head_dim", json!(head_dim));
    set("hidden_act", json!("silu"));
    set("max_position_embeddings", json!(own.needed("context_length")?));
    set("rms_norm_eps", json!(own.real("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5)));
    set("rope_theta", json!(own.real("rope.freq_base")?.unwrap_or(10_000.0)));
    if let Some(scaling) = scaling(&own)? {
        set("rope_scaling", scaling);
    }
    set("vocab_size", json!(vocabulary));
    set("tie_word_embeddings", json!(!file.has("lm_head.weight")));
    set("attention_bias", json!(file.has("model.layers.0.self_attn.q_proj.bias")));
    if let Some(tokenizer) = metadata.object("tokenizer")? {
        for (key, name) in [("bos_token_id", "bos"), ("pad_token_id", "padding")] {
            if let Some(id) = tokenizer.size(&format!("ggml.{name}_token_id"))? {
                set(key, json!(id));
            }
        }
        // A conversation's turn and message end the text, too.
        let mut ends = Vec::new();
        for name in ["eos", "eot", "eom"] {
            ends.extend(tokenizer.size(&format!("ggml.{name}_token_id"))?);
        }
        ends.dedup();
        match &ends[..] {
            [] => {}
            [end] => set("eos_token_id", json!(end)),
            ends => set("eos_token_id", json!(ends)),
        }
    }
    if accepted.is_some() {
        general.finish(&[neutral::GGUF_GENERAL])?;
        own.finish(&[neutral::GGUF_MODEL])?;
        metadata.finish(&[neutral::GGUF])?;
    }
    Ok(Json::Object(config))
}

/// The settings of `general.sampling`, as `generation_config.json`. What has no name there keeps its own, and is refused
/// when a text is generated.
///
/// # Errors
/// Metadata of another kind.
pub(crate) fn gguf_generation(file: &GgufFile) -> Result<Option<Json>> {
    let Some(general) = file.metadata().object("general")? else { return Ok(None) };
    let mut settings = Map::new();
    for (key, value) in general.json().as_object().into_iter().flatten() {
        if let Some(name) = key.strip_prefix("sampling.") {
            let name = match name {
                "temp" => "temperature",
                "penalty_repeat" => "repetition_penalty",
                name => name,
            };
            settings.insert(name.to_owned(), value.clone());
        }
    }
    if settings.is_empty() {
        return Ok(None);
    }
    settings.insert("do_sample".to_owned(), json!(true));
    Ok(Some(Json::Object(settings)))
}

/// The scaling of the rotary positions, as `rope_scaling`. As in llama.cpp, a factor without a type is linear, and
/// `rope.scale_linear` is an older name of the factor.
fn scaling(own: &Config) -> Result<Option<Json>> {
    let kind = own.text("rope.scaling.type")?;
    let factor = match (own.real("rope.scaling.factor")?, own.real("rope.scale_linear")?) {
        (Some(factor), Some(other)) if factor != other => {
            let what =
                format!("has rope.scaling.factor = {factor} and rope.scale_linear = {other}");
            return Err(own.fault(what));
        }
        // llama.cpp writes 0 for none.
        (factor, other) => factor.or(other).filter(|factor| *factor != 0.0),
    };
    let kind = match (kind, factor) {
        (None, None | Some(1.0)) | (Some("none"), _) => return Ok(None),
        (Some("linear") | None, factor) => {
            return Ok(Some(json!({ "rope_type": "linear", "factor": factor.unwrap_or(1.0) })));
        }
        (Some("yarn"), _) => "yarn",
        (Some(other), _) => {
            let what =
                format!("has rope.scaling.type = {other:?}: none, linear and yarn are supported");
            return Err(own.fault(what));
        }
    };
    let Some(factor) = factor else {
        return Err(
            own.fault(format!("has rope.scaling.type = {kind:?} without rope.scaling.factor"))
        );
    };
    let mut scaling = json!({ "rope_type": kind, "factor": factor });
    let length = own.needed("context_length")?;
    let original = own.size("rope.scaling.original_context_length")?.filter(|length| *length > 0);
    scaling["original_max_position_embeddings"] = json!(original.unwrap_or(length));
    for (key, ours) in [("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")] {
        if let Some(turns) = own.real(&format!("rope.scaling.{key}"))? {
            scaling[ours] = json!(turns);
        }
    }
    if let Some(more) = own.real("rope.scaling.attn_factor")?.filter(|more| *more != 1.0) {
        let usual = candelabrum_nn::ops::RotaryScaling::yarn_temperature(factor);
        scaling["attention_factor"] = json!(more * usual);
    }
    Ok(Some(scaling))
}
