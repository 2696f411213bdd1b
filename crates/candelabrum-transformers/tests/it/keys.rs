//! A walk over all keys of the classes of transformers and sentence-transformers that describe a model
//! (`keys.json`, which `scripts/transformers_keys.py` writes): each one is read, has no effect by a table, or is refused
//! by name.

#![expect(clippy::print_stderr, reason = "a test says what it counts")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use candelabrum_nn::{Model, Params};
use candelabrum_transformers::{Pretrained, Result, Tokenizer, load_adapter};
use candle_core::{Device, Tensor};
use serde_json::{Value, json};

use crate::common::{Result as Any, copy, read, tests};

/// The keys of a file with their defaults and another value.
fn keys(file: &str) -> Any<BTreeMap<String, [Value; 2]>> {
    let all: Value = serde_json::from_str(&fs::read_to_string(tests().join("keys.json"))?)?;
    Ok(serde_json::from_value(all[file].clone())?)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Read,
    Neutral,
    Refused,
}

/// What becomes of each key of `file` that is set in the JSON `path`, which has the object `base`. `outcome` says what is
/// computed of the folder then. `nonsense` is a value that no key that is read can have.
fn walk(
    file: &str,
    path: &Path,
    base: &Value,
    nonsense: &Value,
    outcome: impl Fn() -> Result<String>,
) -> Any<BTreeMap<String, Use>> {
    let with = |key: &str, value: &Value| {
        let mut json = base.clone();
        json[key] = value.clone();
        fs::write(path, json.to_string()).map(|()| outcome())
    };
    fs::write(path, base.to_string())?;
    let usual = outcome()?;
    let mut uses = BTreeMap::new();
    for (key, [default, other]) in keys(file)? {
        let is_refusal = |error: &str| error.contains(&format!("`{key}` = "));
        let of = match with(&key, nonsense)? {
            Ok(same) => {
                assert_eq!(same, usual, "{file}: {key} = {nonsense}");
                Use::Neutral
            }
            Err(error) if is_refusal(&error.to_string()) => Use::Refused,
            Err(error) => {
                assert!(error.to_string().contains(&key), "{file}: {key} = {nonsense}: {error}");
                Use::Read
            }
        };
        match (of, with(&key, &other)?) {
            (Use::Neutral, Ok(same)) => assert_eq!(same, usual, "{file}: {key} = {other}"),
            (Use::Refused, Err(error)) => {
                assert!(is_refusal(&error.to_string()), "{file}: {key} = {other}: {error}");
            }
            // Another value without effect.
            (Use::Refused, Ok(same)) => assert_eq!(same, usual, "{file}: {key} = {other}"),
            // A size that is not that of the weights is an error of the weights.
            (Use::Read, _) => {}
            (of, result) => {
                panic!("{file}: {key} = {other} is {of:?}, and the result is {result:?}")
            }
        }
        if of == Use::Refused {
            let result = with(&key, &default)?;
            assert!(result.is_ok(), "{file}: {key} = {default}, the default: {result:?}");
        }
        uses.insert(key, of);
    }
    let count = |kind: Use| uses.values().filter(|of| **of == kind).count();
    let [read, neutral, refused] = [Use::Read, Use::Neutral, Use::Refused].map(count);
    eprintln!("{file}: {read} keys are read, {neutral} are neutral, {refused} are refused");
    assert!(read > 0 && refused > 0, "{file}");
    assert_eq!(uses.get("unknown_key"), Some(&Use::Refused), "{file}");
    Ok(uses)
}

/// A copy of a tiny folder, and one of its JSON files.
fn copy_with(name: &str, json: &str) -> Any<(tempfile::TempDir, PathBuf, Value)> {
    let folder = copy(name)?;
    let path = folder.path().join(json);
    let base = if path.exists() { read(&path)? } else { json!({}) };
    Ok((folder, path, base))
}

/// The bits of a model's results.
fn bits(model: &impl Model, params: &Params, xs: &Tensor) -> Result<String> {
    params.eval();
    Ok(format!("{:?}", model.forward(xs)?.flatten_all()?.to_vec1::<f32>()?))
}

#[test]
fn every_key_of_a_config_is_read_or_neutral_or_refused() -> Any {
    let tokens = Tensor::new(&[[5_u32, 3, 9, 7, 1, 2]], &Device::Cpu)?;
    let image = Tensor::ones((1, 3, 16, 16), candle_core::DType::F32, &Device::Cpu)?;
    for family in
        ["llama", "mistral", "qwen2", "qwen3", "gpt2", "bert", "roberta", "distilbert", "vit"]
    {
        let (folder, path, base) = copy_with(family, "config.json")?;
        let uses =
            walk(&format!("config.json of {family}"), &path, &base, &json!("nonsense"), || {
                let (params, pretrained) = (Params::new(0), Pretrained::open(folder.path())?);
                match family {
                    "bert" | "roberta" | "distilbert" | "vit" => {
                        let xs = if family == "vit" { &image } else { &tokens };
                        bits(&pretrained.classifier(&params, None)?, &params, xs)
                    }
                    _ => bits(&pretrained.causal_lm(&params)?, &params, &tokens),
                }
            })?;
        for (key, of) in [
            ("vocab_size", Use::Read),
            ("num_hidden_layers", Use::Read),
            ("use_cache", Use::Neutral),
            ("transformers_version", Use::Neutral),
            ("auto_map", Use::Refused),
            ("quantization_config", Use::Refused),
            ("is_encoder_decoder", Use::Refused),
        ] {
            assert!(
                uses.get(key).is_none_or(|got| *got == of),
                "{family}: {key} is {:?}",
                uses[key]
            );
        }
    }
    Ok(())
}

