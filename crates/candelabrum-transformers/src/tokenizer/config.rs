//! What stands beside `tokenizer.json`: the names of special tokens, tokens to add, and the chat template.
//!
//! The rules are those of Python's transformers 5. A `special_tokens_map.json` and an `added_tokens.json` are from old
//! versions and count where `tokenizer_config.json` has no `added_tokens_decoder`. A `chat_template.jinja` replaces every
//! other template. What a file says of the division of a text must agree with `tokenizer.json`, which divides it.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use tokenizers::{AddedToken, TruncationDirection};

use super::files::{
    ADDED_TOKENS, CONFIG, JSON_TEMPLATE, SPECIAL_TOKENS, TEMPLATE, TOKENIZER, TokenizerFiles,
};
use crate::config::Config as Json;
use crate::error::{Error, Result};
use crate::neutral::TOKENIZER_CONFIG;

/// In the order in which transformers adds those that are no tokens yet.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

pub(super) struct Config {
    pub(super) tokens: SpecialTokens,
    /// Tokens that `tokenizer.json` may not have or may have in another form, in their order.
    pub(super) added: Vec<NewToken>,
    pub(super) template: Option<String>,
    /// Which end of a long text is cut off.
    pub(super) cut: TruncationDirection,
}

/// A token to add.
pub(super) struct NewToken {
    pub(super) token: AddedToken,
    /// The number that a file says.
    pub(super) id: Option<u32>,
    /// The file that names the token.
    pub(super) file: &'static str,
}

/// Special tokens with their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SpecialTokens(Vec<(&'static str, String)>);

impl Config {
    /// # Errors
    /// A file that is not JSON or not as transformers writes it, says what is not understood, or contradicts another one:
    /// the file and what is wrong.
    pub(super) fn from_files(files: &TokenizerFiles, accepted: &Arc<[String]>) -> Result<Self> {
        let read = |name: &str| match files.get(name) {
            Some(content) => Json::of_bytes(&files.path_of(name), content),
            None => Ok(Json::new(&files.path_of(name), json!({}))),
        };
        let config = read(CONFIG)?.accepting(accepted);
        let decoder = config.object("added_tokens_decoder")?;
        let is_old = decoder.is_none();
        let map = is_old.then(|| read(SPECIAL_TOKENS)).transpose()?;
        let map = map.map(|map| map.accepting(accepted));
        // What the older file says goes before the newer one.
        let said = |key: &str| {
            let old = map.as_ref().and_then(|map| Some((SPECIAL_TOKENS, map.get(key)?)));
            // Both count as read.
            let new = config.get(key).map(|value| (CONFIG, value));
            old.or(new)
        };
        let token = |key: &str, (file, value): (&'static str, &Value)| {
            let token = added_token(value).ok_or_else(|| {
                let what = format!("{key} is {value}: neither a text nor an object with `content`");
                Error::file(files.path_of(file), what)
            })?;
            Ok::<_, Error>(NewToken { token, id: None, file })
        };

        let mut added = Vec::new();
        for (id, value) in decoder.iter().flat_map(|decoder| decoder.json().as_object()).flatten() {
            let id = id.parse().map_err(|_| {
                let what = format!("added_tokens_decoder has the number {id:?}");
                Error::file(files.path_of(CONFIG), what)
            })?;
            added
                .push(NewToken { id: Some(id), ..token("added_tokens_decoder", (CONFIG, value))? });
        }
        let numbers = is_old.then(|| read(ADDED_TOKENS)).transpose()?;
        for (text, id) in numbers.iter().flat_map(|numbers| numbers.json().as_object()).flatten() {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
                Error::file(files.path_of(ADDED_TOKENS), format!("{text:?} has the number {id}"))
            })?;
            let token = AddedToken::from(text.clone(), false);
            added.push(NewToken { token, id: Some(id), file: ADDED_TOKENS });
        }
        added.sort_by_key(|added| added.id);

        let (mut tokens, mut special) = (SpecialTokens::default(), Vec::new());
        for name in NAMES {
            if let Some(found) = said(name) {
                let added = token(name, found)?;
                tokens.0.push((name, added.token.content.clone()));
                special.push(added);
            }
        }
        // One list by two names, and tokens with names of the model's own, as an object or by themselves.
        let lists = ["extra_special_tokens", "additional_special_tokens"].map(said);
        let is_empty = |value: &Value| {
            let object = value.as_object();
            value.as_array().is_some_and(Vec::is_empty) || object.is_some_and(|all| all.is_empty())
        };
        let list = lists.into_iter().flatten().find(|(_, value)| !is_empty(value));
        for (file, value) in list.into_iter().chain(said("model_specific_special_tokens")) {
            let texts: Vec<&Value> = match value {
                Value::Array(list) => list.iter().collect(),
                Value::Object(map) => map.values().collect(),
                other => {
                    let what = format!(
                        "has extra_special_tokens (also additional_special_tokens) = {other}: neither a list nor an object"
                    );
                    return Err(Error::file(files.path_of(file), what));
                }
            };
            for text in texts {
                special.push(token("extra_special_tokens", (file, text))?);
            }
        }
        let keys = |json: &Json| json.json().as_object().map(|json| json.keys().cloned().collect());
        let keys: Vec<BTreeSet<String>> =
            [Some(&config), map.as_ref()].into_iter().flatten().filter_map(keys).collect();
        for key in keys.into_iter().flatten().collect::<BTreeSet<_>>() {
            if key.ends_with("_token")
                && !NAMES.contains(&key.as_str())
                && let Some(found) = said(&key).filter(|(_, value)| !value.is_boolean())
            {
                special.push(token(&key, found)?);
            }
        }
        for NewToken { token, .. } in &mut special {
            token.special = true;
        }
        for NewToken { token, .. } in &mut added {
            token.special |= special.iter().any(|special| special.token.content == token.content);
        }
        let is_there = |special: &NewToken| {
            !added.iter().any(|added| added.token.content == special.token.content)
        };
        let special: Vec<NewToken> = special.into_iter().filter(is_there).collect();
        added.extend(special);

        agree_on_division(&config, files)?;
        let cut = match config.text("truncation_side")? {
            None | Some("right") => TruncationDirection::Right,
            Some("left") => TruncationDirection::Left,
            Some(other) => {
                return Err(config.fault(format!("has truncation_side = {other:?}: right or left")));
            }
        };
        let template = template_of(files, &config)?;
        config.finish(&[TOKENIZER_CONFIG])?;
        if let Some(map) = &map {
            map.finish(&[TOKENIZER_CONFIG])?;
        }
        Ok(Self { tokens, added, template, cut })
    }
}

