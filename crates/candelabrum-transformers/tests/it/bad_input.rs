//! Folders and files that cannot be used: each error names the file and what is wrong with it.

use std::fs;
use std::path::Path;

use candelabrum_nn::Params;
use candelabrum_transformers::{Pretrained, Tokenizer, check_vocabulary, load_adapter};
use serde_json::{Value, json};

use crate::common::{Result, copy, error_of, tiny};

#[track_caller]
fn assert_names(error: &str, words: &[&str]) {
    for word in words {
        assert!(error.contains(word), "{word:?} is not in: {error}");
    }
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) -> Result {
    let mut json: Value = serde_json::from_str(&fs::read_to_string(path)?)?;
    change(&mut json);
    Ok(fs::write(path, json.to_string())?)
}

const INDEX: &str = "model.safetensors.index.json";

#[test]
fn a_shard_that_is_missing_is_named() -> Result {
    let folder = copy("llama-sharded")?;
    let shard = "model-00002-of-00003.safetensors";
    fs::remove_file(folder.path().join(shard))?;
    assert_names(&error_of(folder.path()), &[shard, "is missing", "tensors are in it"]);
    Ok(())
}

#[test]
fn an_index_that_does_not_agree_with_its_files_is_refused() -> Result {
    let folder = copy("llama-sharded")?;
    let index = folder.path().join(INDEX);
    let text = fs::read_to_string(&index)?;
    let twice = text.replacen(
        "\"lm_head.weight\":",
        "\"lm_head.weight\": \"model-00003-of-00003.safetensors\", \"lm_head.weight\":",
        1,
    );
    assert_ne!(twice, text);
    fs::write(&index, twice)?;
    assert_names(&error_of(folder.path()), &[INDEX, "`lm_head.weight` twice"]);

    fs::write(&index, &text)?;
    edit(&index, |json| {
        json["weight_map"]["model.norm.weight"] = json!("model-00001-of-00003.safetensors");
    })?;
    let error = error_of(folder.path());
    assert_names(&error, &[INDEX, "`model.norm.weight` is in model-00001", "does not have it"]);

    fs::write(&index, &text)?;
    edit(&index, |json| json["weight_map"]["model.norm.weight"] = json!("../other.safetensors"))?;
    assert_names(&error_of(folder.path()), &[INDEX, "not in its folder"]);

    fs::write(&index, "{")?;
    assert_names(&error_of(folder.path()), &[INDEX, "is no index of weights"]);

    // Two files have the same tensor.
    fs::write(&index, &text)?;
    let file = |number| folder.path().join(format!("model-0000{number}-of-00003.safetensors"));
    fs::copy(file(1), file(2))?;
    assert_names(&error_of(folder.path()), &["model-00002", "has `", "has, too"]);
    Ok(())
}

#[test]
fn files_that_are_cut_short_are_refused_wherever_the_cut_is() -> Result {
    for (name, file) in [("llama", "model.safetensors"), ("llama-gguf", "model.gguf")] {
        let folder = copy(name)?;
        let path = folder.path().join(file);
        let whole = fs::read(&path)?;
        let model = if name == "llama" { folder.path() } else { &path };
        for len in [0, 4, 8, 100, whole.len() / 2, whole.len() - 1] {
            fs::write(&path, &whole[..len])?;
            let error = error_of(model);
            assert_names(&error, &[file]);
            let cut = ["truncated", "ends within its header", "its header"];
            assert!(cut.iter().any(|word| error.contains(word)), "{len} bytes: {error}");
        }
    }
    Ok(())
}

#[test]
fn bytes_that_are_no_header_are_refused() -> Result {
    let folder = copy("llama")?;
    let path = folder.path().join("model.safetensors");
    let whole = fs::read(&path)?;
    let mut bytes = whole.clone();
    bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    fs::write(&path, &bytes)?;
    assert_names(&error_of(folder.path()), &["no safetensors file", "header would have"]);
    // Another place of a tensor.
    let text = String::from_utf8_lossy(&whole[8..]).into_owned();
    let start = "\"data_offsets\":[0,";
    let end = 8 + text.find(start).expect("a first tensor") + start.len();
    let mut bytes = whole;
    bytes[end] = if bytes[end] == b'1' { b'2' } else { b'1' };
    fs::write(&path, &bytes)?;
    assert_names(&error_of(folder.path()), &["no safetensors file", "its header: invalid"]);
    Ok(())
}