#[test]
fn every_key_of_generation_settings_is_read_or_neutral_or_refused() -> Any {
    let (folder, path, _) = copy_with("llama", "generation_config.json")?;
    let base = json!({"do_sample": true, "temperature": 0.5});
    walk("generation_config.json", &path, &base, &json!("nonsense"), || {
        let model = Pretrained::open(folder.path())?.causal_lm(&Params::new(0))?;
        Ok(format!("{:?}", model.generation_config()?))
    })?;
    Ok(())
}

#[test]
fn every_key_of_a_tokenizers_config_is_read_or_neutral_or_refused() -> Any {
    let folder = tempfile::tempdir()?;
    let words = ["<unk>", "<s>", "</s>", "hello", "world"];
    let vocabulary: serde_json::Map<_, _> =
        (0..).zip(words).map(|(id, word)| (word.to_owned(), json!(id))).collect();
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "decoder": null, "post_processor": null,
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": false, "lowercase": false},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, bytes]},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    });
    fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string())?;
    let path = folder.path().join("tokenizer_config.json");
    walk("tokenizer_config.json", &path, &json!({}), &json!(7.5), || {
        let tokenizer = Tokenizer::open(folder.path())?;
        let tokens = tokenizer.encode("hello world <new> <image>", true)?;
        let named = (tokenizer.beginning(), tokenizer.end(), tokenizer.padding());
        Ok(format!("{tokens:?} {named:?} {:?}", tokenizer.decode(&tokens)?))
    })?;
    Ok(())
}

#[test]
fn every_key_of_a_pooling_is_read_or_neutral_or_refused() -> Any {
    let (folder, _, _) = copy_with("bert-base", "config.json")?;
    let modules = json!([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]);
    fs::write(folder.path().join("modules.json"), modules.to_string())?;
    fs::create_dir(folder.path().join("1_Pooling"))?;
    let path = folder.path().join("1_Pooling/config.json");
    let tokens = Tensor::new(&[[5_u32, 3, 9, 7, 1, 2]], &Device::Cpu)?;
    walk("1_Pooling/config.json", &path, &json!({}), &json!("nonsense"), || {
        let params = Params::new(0);
        bits(&Pretrained::open(folder.path())?.encoder(&params)?, &params, &tokens)
    })?;
    Ok(())
}

#[test]
fn every_key_of_an_image_processor_is_read_or_neutral_or_refused() -> Any {
    let (folder, path, _) = copy_with("vit", "preprocessor_config.json")?;
    let base = json!({"size": {"height": 16, "width": 16}});
    walk("preprocessor_config.json", &path, &base, &json!("nonsense"), || {
        Ok(format!("{:?}", Pretrained::open(folder.path())?.image_pipeline()?))
    })?;
    Ok(())
}

#[test]
fn every_key_of_an_adapter_is_read_or_neutral_or_refused() -> Any {
    let (folder, path, base) = copy_with("llama-lora", "adapter_config.json")?;
    let tokens = Tensor::new(&[[5_u32, 3, 9, 7, 1, 2]], &Device::Cpu)?;
    let uses = walk("adapter_config.json", &path, &base, &json!("nonsense"), || {
        let params = Params::new(0);
        let model = Pretrained::open(tests().join("tiny/llama"))?.causal_lm(&params)?;
        load_adapter(&params, folder.path())?;
        bits(&model, &params, &tokens)
    })?;
    for key in ["peft_type", "init_lora_weights", "r", "lora_alpha", "use_rslora", "use_dora"] {
        assert_eq!(uses[key], Use::Read, "{key}");
    }
    for key in ["alora_invocation_tokens", "kasa_config", "rank_pattern", "bias", "use_bdlora"] {
        assert_eq!(uses[key], Use::Refused, "{key}");
    }
    Ok(())
}

