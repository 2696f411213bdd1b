//! Conversations as one text, by the template that a model was trained with.
//!
//! A template is a program in the language Jinja. Hugging Face's Python runs templates by Jinja2 with a few additions
//! (`_compile_jinja_template` of transformers), and minijinja is set up here in the same way.

use std::{fmt, sync::OnceLock};

use minijinja::{
    AutoEscape, Environment, ErrorKind, Value,
    syntax::SyntaxConfig,
    value::{Kwargs, ValueKind},
};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::{Deserialize, Serialize};

use super::{config::SpecialTokens, messages::with_names_of_thoughts};

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// Who speaks: `system`, `user` or `assistant`. A template may know other roles.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl ChatMessage {
    /// What holds for the whole conversation.
    pub fn system(content: impl Into<String>) -> Self {
        Self { role: "system".into(), content: content.into() }
    }

    /// A question or a request.
    pub fn user(content: impl Into<String>) -> Self {
        Self { role: "user".into(), content: content.into() }
    }

    /// An answer of the model.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self { role: "assistant".into(), content: content.into() }
    }
}

/// The name of the template in messages.
const NAME: &str = "chat_template";

/// A chat template with the values of its variables.
pub(super) struct ChatTemplate {
    source: String,
    /// The special tokens by their names, such as `bos_token`.
    tokens: Vec<(&'static str, String)>,
    /// Compiled at the first conversation, so a model whose template has a fault is of use for other texts.
    compiled: OnceLock<Result<Environment<'static>, String>>,
}

impl ChatTemplate {
    pub(super) fn new(source: String, tokens: &SpecialTokens) -> Self {
        let tokens = tokens.iter().map(|(name, token)| (name, token.to_owned())).collect();
        Self { source, tokens, compiled: OnceLock::new() }
    }

    /// # Errors
    /// What is wrong with the template or, if the template refuses them, with the messages.
    pub(super) fn render(
        &self,
        messages: &[Value],
        tools: Option<&Value>,
        add_generation_prompt: bool,
    ) -> Result<String, String> {
        let compiled = self.compiled.get_or_init(|| compile(&self.source).map_err(explained));
        let environment = compiled.as_ref().map_err(String::clone)?;
        let messages: Vec<Value> = messages.iter().map(with_names_of_thoughts).collect();
        let none = || Value::from(());
        let mut variables = vec![
            ("messages", Value::from(messages)),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            ("tools", tools.cloned().unwrap_or_else(none)),
            ("documents", none()),
        ];
        variables
            .extend(self.tokens.iter().map(|(name, token)| (*name, Value::from(token.as_str()))));
        let template = environment.get_template(NAME).map_err(explained)?;
        template.render(Value::from_pairs(variables)).map_err(explained)
    }
}

fn compile(source: &str) -> Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", to_json);
    // As in Python: a text and a map have a length and items, and nothing is in None.
    let kinds = [ValueKind::Seq, ValueKind::Map, ValueKind::String, ValueKind::Undefined];
    environment.add_test("sequence", move |value: &Value| kinds.contains(&value.kind()));
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_template_owned(NAME, without_generation(source))?;
    Ok(environment)
}

/// A template with `if true` in the place of `generation`, a tag of transformers that marks the answers and writes
/// nothing.
fn without_generation(source: &str) -> String {
    let mut written = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, after)) = rest.split_once("{%")
        && let Some((tag, behind)) = after.split_once("%}")
    {
        let statement = tag.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let tag = match statement {
            "generation" => tag.replace(statement, "if true"),
            "endgeneration" => tag.replace(statement, "endif"),
            _ => tag.to_owned(),
        };
        written.extend([before, "{%", &tag, "%}"]);
        rest = behind;
    }
    written + rest
}

/// The message of a template that refuses the messages.
#[derive(Debug)]
struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

fn raise_exception(message: String) -> Result<Value, minijinja::Error> {
    let error = minijinja::Error::new(ErrorKind::InvalidOperation, message.clone());
    Err(error.with_source(Refused(message)))
}

