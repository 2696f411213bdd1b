//! Small tokenizers for tests.

use std::{
    collections::HashMap,
    env, fs,
    path::{Path, PathBuf},
};

use candle_core::quantized::gguf_file::Value;

/// The metadata of a GGUF file with a tokenizer of 270 tokens: the 256 bytes, merges of them, then `<|end|>`,
/// `<|start|>`, `<|stop|>` and the token `<think>` of a user.
pub(crate) fn metadata(pre: &str) -> HashMap<String, Value> {
    let merges = ["h e", "l l", "he ll", "hell o", "Ġ Ġ", "Ċ Ċ", "1 2", ". Ċ", "Ġ w", "Ġ 1"];
    let mut tokens: Vec<String> = alphabet().map(String::from).collect();
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    let mut types = vec![1; tokens.len()];
    tokens.extend(["<|end|>", "<|start|>", "<|stop|>", "<think>"].map(String::from));
    types.extend([3, 3, 3, 4]);
    let texts = |texts: Vec<String>| Value::Array(texts.into_iter().map(Value::String).collect());
    let template = "{% for message in messages %}{{ '<|start|>' + message.role + '\\n' + message.content + \
        '<|stop|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}";
    HashMap::from(
        [
            ("general.architecture", Value::String("llama".into())),
            ("llama.context_length", Value::U32(64)),
            ("tokenizer.chat_template", Value::String(template.into())),
            ("tokenizer.ggml.model", Value::String("gpt2".into())),
            ("tokenizer.ggml.pre", Value::String(pre.into())),
            ("tokenizer.ggml.tokens", texts(tokens)),
            ("tokenizer.ggml.merges", texts(merges.map(String::from).into())),
            (
                "tokenizer.ggml.token_type",
                Value::Array(types.into_iter().map(Value::I32).collect()),
            ),
            ("tokenizer.ggml.bos_token_id", Value::U32(267)),
            ("tokenizer.ggml.eos_token_id", Value::U32(268)),
            ("tokenizer.ggml.padding_token_id", Value::U32(266)),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    )
}

/// The characters of the bytes in the order of GPT-2's vocabulary.
fn alphabet() -> impl Iterator<Item = char> {
    let printed = ('!'..='~').chain('¡'..='¬').chain('®'..='ÿ');
    printed.chain(('\u{100}'..).take(256 - 188))
}

/// Writes a folder with a tokenizer as BERT's, which asks for texts of 8 tokens.
pub(crate) fn bert(folder: &Path) {
    let vocabulary =
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "fine", "film", "##s", "no", ".", "ends"];
    let vocabulary: serde_json::Map<_, _> =
        (0_u64..).zip(vocabulary).map(|(id, token)| (token.to_owned(), id.into())).collect();
    let added = [("[PAD]", 0), ("[UNK]", 1), ("[CLS]", 2), ("[SEP]", 3)].map(|(token, id)| {
        serde_json::json!({
            "id": id, "content": token, "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false
        })
    });
    let special = |token: &str, id: u32| (token.to_owned(), (token.to_owned(), id));
    let one = |text: &str| serde_json::json!({ "Sequence": { "id": text, "type_id": u32::from(text == "B") } });
    let around = |token: &str, segment: u32| serde_json::json!({ "SpecialToken": { "id": token, "type_id": segment } });
    let ids: serde_json::Map<_, _> = [special("[CLS]", 2), special("[SEP]", 3)]
        .into_iter()
        .map(|(key, (token, id))| {
            (key, serde_json::json!({ "id": token, "ids": [id], "tokens": [token] }))
        })
        .collect();
    let tokenizer = serde_json::json!({
        "version": "1.0",
        "truncation": { "direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0 },
        "padding": {
            "strategy": { "Fixed": 8 }, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"
        },
        "added_tokens": added,
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true
        },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [around("[CLS]", 0), one("A"), around("[SEP]", 0)],
            "pair": [around("[CLS]", 0), one("A"), around("[SEP]", 0), one("B"), around("[SEP]", 1)],
            "special_tokens": ids
        },
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocabulary
        }
    });
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}

/// A real model's folder or file, if there is one here.
pub(crate) fn real(name: &str) -> Option<PathBuf> {
    let found = env::var_os("CANDELABRUM_MODELS").map(|folder| Path::new(&folder).join(name));
    let found = found.filter(|path| path.exists());
    if found.is_none() {
        println!("left out: CANDELABRUM_MODELS names no folder with {name}");
    }
    found
}

pub(crate) const MINI_LM: &str = "minilm";
pub(crate) const SMOL_LM_2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
