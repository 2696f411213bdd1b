//! A walk over all keys of the classes of transformers and sentence-transformers that describe a model
//! (`keys.json`, which `scripts/transformers_keys.py` writes): each one is read, has no effect by a table, or is refused
//! by name.

#![expect(clippy::print_stderr, reason = "a test says what it counts")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use candelabrum_nn::{Model, Params};
use candelabrum_transformers::{Pretrained, Result, Tokenizer};
use candle_core::{Device, Tensor};
use serde_json::{Value, json};

type Any<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

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
fn copy(name: &str, json: &str) -> Any<(tempfile::TempDir, PathBuf, Value)> {
    let folder = tempfile::tempdir()?;
    for entry in fs::read_dir(tests().join("tiny").join(name))? {
        let entry = entry?;
        fs::copy(entry.path(), folder.path().join(entry.file_name()))?;
    }
    let path = folder.path().join(json);
    let base = fs::read_to_string(&path).unwrap_or_else(|_| "{}".to_owned());
    Ok((folder, path, serde_json::from_str(&base)?))
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
        let (folder, path, base) = copy(family, "config.json")?;
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
    let (folder, path, _) = copy("llama", "generation_config.json")?;
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
    let (folder, _, _) = copy("bert-base", "config.json")?;
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
    let (folder, path, _) = copy("vit", "preprocessor_config.json")?;
    let base = json!({"size": {"height": 16, "width": 16}});
    walk("preprocessor_config.json", &path, &base, &json!("nonsense"), || {
        Ok(format!("{:?}", Pretrained::open(folder.path())?.image_pipeline()?))
    })?;
    Ok(())
}