/// Keys of the files of widely used models, beside the sizes.
#[test]
fn the_keys_of_widely_used_models_are_known() -> Any {
    let tiny = |name: &str, more: Value| -> Any<Option<String>> {
        let (folder, path, mut json) = copy_with(name, "config.json")?;
        json.as_object_mut()
            .ok_or("an object")?
            .extend(more.as_object().ok_or("an object")?.clone());
        fs::write(&path, json.to_string())?;
        let (params, pretrained) = (Params::new(0), Pretrained::open(folder.path())?);
        let loaded = match name {
            "bert" | "roberta" | "distilbert" | "vit" => {
                pretrained.classifier(&params, None).map(drop)
            }
            "bert-base" => pretrained.encoder(&params).map(drop),
            _ => pretrained.causal_lm(&params).map(drop),
        };
        Ok(loaded.err().map(|error| error.to_string()))
    };
    for (name, more) in [
        (
            "bert-base",
            json!({"_name_or_path": "nreimers/MiniLM-L6-H384-uncased", "gradient_checkpointing": false, "position_embedding_type": "absolute", "transformers_version": "4.8.2"}),
        ),
        (
            "bert",
            json!({"directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3, "pooler_size_per_head": 128, "pooler_type": "first_token_transform", "finetuning_task": "sentiment-analysis", "output_past": true, "_num_labels": 5}),
        ),
        (
            "bert",
            json!({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1.0"}, "torch_dtype": "float32"}),
        ),
        (
            "roberta",
            json!({"problem_type": "single_label_classification", "output_past": true, "gradient_checkpointing": false}),
        ),
        (
            "distilbert",
            json!({"finetuning_task": "sst-2", "output_past": true, "qa_dropout": 0.1, "sinusoidal_pos_embds": false, "tie_weights_": true, "output_hidden_states": true}),
        ),
        (
            "gpt2",
            json!({"n_ctx": 1024, "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "_num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "output_past": true, "gradient_checkpointing": false}),
        ),
        (
            "llama-tied",
            json!({"is_llama_config": true, "rope_interleaved": false, "pretraining_tp": 1, "rope_scaling": null, "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}}),
        ),
        (
            "llama",
            json!({"unsloth_fixed": true, "unsloth_version": "2025.1", "model_name": "x", "eos_token_id": [1, 2], "_attn_implementation_autoset": true, "max_length": 4096}),
        ),
        (
            "qwen2",
            json!({"use_mrope": false, "max_window_layers": 21, "sliding_window": 32768, "rope_scaling": null}),
        ),
        ("qwen3", json!({"max_window_layers": 36, "rope_scaling": null})),
        (
            "vit",
            json!({"problem_type": "single_label_classification", "image_size": 16, "torch_dtype": "float32"}),
        ),
    ] {
        assert_eq!(tiny(name, more.clone())?, None, "{name}: {more}");
    }
    let token = |text: &str| json!({"__type": "AddedToken", "content": text, "lstrip": false, "normalized": true, "rstrip": false, "single_word": false});
    let folder = tempfile::tempdir()?;
    let files: Value = serde_json::from_str(&fs::read_to_string(tests().join("files.json"))?)?;
    fs::write(
        folder.path().join("tokenizer.json"),
        files["tokenizers"][0]["files"]["tokenizer.json"].to_string(),
    )?;
    for config in [
        json!({"bos_token": "<s>", "clean_up_tokenization_spaces": true, "eos_token": "</s>", "model_input_names": ["input_ids", "attention_mask"], "model_max_length": 131_072, "tokenizer_class": "PreTrainedTokenizerFast"}),
        json!({"add_bos_token": false, "add_prefix_space": false, "additional_special_tokens": ["<s>"], "bos_token": null, "chat_template": "{{ messages }}", "errors": "replace", "split_special_tokens": false, "unk_token": null, "pad_token": "</s>"}),
        json!({"do_lower_case": true, "strip_accents": null, "tokenize_chinese_chars": true, "name_or_path": "x", "do_basic_tokenize": true, "never_split": null, "max_length": 128, "pad_to_multiple_of": null, "pad_token_type_id": 0, "padding_side": "right", "stride": 0, "truncation_side": "right", "truncation_strategy": "longest_first", "special_tokens_map_file": "x", "tokenizer_file": "y"}),
        json!({"add_bos_token": true, "add_eos_token": false, "bos_token": token("<s>"), "eos_token": token("</s>"), "legacy": false, "sp_model_kwargs": {}, "use_default_system_prompt": false, "spaces_between_special_tokens": false, "unk_token": token("<unk>"), "model_max_length": 1e30}),
        json!({"backend": "tokenizers", "is_local": true, "extra_special_tokens": [], "processor_class": "x", "padding_side": "left", "trim_offsets": true}),
    ] {
        fs::write(folder.path().join("tokenizer_config.json"), config.to_string())?;
        Tokenizer::open(folder.path()).map_err(|error| format!("{config}: {error}"))?;
    }
    let (folder, path, _) = copy_with("llama", "generation_config.json")?;
    for config in [
        json!({"bos_token_id": 1, "pad_token_id": 0, "do_sample": true, "eos_token_id": [2, 3], "repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "transformers_version": "4.37.0"}),
        json!({"_from_model_config": true, "bos_token_id": 1, "eos_token_id": 2, "transformers_version": "4.31.0", "max_length": 4096, "temperature": 0.6, "top_p": 0.9, "do_sample": true}),
    ] {
        fs::write(&path, config.to_string())?;
        Pretrained::open(folder.path())?.causal_lm(&Params::new(0))?.generation_config()?;
    }
    Ok(())
}