#[test]
fn a_config_that_cannot_be_used_is_named() -> Result {
    let folder = copy("llama")?;
    let path = folder.path().join("config.json");
    let text = fs::read_to_string(&path)?;
    let with = |key: &str, value: Value| -> Result<String> {
        fs::write(&path, &text)?;
        edit(&path, |json| json[key] = value)?;
        Ok(error_of(folder.path()))
    };
    let error = with("model_type", json!("mamba"))?;
    assert_names(&error, &["config.json", "unknown model_type \"mamba\"", "llama, mistral"]);
    assert_names(&with("model_type", json!("bert"))?, &["config.json", "of another kind"]);
    assert_names(&with("model_type", Value::Null)?, &["config.json", "has no model_type"]);
    assert_names(&with("num_key_value_heads", json!(3))?, &["config.json", "3 heads of keys"]);
    assert_names(&with("hidden_act", json!("relu"))?, &["config.json", "hidden_act"]);
    // The weights are of another size.
    let error = with("intermediate_size", json!(8))?;
    assert_names(&error, &["does not fit the model", "of another shape", "gate_proj.weight"]);
    let error = with("num_hidden_layers", json!(3))?;
    assert_names(&error, &["does not fit the model", "not in the file", "model.layers.2."]);
    fs::remove_file(&path)?;
    assert_names(&error_of(folder.path()), &["has no config.json", "OWNER/NAME"]);
    assert_names(&error_of(Path::new("no-such-folder")), &["neither a folder nor a file"]);
    fs::write(&path, &text)?;
    fs::remove_file(folder.path().join("model.safetensors"))?;
    assert_names(&error_of(folder.path()), &["has no model.safetensors"]);
    Ok(())
}

#[test]
fn sizes_of_a_config_are_compared_with_the_files_before_memory_is_taken() -> Result {
    for (name, key, words) in [
        ("llama", "hidden_size", &["`model.embed_tokens.weight` would have [64, "][..]),
        ("llama", "vocab_size", &["`model.embed_tokens.weight`", "[64, 16] in the files"]),
        ("llama", "intermediate_size", &["gate_proj.weight"]),
        ("llama", "num_hidden_layers", &["the files have 21 tensors"]),
        ("gpt2", "n_positions", &["`transformer.wpe.weight`"]),
        ("gpt2", "n_layer", &["the files have"]),
    ] {
        for size in [1_000_000_000_000_u64, 1 << 30] {
            let folder = copy(name)?;
            edit(&folder.path().join("config.json"), |json| json[key] = json!(size))?;
            let error = error_of(folder.path());
            assert_names(&error, &["config.json: ", &format!("{key} = {size}")]);
            if size < 1 << 31 {
                assert_names(&error, words);
            }
        }
    }
    let folder = copy("bert")?;
    edit(&folder.path().join("config.json"), |json| {
        json["num_labels"] = json!(1 << 30);
        json["id2label"] = Value::Null;
    })?;
    let classifier = Pretrained::open(folder.path())?.classifier(&Params::new(0), None);
    assert_names(
        &classifier.unwrap_err().to_string(),
        &["num_labels = 1073741824", "classifier.weight"],
    );
    for (key, words) in [
        ("image_size", "`vit.embeddings.position_embeddings`"),
        ("num_channels", "num_channels = 1073741824, which no image has"),
        ("hidden_size", "hidden_size = 1073741824"),
    ] {
        let folder = copy("vit")?;
        edit(&folder.path().join("config.json"), |json| json[key] = json!(1 << 30))?;
        let classifier = Pretrained::open(folder.path())?.classifier(&Params::new(0), None);
        assert_names(&classifier.unwrap_err().to_string(), &["config.json: ", words]);
    }
    Ok(())
}