/// What an error of minijinja says to a user.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn explained(error: minijinja::Error) -> String {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(current) = cause {
        if let Some(Refused(message)) = current.downcast_ref() {
            return format!("the chat template refuses these messages: {message}");
        }
        cause = current.source();
    }
    format!("the chat template fails: {error}")
}

/// The time in this form, as Python's `datetime.now().strftime`.
fn strftime_now(format: String) -> Result<String, minijinja::Error> {
    jiff::fmt::strtime::format(format, &jiff::ZonedDateTime::now())
        .map_err(|error| minijinja::Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

/// A value as Python's `json.dumps` writes it: minijinja's own filter is for HTML.
#[expect(clippy::needless_pass_by_value, reason = "minijinja passes options by value")]
fn to_json(value: &Value, options: Kwargs) -> Result<String, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let (comma, colon) = match separators.as_deref() {
        Some([comma, colon]) => (comma.clone(), colon.clone()),
        Some(_) => {
            let what = "the separators of tojson are two texts";
            return Err(minijinja::Error::new(ErrorKind::InvalidOperation, what));
        }
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
    };
    let json = JsonFormat {
        comma,
        colon,
        indent,
        is_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        is_sorted: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let mut written = String::new();
    json.write(value, 0, &mut written)?;
    Ok(written)
}

struct JsonFormat {
    comma: String,
    colon: String,
    indent: Option<usize>,
    is_ascii: bool,
    is_sorted: bool,
}

impl JsonFormat {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), minijinja::Error> {
        match value.kind() {
            ValueKind::None | ValueKind::Undefined => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&value.to_string()),
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
                if self.is_sorted {
                    keys.sort();
                }
                self.bracketed(['{', '}'], keys.into_iter(), depth, out, |key, out| {
                    self.string(&key.to_string(), out);
                    out.push_str(&self.colon);
                    self.write(&value.get_item(&key)?, depth + 1, out)
                })?;
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
                self.bracketed(['[', ']'], items.into_iter(), depth, out, |item, out| {
                    self.write(&item, depth + 1, out)
                })?;
            }
            _ => self.string(&value.to_string(), out),
        }
        Ok(())
    }

    fn bracketed(
        &self,
        [open, close]: [char; 2],
        items: impl ExactSizeIterator<Item = Value>,
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(Value, &mut String) -> Result<(), minijinja::Error>,
    ) -> Result<(), minijinja::Error> {
        let is_empty = items.len() == 0;
        let new_line = |depth: usize, out: &mut String| {
            if let Some(indent) = self.indent.filter(|_| !is_empty) {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', indent * depth));
            }
        };
        out.push(open);
        for (place, item) in items.enumerate() {
            if place > 0 {
                out.push_str(&self.comma);
            }
            new_line(depth + 1, out);
            write(item, out)?;
        }
        new_line(depth, out);
        out.push(close);
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String) {
        let quoted = serde_json::Value::from(text).to_string();
        if !self.is_ascii {
            out.push_str(&quoted);
            return;
        }
        for c in quoted.chars() {
            if c.is_ascii() {
                out.push(c);
            } else {
                let units = &mut [0; 2];
                out.extend(c.encode_utf16(units).iter().map(|unit| format!("\\u{unit:04x}")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use minijinja::value::Serde;

    use super::*;
    use crate::tokenizer::templates::{CHATML, LLAMA_3, MISTRAL, QWEN_2, QWEN_3, SMOLLM_2, TAGS};

    fn render(template: &str, messages: &[ChatMessage], prompt: bool) -> Result<String, String> {
        let messages: Vec<Value> = messages.iter().map(|message| Serde(message).into()).collect();
        let tokens = vec![("bos_token", "<s>".to_owned()), ("eos_token", "</s>".to_owned())];
        let compiled = OnceLock::new();
        ChatTemplate { source: template.into(), tokens, compiled }.render(&messages, None, prompt)
    }

    /// The expected texts are those of `render_jinja_template` in transformers 5.24.
    #[test]
    fn templates_write_what_transformers_writes() {
        let short = [ChatMessage::user(" Hi <b> ")];
        let long = [
            ChatMessage::system("Be brief."),
            ChatMessage::user("One?"),
            ChatMessage::assistant("<think>\nhm\n</think>\n\nUn."),
            ChatMessage::user("Two?"),
            ChatMessage::assistant("Deux.\n"),
        ];
        let cases = [
            (
                CHATML,
                "<|im_start|>user\n Hi <b> <|im_end|>\n<|im_start|>assistant\n",
                "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\nUn.<|im_end|>\n<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\nDeux.\n<|im_end|>\n",
            ),
            (
                LLAMA_3,
                "<s><|start_header_id|>user<|end_header_id|>\n\nHi <b><|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
                "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nOne?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n<think>\nhm\n</think>\n\nUn.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nTwo?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nDeux.<|eot_id|>",
            ),
            (
                MISTRAL,
                "<s>[INST]  Hi <b>  [/INST]",
                "<s>[INST] One? [/INST]<think>\nhm\n</think>\n\nUn.</s> [INST] Two? [/INST]Deux.\n</s> ",
            ),
            (
                QWEN_2,
                "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n Hi <b> <|im_end|>\n<|im_start|>assistant\n",
                "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\nUn.<|im_end|>\n<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\nDeux.\n<|im_end|>\n",
            ),
            (
                QWEN_3,
                "<|im_start|>user\n Hi <b> <|im_end|>\n<|im_start|>assistant\n",
                "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\nUn.<|im_end|>\n<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nDeux.\n<|im_end|>\n",
            ),
            (
                SMOLLM_2,
                "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n<|im_start|>user\n Hi <b> <|im_end|>\n<|im_start|>assistant\n",
                "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\nUn.<|im_end|>\n<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\nDeux.\n<|im_end|>\n",
            ),
            (
                TAGS,
                " Hi <b> \nb=[1, 2.5, None],[1, 2.5, null]\na=True,true\n{\"é\": \"<&'\\n>\", \"a\": []} {\n  \"a\": {},\n  \"b\": [\n    1\n  ]\n} [\"\\u00e9\\ud83d\\ude00\",1]",
                "Be brief.\nb=[1, 2.5, None],[1, 2.5, null]\na=True,true\n{\"é\": \"<&'\\n>\", \"a\": []} {\n  \"a\": {},\n  \"b\": [\n    1\n  ]\n} [\"\\u00e9\\ud83d\\ude00\",1]",
            ),
        ];
        for (template, expected_short, expected_long) in cases {
            assert_eq!(render(template, &short, true).unwrap(), expected_short);
            let long = if template == MISTRAL { &long[1..] } else { &long[..] };
            assert_eq!(render(template, long, false).unwrap(), expected_long);
        }
    }

    #[test]
    fn a_template_that_fails_says_why() {
        let error =
            |template: &str| render(template, &[ChatMessage::system("x")], true).unwrap_err();
        let expected = "the chat template refuses these messages: Conversation roles must alternate \
            user/assistant/user/assistant/...";
        assert_eq!(error(MISTRAL), expected);
        let expected =
            "the chat template fails: unknown filter: filter shout is unknown (in chat_template:2)";
        assert_eq!(error("\n{{ messages | shout }}"), expected);
        assert!(error("{% if %}").starts_with("the chat template fails: syntax error: "));
        assert!(
            error("{{ 1 | tojson(separators=[1]) }}").ends_with("two texts (in chat_template:1)")
        );
        assert!(error("{{ strftime_now('%!') }}").starts_with("the chat template fails: "));
    }

    #[test]
    fn a_template_knows_the_year() {
        let year = render("{{ strftime_now('%Y-%b') }}", &[], true).unwrap();
        assert!(year.starts_with("20") && year.len() == 8, "{year}");
    }

    #[test]
    fn values_are_of_pythons_kinds() {
        let template = "{{ tools is iterable }} {{ 'x' is sequence }} {{ messages[0] is sequence }} {{ 1 is sequence }}";
        let expected = "False True True False";
        assert_eq!(render(template, &[ChatMessage::user("x")], true).unwrap(), expected);
    }
}
