//! Files that say something beside the weights, against transformers and sentence-transformers: `files.json`, which
//! `scripts/file_goldens.py` writes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use candelabrum_nn::{Model, Params};
use candelabrum_transformers::{Pretrained, Tokenizer};
use candle_core::quantized::QTensor;
use candle_core::quantized::gguf_file::{self, Content, Value as Gguf};
use candle_core::{Device, Tensor};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::common::{Expected, Result, assert_close, copy, error_of, read, tests};

fn golden<T: DeserializeOwned>(part: &str) -> Result<T> {
    Ok(serde_json::from_value(read(&tests().join("files.json"))?[part].clone())?)
}

/// The tokens of a tiny model's `expected.json`.
fn tokens(name: &str) -> Result<Tensor> {
    Expected::of(name)?.tokens()
}

/// A GGUF file with the tensors of `llama-gguf` that `part` chooses, its metadata, and more metadata.
fn gguf(path: &Path, more: &[(&str, Gguf)], part: impl Fn(&str) -> bool) -> Result {
    let mut file = fs::File::open(tests().join("tiny/llama-gguf/model.gguf"))?;
    let content = Content::read(&mut file)?;
    let mut metadata: HashMap<&str, &Gguf> =
        content.metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    metadata.extend(more.iter().map(|(key, value)| (*key, value)));
    let metadata: Vec<_> = metadata.into_iter().collect();
    let names: Vec<&String> = content.tensor_infos.keys().filter(|name| part(name)).collect();
    let tensors: Vec<QTensor> = names
        .iter()
        .map(|name| content.tensor(&mut file, name, &Device::Cpu))
        .collect::<candle_core::Result<_>>()?;
    let tensors: Vec<_> = names.iter().map(|name| name.as_str()).zip(&tensors).collect();
    Ok(gguf_file::write(&mut fs::File::create(path)?, &metadata, &tensors)?)
}

/// The logits behind the last tokens.
fn last_logits(path: &Path) -> Result<Tensor> {
    let params = Params::new(0);
    let logits = Pretrained::open(path)?.causal_lm(&params)?.forward(&tokens("llama-gguf")?)?;
    Ok(logits.narrow(1, logits.dim(1)? - 1, 1)?)
}

fn text(value: &str) -> Gguf {
    Gguf::String(value.to_owned())
}

#[test]
fn the_rotary_positions_of_a_gguf_file_are_scaled_as_it_says() -> Result {
    let expected: HashMap<String, Vec<f64>> = golden("gguf")?;
    let place = tempfile::tempdir()?;
    let path = place.path().join("model.gguf");
    let factor = |factor: f32| ("llama.rope.scaling.factor", Gguf::F32(factor));
    let kind = |kind: &str| ("llama.rope.scaling.type", text(kind));
    let length = ("llama.rope.scaling.original_context_length", Gguf::U32(16));
    let all = [
        ("none", vec![]),
        ("none", vec![kind("none"), factor(4.0)]),
        ("linear", vec![kind("linear"), factor(4.0)]),
        // As in llama.cpp, a factor alone is linear, and the older key is the same factor.
        ("linear", vec![factor(4.0)]),
        ("linear", vec![("llama.rope.scale_linear", Gguf::F32(4.0))]),
        (
            "yarn",
            vec![
                kind("yarn"),
                factor(4.0),
                length.clone(),
                ("llama.rope.scaling.finetuned", Gguf::Bool(true)),
            ],
        ),
        (
            "yarn with factors",
            vec![
                kind("yarn"),
                factor(8.0),
                length.clone(),
                ("llama.rope.scaling.yarn_beta_fast", Gguf::F32(16.0)),
                ("llama.rope.scaling.yarn_beta_slow", Gguf::F32(2.0)),
                ("llama.rope.scaling.attn_factor", Gguf::F32(1.5)),
            ],
        ),
    ];
    for (name, more) in all {
        gguf(&path, &more, |_| true)?;
        assert_close(name, &last_logits(&path)?, &expected[name]);
        // A saved folder says the same.
        let saved = place.path().join("saved");
        Pretrained::open(&path)?.causal_lm(&Params::new(0))?.save(&saved, None)?;
        assert_close(name, &last_logits(&saved)?, &expected[name]);
    }
    for (more, words) in [
        (vec![kind("longrope"), factor(4.0)], "rope.scaling.type = \"longrope\""),
        (vec![kind("yarn")], "without rope.scaling.factor"),
        (vec![factor(4.0), ("llama.rope.scale_linear", Gguf::F32(2.0))], "rope.scale_linear = 2"),
        (
            vec![
                kind("yarn"),
                factor(4.0),
                ("llama.rope.scaling.yarn_log_multiplier", Gguf::F32(0.1)),
            ],
            "yarn_log_multiplier",
        ),
    ] {
        gguf(&path, &more, |_| true)?;
        let error = error_of(&path);
        assert!(error.contains("model.gguf: ") && error.contains(words), "{error}");
    }
    Ok(())
}

