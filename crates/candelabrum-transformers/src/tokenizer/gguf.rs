//! The tokenizer in the metadata of a GGUF file, as the files that Hugging Face's libraries read.
//!
//! A GGUF file has the vocabulary and the merges of byte-level BPE, and instead of the rules by which a text is divided
//! before the merges only a name of the rules (`tokenizer.ggml.pre`). The rules are those of the `tokenizer.json` of the
//! models that the name stands for. llama.cpp (`src/llama-vocab.cpp`) has them by the same names.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::Arc,
};

use candle_core::quantized::gguf_file::Value;
use serde_json::{Map, Value as Json, json};

use super::files::{CONFIG, TOKENIZER, TokenizerFiles};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::neutral::GGUF_TOKENIZER;
use crate::weights::metadata_config;

/// Llama 3's rules, which are GPT-4's: at most three digits together, and line breaks go to the punctuation before them.
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Qwen's rules: as Llama 3's, but each digit alone.
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The types of tokens (`llama_token_type`) that are found in a text before it is divided.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// How a text is divided before the merges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MergeRules {
    Gpt2,
    SmolLm,
    Llama3,
    Qwen2,
}

impl MergeRules {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            // llama.cpp has other rules for `default`. transformers takes GPT-2's.
            "gpt-2" | "default" => Self::Gpt2,
            "smollm" => Self::SmolLm,
            "llama-bpe" => Self::Llama3,
            "qwen2" => Self::Qwen2,
            _ => return None,
        })
    }

    fn pre_tokenizer(self) -> Json {
        let bytes = |use_regex: bool| {
            json!({
                "type": "ByteLevel",
                "add_prefix_space": false,
                "trim_offsets": true,
                "use_regex": use_regex
            })
        };
        let first = match self {
            Self::Gpt2 => return bytes(true),
            Self::SmolLm => json!({ "type": "Digits", "individual_digits": true }),
            Self::Llama3 => split(LLAMA_3),
            Self::Qwen2 => split(QWEN_2),
        };
        json!({ "type": "Sequence", "pretokenizers": [first, bytes(self == Self::SmolLm)] })
    }

    fn normalizer(self) -> Json {
        if self == Self::Qwen2 { json!({ "type": "NFC" }) } else { Json::Null }
    }
}

fn split(regex: &str) -> Json {
    json!({
        "type": "Split",
        "pattern": { "Regex": regex },
        "behavior": "Isolated",
        "invert": false
    })
}

/// `tokenizer.json` and `tokenizer_config.json` for the tokenizer of a GGUF file.
///
/// # Errors
/// Another kind of tokenizer than byte-level BPE, other rules than the known ones. Metadata that are missing, of another
/// type, contradict each other, or are not understood.
pub(super) fn files(
    path: &Path,
    metadata: &HashMap<String, Value>,
    accepted: &Arc<[String]>,
) -> Result<TokenizerFiles> {
    let of_text = |key: &str| {
        key.starts_with("tokenizer.")
            || key == "general.architecture"
            || key.ends_with(".context_length")
    };
    let whole = metadata_config(path, metadata, of_text).accepting(accepted);
    let Some(metadata) = whole.object("tokenizer")? else { return Err(without(&whole)) };
    let rules = rules(&metadata)?;
    let tokens = texts(&metadata, "ggml.tokens")?;
    let mut vocabulary = Map::new();
    for (id, token) in tokens.iter().enumerate() {
        if let Some(other) = vocabulary.insert(token.clone(), id.into()) {
            return Err(metadata.fault(format!("token {id} and token {other} are both {token:?}")));
        }
    }
    let merges = texts(&metadata, "ggml.merges")?;
    let merges = merges.iter().map(|merge| {
        let pair = merge.split_once(' ').filter(|(_, second)| !second.contains(' '));
        let pair = pair.map(|(first, second)| json!([first, second]));
        pair.ok_or_else(|| metadata.fault(format!("the merge {merge:?} is not one of two tokens")))
    });
    let merges = merges.collect::<Result<Vec<Json>>>()?;

    let named = named(&metadata, &tokens)?;
    // Bytes are tokens of their own: nothing is unknown.
    let model = json!({
        "type": "BPE",
        "dropout": null,
        "unk_token": null,
        "continuing_subword_prefix": null,
        "end_of_word_suffix": null,
        "fuse_unk": false,
        "byte_fallback": false,
        "ignore_merges": rules == MergeRules::Llama3,
        "vocab": vocabulary,
        "merges": merges
    });
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added(&metadata, &tokens, &named)?,
        "normalizer": rules.normalizer(),
        "pre_tokenizer": rules.pre_tokenizer(),
        "post_processor": post_processor(&metadata, &named, rules, &tokens)?,
        "decoder": {
            "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true
        },
        "model": model
    });
    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": false
    });
    for NamedToken { name, id } in &named {
        config[name] = tokens[*id].as_str().into();
    }
    if let Some(template) = metadata.text("chat_template")? {
        config["chat_template"] = template.into();
    }
    if let Some(general) = whole.object("general")?
        && let Some(architecture) = general.text("architecture")?
        && let Some(own) = whole.object(architecture)?
        && let Some(length) = own.size("context_length")?
    {
        config["model_max_length"] = length.into();
    }
    metadata.finish(&[GGUF_TOKENIZER])?;
    let files = [(TOKENIZER, tokenizer), (CONFIG, config)];
    Ok(TokenizerFiles::made(
        path,
        files.map(|(name, json)| (name, json.to_string().into_bytes())).into(),
    ))
}

