//! The metadata of a GGUF file as a [`Config`], so that one reader reads all files of others.
//!
//! The keys are divided at their first point: `llama.rope.freq_base` is the key `rope.freq_base` of the object `llama`.

use std::collections::HashMap;
use std::path::Path;

use candle_core::quantized::gguf_file::Value;
use serde_json::{Map, Value as Json, json};

use crate::config::Config;

/// The metadata that `is_wanted` chooses by their keys.
pub(crate) fn metadata_config(
    path: &Path,
    metadata: &HashMap<String, Value>,
    is_wanted: impl Fn(&str) -> bool,
) -> Config {
    let mut sections = Map::new();
    let mut keys: Vec<&String> = metadata.keys().filter(|key| is_wanted(key)).collect();
    keys.sort();
    for key in keys {
        let value = as_json(&metadata[key]);
        let Some((section, rest)) = key.split_once('.') else {
            sections.insert(key.clone(), value);
            continue;
        };
        let section = sections.entry(section).or_insert_with(|| json!({}));
        if let Some(section) = section.as_object_mut() {
            section.insert(rest.to_owned(), value);
        }
    }
    Config::new(path, Json::Object(sections))
}

fn as_json(value: &Value) -> Json {
    match value {
        Value::U8(number) => json!(number),
        Value::I8(number) => json!(number),
        Value::U16(number) => json!(number),
        Value::I16(number) => json!(number),
        Value::U32(number) => json!(number),
        Value::I32(number) => json!(number),
        Value::U64(number) => json!(number),
        Value::I64(number) => json!(number),
        // The number that is meant by an f32: 1e-5 for the f32 that is nearest to it.
        Value::F32(number) => json!(number.to_string().parse::<f64>().ok()),
        Value::F64(number) => json!(number),
        Value::Bool(flag) => json!(flag),
        Value::String(text) => json!(text),
        Value::Array(values) => values.iter().map(as_json).collect(),
    }
}