#[test]
fn metadata_of_a_gguf_file_that_are_not_understood_are_refused_by_name() -> Result {
    let place = tempfile::tempdir()?;
    let path = place.path().join("model.gguf");
    let key = |key: &'static str, value: Gguf| vec![(key, value)];
    for (more, words) in [
        (key("llama.expert_count", Gguf::U32(8)), "`llama.expert_count` = 8 (experts)"),
        (key("llama.logit_scale", Gguf::F32(0.5)), "`llama.logit_scale` = 0.5"),
        (key("llama.final_logit_softcapping", Gguf::F32(30.0)), "`llama.final_logit_softcapping`"),
        (
            key("llama.rope.dimension_count", Gguf::U32(4)),
            "llama.rope.dimension_count = 4 for heads of 8",
        ),
        (key("llama.attention.value_length", Gguf::U32(4)), "llama.attention.value_length = 4"),
        (key("llama.vocab_size", Gguf::U32(7)), "llama.vocab_size = 7, and 64 rows"),
        (key("general.type", text("adapter")), "`general.type` = \"adapter\""),
        (key("adapter.type", text("lora")), "`adapter` ="),
        (key("llama.attention.head_count", Gguf::U32(0)), "llama.attention.head_count = 0"),
        (
            key("llama.feed_forward_length", Gguf::Array(vec![Gguf::U32(64); 2])),
            "llama.feed_forward_length = [64,64]",
        ),
    ] {
        gguf(&path, &more, |_| true)?;
        let error = error_of(&path);
        assert!(error.contains("model.gguf: ") && error.contains(words), "{error}");
    }
    let more = [
        ("general.license.name", text("mine")),
        ("quantize.imatrix.file", text("imatrix.dat")),
        ("mradermacher.quantize_version", text("2")),
        ("llama.expert_count", Gguf::U32(0)),
        ("vendor.key", text("x")),
    ];
    gguf(&path, &more, |_| true)?;
    let params = Params::new(0);
    Pretrained::open(&path)?.accept(["vendor"]).causal_lm(&params)?;
    assert!(error_of(&path).contains("`vendor` ="));
    Ok(())
}