const BESIDE: &str = "put the model's tokenizer.json beside the file";

fn without(metadata: &Config) -> Error {
    metadata.fault(format!("the file has no tokenizer (tokenizer.ggml.model): {BESIDE}"))
}

/// A list of texts that the tokenizer needs.
fn texts(metadata: &Config, key: &str) -> Result<Vec<String>> {
    let missing = || metadata.fault(format!("tokenizer.{key} is missing"));
    metadata.texts(key)?.ok_or_else(missing)
}

/// # Errors
/// A tokenizer of another kind.
fn rules(metadata: &Config) -> Result<MergeRules> {
    let model = metadata.text("ggml.model")?.ok_or_else(|| without(metadata))?;
    if model != "gpt2" {
        let kind = if model == "llama" { " (SentencePiece)" } else { "" };
        return Err(metadata.fault(format!(
            "a tokenizer of the kind `{model}`{kind}. Of a GGUF file's, only byte-level BPE (`gpt2`) is read: {BESIDE}"
        )));
    }
    let pre = metadata.text("ggml.pre")?.ok_or_else(|| {
        metadata.fault(format!(
            "the file does not say how its tokenizer divides a text (tokenizer.ggml.pre): {BESIDE}"
        ))
    })?;
    MergeRules::from_name(pre).ok_or_else(|| {
        metadata.fault(format!(
            "a tokenizer that divides a text as `{pre}` (tokenizer.ggml.pre). Known are gpt-2, default, smollm, llama-bpe \
             and qwen2: {BESIDE}"
        ))
    })
}

/// A token with a name in `tokenizer_config.json`.
struct NamedToken {
    name: &'static str,
    id: usize,
}

/// # Errors
/// An id that is not that of a token.
fn named(metadata: &Config, tokens: &[String]) -> Result<Vec<NamedToken>> {
    let names = [
        ("bos_token", "bos_token_id"),
        ("eos_token", "eos_token_id"),
        ("unk_token", "unknown_token_id"),
        ("pad_token", "padding_token_id"),
    ];
    let mut named = Vec::new();
    for (name, key) in names {
        let Some(id) = metadata.size(&format!("ggml.{key}"))? else { continue };
        if id >= tokens.len() {
            let count = tokens.len();
            let what = format!("tokenizer.ggml.{key} is {id}, and there are {count} tokens");
            return Err(metadata.fault(what));
        }
        named.push(NamedToken { name, id });
    }
    Ok(named)
}

/// The tokens that are found before a text is divided. Those with a name and those of type control are special.
fn added(metadata: &Config, tokens: &[String], named: &[NamedToken]) -> Result<Vec<Json>> {
    let types: Vec<Option<i64>> = match metadata.get("ggml.token_type") {
        Some(Json::Array(types)) => types.iter().map(Json::as_i64).collect(),
        Some(_) => return Err(metadata.fault("tokenizer.ggml.token_type is no list".to_owned())),
        None => vec![None; tokens.len()],
    };
    if types.len() != tokens.len() {
        let (types, tokens) = (types.len(), tokens.len());
        return Err(
            metadata.fault(format!("types of {types} tokens, and there are {tokens} tokens"))
        );
    }
    let named: HashSet<usize> = named.iter().map(|named| named.id).collect();
    let added = tokens.iter().zip(types).enumerate().filter_map(|(id, (token, kind))| {
        let is_special = named.contains(&id) || kind == Some(CONTROL);
        (is_special || kind == Some(USER_DEFINED)).then(|| {
            json!({
                "id": id,
                "content": token,
                "single_word": false,
                "lstrip": false,
                "rstrip": false,
                "normalized": false,
                "special": is_special
            })
        })
    });
    Ok(added.collect())
}