/// A token as a text or as an object, with its form.
fn added_token(value: &Value) -> Option<AddedToken> {
    let flag = |name: &str, default: bool| value[name].as_bool().unwrap_or(default);
    match value {
        Value::String(text) => Some(AddedToken::from(text.clone(), true)),
        Value::Object(_) => {
            let special = flag("special", false);
            let token = AddedToken::from(value["content"].as_str()?.to_owned(), special);
            let token = token.single_word(flag("single_word", false)).lstrip(flag("lstrip", false));
            Some(token.rstrip(flag("rstrip", false)).normalized(flag("normalized", !special)))
        }
        _ => None,
    }
}

/// What `tokenizer.json` says of the division of a text, without the vocabulary.
#[derive(Default, Deserialize)]
struct Division {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
}

/// The value of a setting that the files leave out, by the class of the tokenizer.
fn default_of(class: &str, key: &str) -> Option<bool> {
    match (class.trim_end_matches("Fast"), key) {
        ("BertTokenizer" | "DistilBertTokenizer", "do_lower_case" | "tokenize_chinese_chars") => {
            Some(true)
        }
        ("GPT2Tokenizer" | "RobertaTokenizer", "add_prefix_space") => Some(false),
        _ => None,
    }
}

/// Refuses settings of Python's classes that contradict `tokenizer.json`. transformers divides a text by some of them,
/// also by the defaults of the class, and by `tokenizer.json` alone where its class has no such setting.
fn agree_on_division(config: &Json, files: &TokenizerFiles) -> Result<()> {
    let Division { normalizer, pre_tokenizer } =
        serde_json::from_slice(files.get(TOKENIZER).unwrap_or_default()).unwrap_or_default();
    let all = |part: &Value, list: &str, kind: &str| -> Vec<Value> {
        let parts = part[list].as_array().cloned().unwrap_or_else(|| vec![part.clone()]);
        parts.into_iter().filter(|part| part["type"] == kind).collect()
    };
    let bert = all(&normalizer, "normalizers", "BertNormalizer");
    let bytes = all(&pre_tokenizer, "pretokenizers", "ByteLevel");
    for (key, parts, field) in [
        ("do_lower_case", &bert, "lowercase"),
        ("strip_accents", &bert, "strip_accents"),
        ("tokenize_chinese_chars", &bert, "handle_chinese_chars"),
        ("add_prefix_space", &bytes, "add_prefix_space"),
    ] {
        let Some(part) = parts.first() else { continue };
        let class = config.text("tokenizer_class")?.unwrap_or_default();
        let Some(said) = config.flag(key)?.or_else(|| default_of(class, key)) else { continue };
        let own = &part[field];
        if own.as_bool() != Some(said) && !(own.is_null() && key == "strip_accents") {
            return Err(config.fault(format!(
                "has {key} = {said}, and tokenizer.json has {field} = {own}: correct the one that is wrong"
            )));
        }
    }
    Ok(())
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

/// The template of a file of its own, or the one named `default` of several, or the only one.
fn template_of(files: &TokenizerFiles, config: &Json) -> Result<Option<String>> {
    let value = config.get("chat_template");
    if let Some(template) = files.get(TEMPLATE) {
        let text = std::str::from_utf8(template);
        let text = text
            .map_err(|error| Error::file(files.path_of(TEMPLATE), format!("not UTF-8: {error}")))?;
        return Ok(Some(text.to_owned()));
    }
    let json = files
        .get(JSON_TEMPLATE)
        .map(|content| Json::of_bytes(&files.path_of(JSON_TEMPLATE), content));
    let json = json.transpose()?;
    let value = json.as_ref().and_then(|json| json.get("chat_template")).or(value);
    let found = match value {
        None => return Ok(None),
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