#[test]
fn a_model_in_several_gguf_files_is_read_from_any_of_them() -> Result {
    let place = tempfile::tempdir()?;
    let path = |name: &str| place.path().join(name);
    let [first, second] = ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf"].map(path);
    let count = Content::read(&mut fs::File::open(tests().join("tiny/llama-gguf/model.gguf"))?)?;
    let count = count.tensor_infos.len() as i32;
    let write = |path: &Path, number: u16, tensors: i32, is_second: bool| {
        let split = [
            ("split.no", Gguf::U16(number)),
            ("split.count", Gguf::U16(2)),
            ("split.tensors.count", Gguf::I32(tensors)),
        ];
        gguf(path, &split, |name| name.starts_with("blk.1.") == is_second)
    };
    write(&first, 0, count, false)?;
    write(&second, 1, count, true)?;
    let expected: HashMap<String, Vec<f64>> = golden("gguf")?;
    for part in [&first, &second] {
        assert_close("parts", &last_logits(part)?, &expected["none"]);
    }
    let check = |path: &Path, words: &[&str]| {
        let error = error_of(path);
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    write(&first, 0, count + 1, false)?;
    check(&first, &["split.tensors.count"]);
    write(&first, 0, count, true)?;
    check(&second, &["which another part has, too"]);
    fs::rename(&first, path("other.gguf"))?;
    check(&path("other.gguf"), &["other.gguf: ", "part 1 of 2", "-00001-of-00002.gguf"]);
    check(&second, &["model-00001-of-00002.gguf: ", "part 1 of 2", "download all parts"]);
    Ok(())
}

#[test]
fn formats_of_gguf_files_that_are_not_supported_are_named() -> Result {
    let place = tempfile::tempdir()?;
    let path = place.path().join("model.gguf");
    // The header of a file with one tensor of one number, of a format.
    let write = |format: u32| {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3_u32.to_le_bytes());
        [1_u64, 0, 1].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes.push(b'a');
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend(1_u64.to_le_bytes());
        bytes.extend(format.to_le_bytes());
        bytes.extend([0; 96]);
        fs::write(&path, bytes)
    };
    for (number, name) in [
        (20, "IQ4_NL"),
        (23, "IQ4_XS"),
        (28, "F64"),
        (34, "TQ1_0"),
        (39, "MXFP4"),
        (77, "the number 77"),
    ] {
        write(number)?;
        let error = error_of(&path);
        assert!(
            error.contains(&format!("in the format {name}, ")) && error.contains("Q8_0"),
            "{error}"
        );
    }
    fs::write(&path, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")?;
    assert!(error_of(&path).contains("git lfs pull"));
    fs::write(&path, "PK\u{3}\u{4}and so on")?;
    assert!(error_of(&path).contains("is no GGUF file ("));
    Ok(())
}

#[test]
fn embeddings_are_those_of_the_folders_pooling() -> Result {
    let expected: Vec<Value> = golden("pooling")?;
    let xs = tokens("bert-base")?;
    let older = |modes: &Value| {
        let names = modes.as_array().cloned().unwrap_or_else(|| vec![modes.clone()]);
        let key = |name: &Value| match name.as_str().unwrap() {
            "cls" => "pooling_mode_cls_token".to_owned(),
            "lasttoken" => "pooling_mode_lasttoken".to_owned(),
            "weightedmean" => "pooling_mode_weightedmean_tokens".to_owned(),
            name => format!(
                "pooling_mode_{name}{}",
                if name.ends_with("tokens") { "" } else { "_tokens" }
            ),
        };
        names.iter().map(|name| (key(name), json!(true))).collect::<serde_json::Map<_, _>>()
    };
    for case in expected {
        let modes = &case["pooling_mode"];
        let numbers: Vec<f64> = serde_json::from_value(case["embeddings"].clone())?;
        for config in
            [json!({"embedding_dimension": 16, "pooling_mode": modes}), Value::Object(older(modes))]
        {
            for normalizes in [false, true] {
                let folder = copy("bert-base")?;
                sentence_folder(folder.path(), &config, normalizes)?;
                let params = Params::new(0);
                let model = Pretrained::open(folder.path())?.encoder(&params)?;
                params.eval();
                let got = model.forward(&xs)?;
                let want =
                    if normalizes { normalized(&numbers, xs.dim(0)?) } else { numbers.clone() };
                assert_close(&format!("{config}, {normalizes}"), &got, &want);
                // The saved folder says the same.
                let saved = folder.path().join("saved");
                model.save(&saved, None)?;
                let again = Pretrained::open(&saved)?.encoder(&Params::new(0))?;
                assert_close("saved", &again.forward(&xs)?, &want);
            }
        }
    }
    Ok(())
}

/// Makes a folder one of sentence-transformers.
fn sentence_folder(folder: &Path, pooling: &Value, normalizes: bool) -> Result {
    let module = |number: usize, path: &str, kind: &str| json!({"idx": number, "name": number.to_string(), "path": path, "type": format!("sentence_transformers.models.{kind}")});
    let mut modules = vec![module(0, "", "Transformer"), module(1, "1_Pooling", "Pooling")];
    modules.extend(normalizes.then(|| module(2, "2_Normalize", "Normalize")));
    fs::create_dir_all(folder.join("1_Pooling"))?;
    fs::write(folder.join("modules.json"), Value::Array(modules).to_string())?;
    Ok(fs::write(folder.join("1_Pooling/config.json"), pooling.to_string())?)
}

fn normalized(numbers: &[f64], rows: usize) -> Vec<f64> {
    let row = |row: &[f64]| {
        let length = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        row.iter().map(move |x| x / length).collect::<Vec<_>>()
    };
    numbers.chunks(numbers.len() / rows).flat_map(row).collect()
}

#[test]
fn modules_of_sentence_transformers_that_are_not_supported_are_refused() -> Result {
    let error = |edit: &dyn Fn(&Path)| -> Result<String> {
        let folder = copy("bert-base")?;
        sentence_folder(folder.path(), &json!({"pooling_mode_mean_tokens": true}), true)?;
        edit(folder.path());
        let loaded = Pretrained::open(folder.path())?.encoder(&Params::new(0));
        Ok(loaded.map(drop).unwrap_err().to_string())
    };
    let text = |name: &'static str, json: Value| {
        move |folder: &Path| {
            fs::write(folder.join(name), json.to_string()).unwrap();
        }
    };
    let pooling = |json: Value| text("1_Pooling/config.json", json);
    let dense = |folder: &Path| {
        let path = folder.join("modules.json");
        let modules = fs::read_to_string(&path).unwrap().replace("Normalize\"", "Dense\"");
        fs::write(path, modules).unwrap();
    };
    type Edit = Box<dyn Fn(&Path)>;
    let cases: Vec<(Edit, &[&str])> = vec![
        (Box::new(dense), &["modules.json: ", "Dense", "remove modules.json"]),
        (
            Box::new(pooling(json!({"pooling_mode": "median"}))),
            &["1_Pooling/config.json: ", "\"median\""],
        ),
        (Box::new(pooling(json!({"include_prompt": false}))), &["`include_prompt` = false"]),
        (
            Box::new(pooling(json!({"word_embedding_dimension": 8}))),
            &["word_embedding_dimension = 8", "16 features"],
        ),
        (Box::new(pooling(json!({"pooling_mode_new": true}))), &["`pooling_mode_new` = true"]),
        (
            Box::new(text("sentence_bert_config.json", json!({"do_lower_case": true}))),
            &["`do_lower_case` = true"],
        ),
        (
            Box::new(text(
                "config_sentence_transformers.json",
                json!({"default_prompt_name": "query"}),
            )),
            &["`default_prompt_name`"],
        ),
        (
            Box::new(|folder: &Path| {
                fs::remove_file(folder.join("1_Pooling/config.json")).unwrap();
            }),
            &["which is missing"],
        ),
        (
            Box::new(text("modules.json", json!([{"type": "x.Transformer", "path": ""}]))),
            &["no module Pooling"],
        ),
        (
            Box::new(text(
                "modules.json",
                json!([{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "../elsewhere"}]),
            )),
            &["is not in the folder"],
        ),
    ];
    for (edit, words) in cases {
        let error = error(&*edit)?;
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    Ok(())
}

#[test]
fn the_types_of_a_pairs_tokens_reach_the_model() -> Result {
    let expected: Value = golden("pairs")?;
    let types: Vec<Vec<u32>> = serde_json::from_value(expected["types"].clone())?;
    let types = Tensor::new(types, &Device::Cpu)?;
    let logits: Vec<f64> = serde_json::from_value(expected["logits"].clone())?;
    let params = Params::new(0);
    let model = Pretrained::open(tests().join("tiny/bert"))?.classifier(&params, None)?;
    params.eval();
    let tokens = tokens("bert")?;
    assert_close("pairs", &model.forward(&Tensor::stack(&[&tokens, &types], 1)?)?, &logits);
    let zeros = Tensor::stack(&[&tokens, &tokens.zeros_like()?], 1)?;
    let alone: Vec<f32> = model.forward(&tokens)?.flatten_all()?.to_vec1()?;
    assert_close(
        "type 0",
        &model.forward(&zeros)?,
        &alone.into_iter().map(f64::from).collect::<Vec<_>>(),
    );
    let model =
        Pretrained::open(tests().join("tiny/distilbert"))?.classifier(&Params::new(0), None)?;
    let error = model.forward(&zeros).unwrap_err().to_string();
    assert!(error.contains("this family does not have"), "{error}");
    Ok(())
}

#[test]
fn texts_are_generated_as_the_folder_says() -> Result {
    let expected: Value = golden("generation")?;
    let prompt: Vec<u32> = serde_json::from_value(expected["prompt"].clone())?;
    for case in expected["cases"].as_array().unwrap() {
        let folder = copy("llama")?;
        fs::write(folder.path().join("generation_config.json"), case["settings"].to_string())?;
        let saved = folder.path().join("saved");
        let model = Pretrained::open(folder.path())?.causal_lm(&Params::new(0))?;
        model.save(&saved, None)?;
        for path in [folder.path(), &saved] {
            let model = Pretrained::open(path)?.causal_lm(&Params::new(0))?;
            let tokens = model.generate(&prompt, &model.generation_config()?, |_| {})?;
            assert_eq!(json!(tokens), case["tokens"], "{}", case["settings"]);
        }
    }
    // Without the file the end tokens are those of config.json, and nothing is drawn.
    let config = Pretrained::open(tests().join("tiny/llama"))?
        .causal_lm(&Params::new(0))?
        .generation_config()?;
    assert_eq!((config.stop, config.temperature), (vec![2], 0.0));
    Ok(())
}

#[test]
fn settings_of_a_generation_that_are_not_supported_are_refused_when_they_are_asked_for() -> Result {
    for (json, words) in [
        (json!({"num_beams": 4}), "`num_beams` = 4 (several beams)"),
        (
            json!({"eos_token_id": [2, 64]}),
            "eos_token_id = [2,64], and the model has the tokens 0 to 63",
        ),
        (json!({"eos_token_id": "</s>"}), "eos_token_id = \"</s>\""),
        (json!({"stop_strings": ["a"]}), "`stop_strings`"),
        (json!({"temperature": -1.0, "do_sample": true}), "a temperature of -1"),
        (json!({"repetition_penalty": 0.0}), "a repetition_penalty of 0"),
        (json!({"unknown": 1}), "`unknown` = 1"),
    ] {
        let folder = copy("llama")?;
        fs::write(folder.path().join("generation_config.json"), json.to_string())?;
        // A training does not need them.
        let model = Pretrained::open(folder.path())?.causal_lm(&Params::new(0))?;
        let error = model.generation_config().unwrap_err().to_string();
        assert!(error.contains("generation_config.json: ") && error.contains(words), "{error}");
    }
    Ok(())
}

#[test]
fn the_end_tokens_of_a_gguf_file_end_a_text() -> Result {
    let place = tempfile::tempdir()?;
    let path = place.path().join("model.gguf");
    let more = [
        ("tokenizer.ggml.eot_token_id", Gguf::U32(7)),
        ("tokenizer.ggml.eom_token_id", Gguf::U32(9)),
    ];
    gguf(&path, &more, |_| true)?;
    let model = Pretrained::open(&path)?.causal_lm(&Params::new(0))?;
    assert_eq!(model.generation_config()?.stop, [1, 7, 9]);
    let saved = place.path().join("saved");
    model.save(&saved, None)?;
    assert_eq!(
        Pretrained::open(&saved)?.causal_lm(&Params::new(0))?.generation_config()?.stop,
        [1, 7, 9]
    );
    // A file may say how its texts are drawn.
    let sampling =
        [("general.sampling.temp", Gguf::F32(0.7)), ("general.sampling.top_k", Gguf::I32(20))];
    gguf(&path, &[&more[..], &sampling].concat(), |_| true)?;
    let config = Pretrained::open(&path)?.causal_lm(&Params::new(0))?.generation_config()?;
    assert_eq!((config.temperature, config.top_k, config.stop), (0.7, Some(20), vec![1, 7, 9]));
    gguf(&path, &[("general.sampling.mirostat", Gguf::I32(2))], |_| true)?;
    let error =
        Pretrained::open(&path)?.causal_lm(&Params::new(0))?.generation_config().unwrap_err();
    assert!(error.to_string().contains("`mirostat` = 2"), "{error}");
    Ok(())
}

#[test]
fn logits_that_are_not_numbers_end_a_generation_with_an_error() -> Result {
    let params = Params::new(0);
    let model = Pretrained::open(tests().join("tiny/llama"))?.causal_lm(&params)?;
    let norm = params.get("model.norm.weight")?;
    norm.set(&Tensor::full(f32::NAN, norm.dims().to_vec(), &Device::Cpu)?)?;
    for temperature in [0.0, 1.0] {
        let config =
            candelabrum_transformers::GenerationConfig { temperature, ..Default::default() };
        let error = model.generate(&[1, 2], &config, |_| {}).unwrap_err().to_string();
        assert!(error.contains("behind token 2 are not numbers"), "{error}");
    }
    Ok(())
}

fn write_tokenizer(folder: &Path, files: &Value) -> Result {
    for (name, content) in files.as_object().unwrap() {
        fs::write(folder.join(name), content.to_string())?;
    }
    Ok(())
}

#[test]
fn tokens_are_added_as_transformers_adds_them() -> Result {
    let cases: Vec<Value> = golden("tokenizers")?;
    assert!(cases.len() >= 10);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let folder = tempfile::tempdir()?;
        write_tokenizer(folder.path(), &case["files"])?;
        let tokenizer =
            Tokenizer::open(folder.path()).map_err(|error| format!("{name}: {error}"))?;
        let got = tokenizer.encode(case["text"].as_str().unwrap(), true)?;
        assert_eq!(json!(got), case["tokens"], "{name}");
        assert_eq!(json!(tokenizer.decode(&got)?), case["decoded"], "{name}");
        let named = json!([tokenizer.len(), tokenizer.end(), tokenizer.padding()]);
        assert_eq!(named, json!([case["len"], case["end"], case["padding"]]), "{name}");
        // The saved folder has the same tokens.
        let saved = folder.path().join("saved");
        tokenizer.save(&saved)?;
        assert_eq!(
            Tokenizer::open(&saved)?.encode(case["text"].as_str().unwrap(), true)?,
            got,
            "{name}"
        );
    }
    Ok(())
}