/// What puts the tokens of beginning and end around a text.
fn post_processor(
    metadata: &Config,
    named: &[NamedToken],
    rules: MergeRules,
    tokens: &[String],
) -> Result<Json> {
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true
    });
    // llama.cpp's default: Llama 3's files do not say it.
    let add_beginning = metadata.flag("ggml.add_bos_token")?.unwrap_or(rules == MergeRules::Llama3);
    let add_end = metadata.flag("ggml.add_eos_token")?.unwrap_or(false);
    let token = |name: &str, is_wanted: bool| {
        let found = named.iter().find(|named| named.name == name).filter(|_| is_wanted);
        found.map(|named| (tokens[named.id].as_str(), named.id))
    };
    let (beginning, end) = (token("bos_token", add_beginning), token("eos_token", add_end));
    if beginning.is_none() && end.is_none() {
        return Ok(bytes);
    }
    let special = |token: Option<(&str, usize)>, segment: usize| {
        token.map(|(token, _)| json!({ "SpecialToken": { "id": token, "type_id": segment } }))
    };
    let text = |name: &str, segment: usize| {
        let text = json!({ "Sequence": { "id": name, "type_id": segment } });
        [special(beginning, segment), Some(text), special(end, segment)].into_iter().flatten()
    };
    let ids = beginning.into_iter().chain(end).map(|(token, id)| {
        (token.to_owned(), json!({ "id": token, "ids": [id], "tokens": [token] }))
    });
    let template = json!({
        "type": "TemplateProcessing",
        "single": text("A", 0).collect::<Vec<_>>(),
        "pair": text("A", 0).chain(text("B", 1)).collect::<Vec<_>>(),
        "special_tokens": ids.collect::<Map<_, _>>()
    });
    Ok(json!({ "type": "Sequence", "processors": [bytes, template] }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::{Tokenizer, tiny};

    fn error(change: impl FnOnce(&mut HashMap<String, Value>)) -> String {
        let mut metadata = tiny::metadata("gpt-2");
        change(&mut metadata);
        Tokenizer::from_gguf("model.gguf", &metadata).unwrap_err().to_string()
    }

    /// The tokens are those of transformers' `AutoTokenizer` for the files that [`Tokenizer::save`] writes.
    #[test]
    fn texts_are_divided_by_the_rules_that_the_file_names() {
        let texts = ["hello  12 x", "say: hello.\n\nhello 1212", "<|start|>hello<|stop|> <think>é"];
        let gpt_2: [&[u32]; 3] = [
            &[259, 220, 220, 262, 220, 87],
            &[82, 64, 88, 25, 220, 259, 13, 198, 198, 259, 220, 262, 262],
            &[267, 259, 268, 220, 269, 127, 102],
        ];
        let smollm: [&[u32]; 3] = [
            &[259, 260, 16, 17, 220, 87],
            &[82, 64, 88, 25, 220, 259, 13, 198, 198, 259, 220, 16, 17, 16, 17],
            &[267, 259, 268, 220, 269, 127, 102],
        ];
        let llama: [&[u32]; 3] = [
            &[259, 220, 220, 262, 220, 87],
            &[82, 64, 88, 25, 220, 259, 13, 261, 259, 220, 262, 16, 17],
            &[267, 259, 268, 220, 269, 127, 102],
        ];
        let qwen: [&[u32]; 3] = [
            &[259, 220, 220, 16, 17, 220, 87],
            &[82, 64, 88, 25, 220, 259, 13, 261, 259, 220, 16, 17, 16, 17],
            &[267, 259, 268, 220, 269, 127, 102],
        ];
        for (pre, expected, beginning) in [
            ("gpt-2", gpt_2, None),
            ("default", gpt_2, None),
            ("smollm", smollm, None),
            ("llama-bpe", llama, Some(267)),
            ("qwen2", qwen, None),
        ] {
            let tokenizer = Tokenizer::from_gguf("model.gguf", &tiny::metadata(pre)).unwrap();
            for (text, expected) in texts.into_iter().zip(expected) {
                assert_eq!(tokenizer.encode(text, false).unwrap(), expected, "{pre}: {text:?}");
                let with: Vec<u32> =
                    beginning.into_iter().chain(expected.iter().copied()).collect();
                assert_eq!(tokenizer.encode(text, true).unwrap(), with, "{pre}: {text:?}");
                let without = text.replace("<|start|>", "").replace("<|stop|>", "");
                assert_eq!(tokenizer.decode(&with).unwrap(), without, "{pre}");
            }
        }
        let tokenizer = Tokenizer::from_gguf("model.gguf", &tiny::metadata("qwen2")).unwrap();
        let [one, two] = ["e\u{301}", "é"].map(|text| tokenizer.encode(text, false).unwrap());
        assert_eq!(one, two, "in normal form C");
    }

    #[test]
    fn named_tokens_are_special_and_those_of_a_user_are_not() {
        let tokenizer = Tokenizer::from_gguf("model.gguf", &tiny::metadata("smollm")).unwrap();
        let named = [tokenizer.beginning(), tokenizer.end(), tokenizer.padding()];
        assert_eq!(named, [Some(267), Some(268), Some(266)]);
        assert_eq!(
            [266, 268, 269, 0].map(|id| tokenizer.is_special(id)),
            [true, true, false, false]
        );
        assert_eq!((tokenizer.len(), tokenizer.id("<think>")), (270, Some(269)));
        assert_eq!(tokenizer.token(264).as_deref(), Some("Ġw"));

        let mut metadata = tiny::metadata("gpt-2");
        metadata.insert("tokenizer.ggml.add_bos_token".into(), Value::Bool(true));
        metadata.insert("tokenizer.ggml.add_eos_token".into(), Value::Bool(true));
        metadata.remove("tokenizer.ggml.token_type");
        let tokenizer = Tokenizer::from_gguf("model.gguf", &metadata).unwrap();
        assert_eq!(tokenizer.encode("<|stop|>", true).unwrap(), [267, 268, 268]);
        let pair = tokenizer.encode_pair("a", "b", true).unwrap();
        assert_eq!(pair, (vec![267, 64, 268, 267, 65, 268], vec![0, 0, 0, 1, 1, 1]));
    }

    #[test]
    fn what_is_saved_is_the_same_tokenizer() {
        let folder = tempfile::tempdir().unwrap();
        for pre in ["gpt-2", "smollm", "llama-bpe", "qwen2"] {
            let tokenizer = Tokenizer::from_gguf("model.gguf", &tiny::metadata(pre)).unwrap();
            tokenizer.save(folder.path().join(pre)).unwrap();
            let saved = Tokenizer::open(folder.path().join(pre)).unwrap();
            let text = "<|start|>say: hello.\n\n  12 <think>";
            assert_eq!(saved.encode(text, true).unwrap(), tokenizer.encode(text, true).unwrap());
            assert_eq!((saved.end(), saved.padding()), (Some(268), Some(266)));
            assert_eq!(saved.digest(), tokenizer.digest());
            assert!(saved.has_chat_template());
        }
    }

    #[test]
    fn other_tokenizers_are_errors_with_a_remedy() {
        let set = |key: &'static str, value: &'static str| {
            move |metadata: &mut HashMap<String, Value>| {
                metadata.insert(format!("tokenizer.ggml.{key}"), Value::String(value.into()));
            }
        };
        let message = error(set("model", "llama"));
        assert!(message.starts_with("model.gguf: a tokenizer of the kind `llama` (SentencePiece)"));
        assert!(message.ends_with("put the model's tokenizer.json beside the file"), "{message}");
        let message = error(set("pre", "tekken"));
        assert!(message.contains("divides a text as `tekken`"), "{message}");
        assert!(message.ends_with("put the model's tokenizer.json beside the file"), "{message}");
        for key in ["model", "pre"] {
            let message = error(|metadata| drop(metadata.remove(&format!("tokenizer.ggml.{key}"))));
            assert!(message.contains(&format!("(tokenizer.ggml.{key})")), "{message}");
        }
    }

    #[test]
    fn metadata_that_contradict_each_other_are_errors() {
        let list = |texts: &[&str]| {
            Value::Array(texts.iter().map(|text| Value::String((*text).into())).collect())
        };
        let with = |key: &str, value: Value| {
            error(|metadata| drop(metadata.insert(format!("tokenizer.ggml.{key}"), value)))
        };
        for (key, value, expected) in [
            ("eos_token_id", Value::U32(270), "eos_token_id is 270, and there are 270 tokens"),
            ("tokens", list(&["a", "b", "a"]), "token 2 and token 0 are both \"a\""),
            ("tokens", Value::U8(1), "tokenizer.ggml.tokens = 1, which is no list of texts"),
            ("merges", list(&["a b c"]), "the merge \"a b c\" is not one of two tokens"),
            ("merges", list(&["h ???"]), "model.gguf: no tokenizer: "),
            (
                "merges",
                Value::Array(vec![Value::U8(1)]),
                "tokenizer.ggml.merges = [1], which is no list of texts",
            ),
            ("token_type", Value::Array(vec![Value::I32(1)]), "types of 1 tokens"),
            (
                "add_bos_token",
                Value::U8(1),
                "tokenizer.ggml.add_bos_token = 1, which is neither true nor false",
            ),
            ("pre", Value::U8(1), "tokenizer.ggml.pre = 1, which is no text"),
        ] {
            let message = with(key, value);
            assert!(message.starts_with("model.gguf: ") && message.contains(expected), "{message}");
        }
    }
}
