//! What `adapter_config.json` says: each key of `peft` is read, neutral, or refused by name.

use candelabrum_nn::LoraConfig;
use serde_json::Value;

use crate::config::Config;
use crate::error::Result;
use crate::neutral::ADAPTER;

/// The initial values of adapters that leave the weights of their base model as they are.
const PLAIN: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// The configuration, without layers, and the modules that were trained as a whole.
///
/// # Errors
/// An adapter of a kind that is not supported: the key.
pub(super) fn read(json: &Config) -> Result<(LoraConfig, Vec<String>)> {
    if let Some(kind) = json.text("peft_type")?.filter(|kind| *kind != "LORA") {
        return Err(json.fault(format!("has peft_type = {kind:?}: LORA is supported")));
    }
    match json.get("init_lora_weights") {
        None | Some(Value::Bool(_)) => {}
        Some(Value::String(kind)) if PLAIN.contains(&&*kind.to_lowercase()) => {}
        Some(kind) => {
            return Err(json.fault(format!(
                "has init_lora_weights = {kind}: the adapter may belong to other base weights, which peft computes when \
                 the adapter is made or loaded. Save the adapter in Python with `path_initial_model_for_weight_conversion`, \
                 or the whole model after `merge_and_unload`"
            )));
        }
    }
    // The defaults are those of peft.
    let rank = json.size("r")?.unwrap_or(8);
    let mut alpha = json.real("lora_alpha")?.unwrap_or(8.0);
    if json.flag("use_rslora")?.unwrap_or(false) {
        alpha *= (rank as f64).sqrt();
    }
    let config = LoraConfig {
        rank,
        alpha,
        dropout: json.dropout("lora_dropout")?,
        targets: Vec::new(),
        trained: Vec::new(),
        dora: json.flag("use_dora")?.unwrap_or(false),
    };
    let modules = json.texts("modules_to_save")?.unwrap_or_default();
    json.finish(&[ADAPTER])?;
    Ok((config, modules))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn of(key: &str, value: &Value) -> Result<(LoraConfig, Vec<String>)> {
        let json = json!({"peft_type": "LORA", key: value});
        read(&Config::new(Path::new("adapter_config.json"), json))
    }

    #[test]
    fn an_adapter_that_is_more_than_low_rank_matrices_is_refused_by_its_key() {
        for (key, value) in [
            ("peft_type", json!("IA3")),
            ("init_lora_weights", json!("pissa")),
            ("init_lora_weights", json!("pissa_niter_4")),
            ("init_lora_weights", json!("OLoRA")),
            ("init_lora_weights", json!("corda")),
            ("init_lora_weights", json!("loftq")),
            ("init_lora_weights", json!("lora_ga")),
            ("init_lora_weights", json!("mica")),
            ("alora_invocation_tokens", json!([3])),
            ("arrow_config", json!({"top_k": 3})),
            ("kasa_config", json!({})),
            ("monteclora_config", json!({})),
            ("velora_config", json!({})),
            ("use_bdlora", json!({"nblocks": 2})),
            ("use_qalora", json!(true)),
            ("bias", json!("lora_only")),
            ("lora_bias", json!(true)),
            ("rank_pattern", json!({"q_proj": 2})),
            ("alpha_pattern", json!({"q_proj": 2})),
            ("layer_replication", json!([[0, 2]])),
            ("target_parameters", json!(["experts"])),
            ("trainable_token_indices", json!([1])),
            ("megatron_config", json!({})),
            ("a_key_of_next_year", json!(1)),
            ("modules_to_save", json!("classifier")),
            ("r", json!("8")),
        ] {
            let error = of(key, &value).unwrap_err().to_string();
            assert!(error.starts_with("adapter_config.json: ") && error.contains(key), "{error}");
        }
    }

    #[test]
    fn what_changes_nothing_is_accepted() -> Result<()> {
        for (key, value) in [
            ("init_lora_weights", json!(false)),
            ("init_lora_weights", json!("Gaussian")),
            ("init_lora_weights", json!("eva")),
            ("eva_config", json!({"rho": 2.0})),
            ("loftq_config", json!({})),
            ("layers_to_transform", json!([0])),
            ("exclude_modules", json!(".*k_proj")),
            ("task_type", json!("SEQ_CLS")),
            ("rank_pattern", json!({})),
            ("alora_invocation_tokens", Value::Null),
            ("ensure_weight_tying", json!(true)),
        ] {
            assert_eq!(of(key, &value)?.0.alpha, 8.0);
        }
        let (config, _) = of("use_rslora", &json!(true))?;
        assert_eq!((config.rank, config.alpha), (8, 8.0 * 8_f64.sqrt()));
        Ok(())
    }
}