#[test]
fn files_of_a_tokenizer_that_contradict_each_other_are_refused() -> Result {
    let cases: Vec<Value> = golden("tokenizers")?;
    let base = &cases[0]["files"];
    let error = |file: &str, key: &str, value: Value| -> Result<String> {
        let mut files = base.clone();
        files[file][key] = value;
        let folder = tempfile::tempdir()?;
        write_tokenizer(folder.path(), &files)?;
        Ok(Tokenizer::open(folder.path()).map(drop).unwrap_err().to_string())
    };
    let bert = json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": false});
    let with = |part: &str, json: Value, key: &str, value: Value| -> Result<String> {
        let mut files = base.clone();
        files["tokenizer.json"][part] = json;
        files["tokenizer_config.json"][key] = value;
        let folder = tempfile::tempdir()?;
        write_tokenizer(folder.path(), &files)?;
        Ok(Tokenizer::open(folder.path()).map(drop).unwrap_err().to_string())
    };
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let prefixed = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    let config = "tokenizer_config.json";
    let gap = json!({"9": {"content": "<gap>", "special": true}});
    let token = json!({"content": "<gap>", "special": true});
    for (error, words) in [
        (
            error(config, "added_tokens_decoder", gap)?,
            "the token \"<gap>\" with the number 9, and by tokenizer.json it has 5",
        ),
        (error(config, "added_tokens_decoder", json!({"0": token}))?, "with the number 0"),
        (
            with("normalizer", bert.clone(), "do_lower_case", json!(true))?,
            "has do_lower_case = true, and tokenizer.json has lowercase = false",
        ),
        (
            with("normalizer", bert.clone(), "tokenize_chinese_chars", json!(false))?,
            "handle_chinese_chars = true",
        ),
        // The classes of Python have defaults.
        (
            with("normalizer", bert, "tokenizer_class", json!("BertTokenizerFast"))?,
            "has do_lower_case = true, and tokenizer.json has lowercase = false",
        ),
        (
            with("pre_tokenizer", prefixed, "tokenizer_class", json!("GPT2Tokenizer"))?,
            "has add_prefix_space = false, and tokenizer.json has add_prefix_space = true",
        ),
        (
            with("pre_tokenizer", bytes, "add_prefix_space", json!(true))?,
            "add_prefix_space = false",
        ),
        (error(config, "split_special_tokens", json!(true))?, "`split_special_tokens` = true"),
        (error(config, "truncation_side", json!("middle"))?, "truncation_side = \"middle\""),
        (error(config, "unknown", json!(1))?, "`unknown` = 1"),
    ] {
        assert!(error.contains(words), "{error}");
    }
    Ok(())
}