#[test]
fn tensors_that_the_model_does_not_have_are_refused_unless_they_are_accepted() -> Result {
    // A layer that the config leaves out.
    let folder = copy("llama")?;
    edit(&folder.path().join("config.json"), |json| json["num_hidden_layers"] = json!(1))?;
    assert_names(
        &error_of(folder.path()),
        &["tensors that the model does not have", "model.layers.1.", "Pretrained::accept"],
    );
    // A bias that the config does not mention.
    let folder = copy("llama-bias")?;
    edit(&folder.path().join("config.json"), |json| json["mlp_bias"] = json!(false))?;
    assert_names(&error_of(folder.path()), &["tensors that the model does not have", "proj.bias"]);
    let biases = (0..2).flat_map(|layer| {
        ["gate", "up", "down"].map(|part| format!("model.layers.{layer}.mlp.{part}_proj.bias"))
    });
    Pretrained::open(folder.path())?.accept(biases).causal_lm(&Params::new(0))?;
    // A head of another task may be there.
    let folder = copy("bert")?;
    Pretrained::open(folder.path())?.encoder(&Params::new(0))?;
    edit(&folder.path().join("config.json"), |json| json["num_hidden_layers"] = json!(1))?;
    let error = Pretrained::open(folder.path())?.encoder(&Params::new(0)).unwrap_err().to_string();
    assert_names(&error, &["tensors that the model does not have", "bert.encoder.layer.1."]);
    Ok(())
}

#[test]
fn a_second_head_of_a_model_with_tied_weights_must_be_the_table() -> Result {
    for (name, table) in
        [("llama-tied", "model.embed_tokens.weight"), ("gpt2", "transformer.wte.weight")]
    {
        let folder = copy(name)?;
        let path = folder.path().join("model.safetensors");
        let mut tensors = candle_core::safetensors::load(&path, &candle_core::Device::Cpu)?;
        let head = tensors[table].clone();
        tensors.insert("lm_head.weight".to_owned(), head.clone());
        candle_core::safetensors::save(&tensors, &path)?;
        let report = Pretrained::open(folder.path())?.causal_lm(&Params::new(0))?;
        assert!(report.report().unused.is_empty(), "{}", report.report());
        tensors.insert("lm_head.weight".to_owned(), (head * 1.5)?);
        candle_core::safetensors::save(&tensors, &path)?;
        assert_names(
            &error_of(folder.path()),
            &["config.json: ", "tie_word_embeddings", table, "`lm_head.weight`"],
        );
    }
    // transformers computes with both matrices, and so does a config that says so.
    let folder = copy("llama-tied")?;
    let path = folder.path().join("model.safetensors");
    let mut tensors = candle_core::safetensors::load(&path, &candle_core::Device::Cpu)?;
    let head = (tensors["model.embed_tokens.weight"].clone() * 1.5)?;
    tensors.insert("lm_head.weight".to_owned(), head);
    candle_core::safetensors::save(&tensors, &path)?;
    edit(&folder.path().join("config.json"), |json| json["tie_word_embeddings"] = json!(false))?;
    Pretrained::open(folder.path())?.causal_lm(&Params::new(0))?;
    Ok(())
}

#[test]
fn what_is_there_instead_of_a_model_is_named_with_the_way_out() -> Result {
    let folder = copy("llama-sharded")?;
    fs::remove_file(folder.path().join(INDEX))?;
    assert_names(
        &error_of(folder.path()),
        &["model-00001-of-00003.safetensors", INDEX, "download the index"],
    );
    for (file, words) in [
        ("adapter_model.bin", "open the model of the adapters"),
        ("weights.gguf", "name the file weights.gguf"),
        ("consolidated.safetensors", "has consolidated.safetensors and no model.safetensors"),
        ("pytorch_model.bin", "pytorch_model.bin and no model.safetensors: convert"),
    ] {
        let folder = copy("llama")?;
        fs::rename(folder.path().join("model.safetensors"), folder.path().join(file))?;
        assert_names(&error_of(folder.path()), &[words]);
    }
    // Those of a clone without Git LFS.
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n";
    for file in ["model.safetensors", "config.json"] {
        let folder = copy("llama")?;
        fs::write(folder.path().join(file), pointer)?;
        assert_names(&error_of(folder.path()), &[file, "git lfs pull"]);
    }
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("tokenizer.json"), pointer)?;
    let error = Tokenizer::open(folder.path()).unwrap_err().to_string();
    assert_names(&error, &["tokenizer.json", "git lfs pull"]);
    assert_names(&error_of(folder.path()), &["has no config.json", "OWNER/NAME"]);
    fs::write(folder.path().join("model-q4.gguf"), "GGUF")?;
    assert_names(&error_of(folder.path()), &["has no config.json", "the file model-q4.gguf"]);
    Ok(())
}

