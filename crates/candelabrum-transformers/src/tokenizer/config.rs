//! What stands beside `tokenizer.json`: the names of special tokens and the chat template.
//!
//! The rules are those of Python's transformers. A `special_tokens_map.json` is from old versions and counts where
//! `tokenizer_config.json` has no `added_tokens_decoder`. A `chat_template.jinja` replaces every other template.

use serde_json::{Map, Value};

use super::files::{CONFIG, Files, SPECIAL_TOKENS, TEMPLATE};
use crate::error::{Error, Result};

/// In the order in which transformers adds those that are no tokens yet.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

pub(super) struct Config {
    pub(super) tokens: SpecialTokens,
    pub(super) template: Option<String>,
}

/// Special tokens with their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SpecialTokens(Vec<(&'static str, String)>);

impl Config {
    /// # Errors
    /// A file that is not JSON or not as transformers writes it: the file and what is wrong.
    pub(super) fn of(files: &Files) -> Result<Self> {
        let config = object(files, CONFIG)?;
        let map = object(files, SPECIAL_TOKENS)?;
        let map = if config.contains_key("added_tokens_decoder") { Map::new() } else { map };
        let mut tokens = SpecialTokens::default();
        for name in NAMES {
            let (file, value) = match (map.get(name), config.get(name)) {
                (Some(value), _) => (SPECIAL_TOKENS, value),
                (None, Some(value)) => (CONFIG, value),
                (None, None) => continue,
            };
            let token = match value {
                Value::Null => continue,
                Value::Object(token) => token.get("content").and_then(Value::as_str),
                value => value.as_str(),
            };
            let token = token.ok_or_else(|| {
                let what =
                    format!("{name} is {value}: neither a text nor an object with `content`");
                Error::file(files.path_of(file), what)
            })?;
            tokens.0.push((name, token.to_owned()));
        }
        let template = match files.get(TEMPLATE) {
            Some(template) => Some(text(files, TEMPLATE, template)?.to_owned()),
            None => template(files, config.get("chat_template"))?,
        };
        Ok(Self { tokens, template })
    }
}

impl SpecialTokens {
    /// A token, as text.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(token, _)| *token == name).map(|(_, token)| token)
    }

    /// The tokens with their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(name, token)| (*name, token.as_str()))
    }

    /// The tokens.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(_, token)| token)
    }

    /// With this token for padding, where none is named.
    pub(super) fn with_default_padding(mut self, token: Option<String>) -> Self {
        if let Some(token) = token
            && self.get("pad_token").is_none()
        {
            self.0.push(("pad_token", token));
        }
        self
    }
}

/// The template named `default` of several, or the only one.
fn template(files: &Files, value: Option<&Value>) -> Result<Option<String>> {
    let found = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(template)) => Some(template.as_str()),
        Some(Value::Array(all)) => {
            let default = all.iter().find(|one| one["name"] == "default");
            default
                .or_else(|| all.first().filter(|_| all.len() == 1))
                .and_then(|one| one["template"].as_str())
        }
        Some(_) => None,
    };
    let what = "chat_template is neither a text nor a list with one of the name `default`";
    let template = found.ok_or_else(|| Error::file(files.path_of(CONFIG), what))?;
    Ok(Some(template.to_owned()))
}

/// A file as a JSON object, empty if there is no file.
fn object(files: &Files, name: &str) -> Result<Map<String, Value>> {
    let Some(content) = files.get(name) else { return Ok(Map::new()) };
    serde_json::from_slice(content)
        .map_err(|error| Error::file(files.path_of(name), format!("not a JSON object: {error}")))
}

fn text<'a>(files: &Files, name: &str, content: &'a [u8]) -> Result<&'a str> {
    std::str::from_utf8(content)
        .map_err(|error| Error::file(files.path_of(name), format!("not UTF-8: {error}")))
}