#[test]
fn a_tokenizer_that_pads_with_another_token_than_its_model_hides_is_refused() -> Result {
    let cases: Vec<Value> = golden("tokenizers")?;
    let mut files = cases[0]["files"].clone();
    files["tokenizer_config.json"]["pad_token"] = json!("<unk>");
    let folder = copy("bert-base")?;
    write_tokenizer(folder.path(), &files)?;
    let own = Tokenizer::open(folder.path())?.padding();
    let config = folder.path().join("config.json");
    let mut json = read(&config)?;
    assert_eq!(own, json["pad_token_id"].as_u64().map(|hidden| hidden as u32));
    json["pad_token_id"] = json!(3);
    fs::write(&config, json.to_string())?;
    let error = Tokenizer::open(folder.path()).map(drop).unwrap_err().to_string();
    for part in ["config.json", "hides the padding token 3 (pad_token_id)", "pads texts with"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    Ok(())
}

#[test]
fn images_are_prepared_as_the_folder_says() -> Result {
    use candelabrum_datasets::{ImagePipeline, Resize, Scaling};
    let folder = copy("vit")?;
    let of = |json: Value| {
        fs::write(folder.path().join("preprocessor_config.json"), json.to_string()).unwrap();
        Pretrained::open(folder.path())?.image_pipeline()
    };
    let half = Scaling::standardized([0.5; 3], [0.5; 3]);
    let stretch = ImagePipeline::rgb([16, 16])?.resized(Resize::Stretch)?;
    let usual = json!({"do_normalize": true, "do_rescale": true, "do_resize": true, "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "ViTFeatureExtractor", "image_std": [0.5, 0.5, 0.5], "resample": 2,
        "rescale_factor": 0.003_921_568_627_450_98, "size": {"height": 16, "width": 16}});
    assert_eq!(of(usual.clone())?, stretch.clone().scaled(half)?);
    let with = |key: &str, value: Value| {
        let mut json = usual.clone();
        json[key] = value;
        json
    };
    assert_eq!(of(with("do_normalize", json!(false)))?, stretch);
    let mut cropped = with("size", json!({"shortest_edge": 20}));
    cropped["do_center_crop"] = json!(true);
    cropped["crop_size"] = json!({"height": 16, "width": 16});
    let crop = ImagePipeline::rgb([16, 16])?.resized(Resize::Shorter(20))?;
    assert_eq!(of(cropped)?, crop.scaled(Scaling::standardized([0.5; 3], [0.5; 3]))?);
    for (json, words) in [
        (with("size", json!(24)), "has images of 24 pixels, and config.json has image_size = 16"),
        (with("size", json!({"height": 16, "width": 8})), "16 x 8"),
        (with("size", json!({"shortest_edge": 16})), "without a center crop"),
        (with("rescale_factor", json!(1.0)), "rescale_factor = 1"),
        (with("resample", json!(3)), "`resample` = 3"),
        (with("do_resize", json!(false)), "`do_resize` = false"),
        (with("image_mean", json!("a")), "image_mean = \"a\""),
        (with("unknown", json!(1)), "`unknown` = 1"),
    ] {
        let error = of(json).unwrap_err().to_string();
        assert!(error.contains("preprocessor_config.json: ") && error.contains(words), "{error}");
    }
    // The saved model has the settings of its images.
    of(usual)?;
    let saved = folder.path().join("saved");
    Pretrained::open(folder.path())?.classifier(&Params::new(0), None)?.save(&saved, &[], None)?;
    Pretrained::open(&saved)?.image_pipeline()?;
    let error =
        Pretrained::open(tests().join("tiny/vit"))?.image_pipeline().unwrap_err().to_string();
    assert!(error.contains("has no preprocessor_config.json"), "{error}");
    Ok(())
}