#[test]
fn an_error_says_each_thing_once() -> Result {
    let folder = copy("llama")?;
    let path = folder.path().join("model.safetensors");
    let mut tensors = candle_core::safetensors::load(&path, &candle_core::Device::Cpu)?;
    let norm = tensors["model.norm.weight"].to_dtype(candle_core::DType::U8)?;
    tensors.insert("model.norm.weight".to_owned(), norm);
    candle_core::safetensors::save(&tensors, &path)?;
    let error = Pretrained::open(folder.path())?.causal_lm(&Params::new(0)).unwrap_err();
    let text = error.to_string();
    assert_eq!(text.matches("model.safetensors").count(), 1, "{text}");
    assert!(std::error::Error::source(&error).is_none(), "{text}");
    let error = Tokenizer::open("no-such-folder").unwrap_err();
    assert_eq!(error.to_string().matches("No such file").count(), 1);
    assert!(
        std::error::Error::source(&error).is_none(),
        "a program that prints the sources says it twice"
    );
    Ok(())
}

#[test]
fn defaults_of_absent_keys_are_those_of_transformers() -> Result {
    // Mistral's window of 4096 and 8 heads of keys, Qwen's 28 layers without windows, Qwen 3's heads of 128.
    let without = |name: &str, key: &str| -> Result<Option<String>> {
        let folder = copy(name)?;
        edit(&folder.path().join("config.json"), |json| {
            drop(json.as_object_mut().unwrap().remove(key));
        })?;
        let loaded = Pretrained::open(folder.path())?.causal_lm(&Params::new(0));
        Ok(loaded.err().map(|error| error.to_string()))
    };
    assert_names(&without("mistral", "num_key_value_heads")?.unwrap(), &["8 heads of keys"]);
    assert_names(&without("qwen2", "num_key_value_heads")?.unwrap(), &["32 heads of keys"]);
    assert_names(&without("qwen3", "head_dim")?.unwrap(), &["does not fit", "q_proj.weight"]);
    for (name, key) in [
        ("mistral", "sliding_window"),
        ("qwen2", "max_window_layers"),
        ("llama", "num_key_value_heads"),
    ] {
        let error = without(name, key)?;
        assert_eq!(error.is_none(), name != "llama", "{error:?}");
    }
    Ok(())
}

#[test]
fn numbers_that_do_not_fit_the_type_are_refused() -> Result {
    let params = Params::on(0, candle_core::DType::U32, &candle_core::Device::Cpu);
    let error = Pretrained::open(tiny("llama"))?.causal_lm(&params).unwrap_err().to_string();
    assert_names(&error, &["no parameter has this type"]);
    Ok(())
}

#[test]
fn a_tokenizer_that_is_larger_than_the_model_is_refused_with_both_numbers() -> Result {
    let tokenizer = Tokenizer::open(tiny("llama-gguf").join("model.gguf"))?;
    assert_eq!(tokenizer.len(), 64);
    check_vocabulary(&tokenizer, 64)?;
    let error = check_vocabulary(&tokenizer, 63).unwrap_err().to_string();
    assert_names(&error, &["64", "63"]);
    Ok(())
}

#[test]
fn an_adapter_that_does_not_fit_changes_nothing() -> Result {
    let params = Params::new(0);
    let model = Pretrained::open(tiny("llama"))?.causal_lm(&params)?;
    let all = params.trainable_count();
    let folder = copy("llama-lora")?;
    let path = folder.path().join("adapter_config.json");
    let text = fs::read_to_string(&path)?;
    for (key, value, words) in [
        ("peft_type", json!("IA3"), &["adapter_config.json", "peft_type = \"IA3\""][..]),
        ("bias", json!("all"), &["adapter_config.json", "biases"]),
        ("rank_pattern", json!({"q_proj": 2}), &["adapter_config.json", "rank_pattern"]),
        (
            "r",
            json!(3),
            &["adapter_model.safetensors", "lora_A.weight", "of [4, 32]", "takes [3, 32]"],
        ),
        ("use_dora", json!(true), &["adapter_model.safetensors", "lacks", "magnitude_vector"]),
    ] {
        fs::write(&path, &text)?;
        edit(&path, |json| json[key] = value)?;
        let error = load_adapter(&params, folder.path()).unwrap_err().to_string();
        assert_names(&error, words);
        assert_eq!((params.trainable_count(), params.element_count()), (all, all), "{error}");
    }
    let error = load_adapter(&params, tiny("llama")).unwrap_err().to_string();
    assert_names(&error, &["has no adapter_config.json"]);
    drop(model);
    Ok(())
}
