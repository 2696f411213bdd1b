//! The messages of a conversation as a chat template gets them.
//!
//! A template leaves out what it does not know without a word, and a model would learn from a conversation that was
//! another one. So each key of a message reaches the text, or is refused: the text without the key is another text. What
//! transformers changes before its template is changed here, too: a null is no key, and thoughts have several names.

use minijinja::{Value, value::ValueKind};

/// What stands for the content of a message where the text around it is searched for.
pub(crate) const MARK: &str = "\u{e000}\u{e001}\u{e002}";

/// The names of a message's thoughts. Templates read the first two.
const THOUGHTS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Keys that say to which call a message belongs. Many templates know that by the order.
const OF_CALLS: [&str; 2] = ["tool_call_id", "name"];

/// A template as a function of messages and tools.
pub(super) type Render<'a> = &'a dyn Fn(&[Value], Option<&Value>) -> Result<String, String>;

/// Messages and the tools that the model may call, each of which reaches the text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Option<Value>,
}

impl Conversation {
    /// # Errors
    /// What is no message or is not in the text of `render`: the place and the key. What the template refuses.
    pub(super) fn new(
        messages: &[Value],
        tools: Option<Value>,
        render: Render<'_>,
    ) -> Result<Self, String> {
        let messages = messages.iter().enumerate().map(|(place, message)| {
            without_nulls(message).map_err(|what| format!("message {}: {what}", place + 1))
        });
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        let tools = tools.filter(|tools| tools.is_true());
        let mut conversation = Self { messages, tools };
        conversation.check_parts(render)?;
        conversation.check_keys(render)?;
        Ok(conversation)
    }

    /// The messages with another one at this place.
    pub(crate) fn with(&self, place: usize, message: Value) -> Vec<Value> {
        let mut messages = self.messages.clone();
        messages[place] = message;
        messages
    }

    /// Replaces a content of one part by its text where the template does not know parts.
    fn check_parts(&mut self, render: Render<'_>) -> Result<(), String> {
        for place in 0..self.messages.len() {
            let message = &self.messages[place];
            let content = get(message, "content");
            if content.kind() != ValueKind::Seq {
                continue;
            }
            let text = |content: Value| {
                let message = with(message, "content", content);
                render(&self.with(place, message), self.tools.as_ref()).ok()
            };
            let parts = text(Value::from(vec![part(MARK)]));
            if parts.is_some() && parts == text(MARK.into()) {
                continue;
            }
            if content.len() != Some(1) {
                return Err(format!(
                    "message {}: the chat template does not know a content of several parts: write one text",
                    place + 1
                ));
            }
            let only = content.get_item_by_index(0).map(|part| get(&part, "text"));
            self.messages[place] = with(message, "content", only.unwrap_or_default());
        }
        Ok(())
    }

    fn check_keys(&self, render: Render<'_>) -> Result<(), String> {
        let special = (0..self.messages.len()).filter(|place| is_special(&self.messages[*place]));
        let special: Vec<usize> = special.collect();
        if special.is_empty() && self.tools.is_none() {
            return Ok(());
        }
        let whole = render(&self.messages, self.tools.as_ref())?;
        if self.tools.is_some() && render(&self.messages, None).ok().as_ref() == Some(&whole) {
            return Err("the chat template does not write `tools`: take a template that does, or remove them".into());
        }
        special.into_iter().try_for_each(|place| {
            self.check_message(place, &whole, render)
                .map_err(|what| format!("message {}: the chat template {what}", place + 1))
        })
    }

    /// # Errors
    /// What `whole`, the text of all messages, has not of the message at `place`, and what to do.
    fn check_message(&self, place: usize, whole: &str, render: Render<'_>) -> Result<(), String> {
        let (message, all) = (&self.messages[place], self.messages.len());
        let is_same = |others: Vec<Value>| {
            let text = |messages: &[Value]| render(messages, self.tools.as_ref()).ok();
            let less = all - others.len();
            // A template may write what others follow in another way: thoughts of an answer only while it is the last one, a
            // system message with the last question.
            let is_same_to = |end: usize| {
                end <= less || text(&others[..end - less]) == text(&self.messages[..end])
            };
            text(&others).as_deref() == Some(whole)
                && [place + 1, place + 2].into_iter().filter(|end| *end < all).all(is_same_to)
        };
        let content = get(message, "content");
        let is_in_text = |said: &str| !said.trim().is_empty() && whole.contains(said.trim());
        let is_left_out = || {
            is_same([&self.messages[..place], &self.messages[place + 1..]].concat())
                || content.is_true()
                    && is_same(self.with(place, with(message, "content", MARK.into())))
        };
        if !content.as_str().is_some_and(is_in_text) && is_left_out() {
            return Err(format!(
                "does not write what the role `{}` says: write it in another way, or take a template that writes it",
                role(message)
            ));
        }
        for key in more_keys(message) {
            let keys: &[&str] = if THOUGHTS.contains(&&*key) { &THOUGHTS } else { &[&key] };
            if is_same(self.with(place, without(message, keys))) {
                return Err(format!(
                    "does not write `{key}`: remove the key, or take a template that writes it"
                ));
            }
        }
        match twice_encoded(message, whole) {
            None => Ok(()),
            Some(arguments) => Err(format!(
                "writes the arguments of a call as a text in quotes, {arguments}: write them as an object"
            )),
        }
    }
}

/// Whether a message has more than a role that every template knows and a content.
fn is_special(message: &Value) -> bool {
    let is_known = matches!(&*role(message), "user" | "assistant");
    !more_keys(message).is_empty() || !is_known && get(message, "content").is_true()
}

/// The keys that say something beside the role and the content.
fn more_keys(message: &Value) -> Vec<String> {
    let is_of_call = |key: &str| role(message) == "tool" && OF_CALLS.contains(&key);
    let keys = keys(message).into_iter();
    keys.filter(|key| {
        let is_more = !matches!(&**key, "role" | "content") && !is_of_call(key);
        is_more && get(message, key).is_true()
    })
    .collect()
}

/// The arguments of a call that are a text and that `whole` has in quotes.
fn twice_encoded(message: &Value, whole: &str) -> Option<String> {
    let calls = get(message, "tool_calls").try_iter().ok()?;
    let arguments = calls.checked().filter_map(Result::ok).map(|call| {
        let function = get(&call, "function");
        get(if function.is_undefined() { &call } else { &function }, "arguments")
    });
    let quoted = |text: Value| Some(serde_json::Value::from(text.as_str()?).to_string());
    arguments.filter_map(quoted).find(|text| whole.contains(text.as_str()))
}

/// A message without its nulls.
///
/// # Errors
/// What is no message.
fn without_nulls(message: &Value) -> Result<Value, String> {
    if message.kind() != ValueKind::Map {
        return Err("no object with a role and a content".into());
    }
    let pairs = pairs(message).filter(|(_, value)| !value.is_none());
    let message = Value::from_pairs(pairs);
    if get(&message, "role").as_str().is_none() {
        return Err("missing the text `role`".into());
    }
    let content = get(&message, "content");
    match content.kind() {
        ValueKind::String => {}
        ValueKind::Seq => check_texts(&content)?,
        ValueKind::Undefined => {
            let is_empty = |key: &String| *key == "role" || OF_CALLS.contains(&&**key);
            if keys(&message).iter().all(is_empty) {
                return Err("missing the text `content`".into());
            }
        }
        _ => return Err(format!("the content is {content}, and no text")),
    }
    Ok(message)
}

/// # Errors
/// A part of a content that is no text.
fn check_texts(parts: &Value) -> Result<(), String> {
    let parts = parts.try_iter().map_err(|error| error.to_string())?;
    let is_text = |part: &Value| {
        let is = |key: &str| get(part, key).as_str().is_some();
        get(part, "type").as_str() == Some("text") && is("text") && keys(part).len() == 2
    };
    match parts.checked().filter_map(Result::ok).find(|part| !is_text(part)) {
        None => Ok(()),
        Some(part) => Err(format!(
            "a part of the content is {part}, and no {{\"type\": \"text\", \"text\": \"..\"}}"
        )),
    }
}

/// A message as transformers gives it to its template: thoughts have the names that templates read.
pub(super) fn with_names_of_thoughts(message: &Value) -> Value {
    let thoughts =
        THOUGHTS.map(|name| get(message, name)).into_iter().find(|value| !value.is_undefined());
    let Some(thoughts) = thoughts else { return message.clone() };
    let named = with(message, THOUGHTS[0], thoughts.clone());
    if get(&named, THOUGHTS[1]).is_undefined() {
        with(&named, THOUGHTS[1], thoughts)
    } else {
        named
    }
}

pub(crate) fn role(message: &Value) -> String {
    get(message, "role").as_str().unwrap_or_default().to_owned()
}

/// The value of a key, undefined if there is none.
fn get(message: &Value, key: &str) -> Value {
    message.get_attr(key).unwrap_or_default()
}

fn pairs(message: &Value) -> impl Iterator<Item = (Value, Value)> {
    let keys = message.try_iter().ok().into_iter().flatten();
    let message = message.clone();
    keys.map(move |key| (key.clone(), message.get_item(&key).unwrap_or_default()))
}

fn keys(message: &Value) -> Vec<String> {
    pairs(message).map(|(key, _)| key.to_string()).collect()
}

fn with(message: &Value, key: &str, value: Value) -> Value {
    let mut all: Vec<(Value, Value)> = pairs(message).collect();
    match all.iter_mut().find(|(other, _)| other.as_str() == Some(key)) {
        Some((_, old)) => *old = value,
        None => all.push((key.into(), value)),
    }
    Value::from_pairs(all)
}

fn without(message: &Value, keys: &[&str]) -> Value {
    Value::from_pairs(
        pairs(message).filter(|(key, _)| key.as_str().is_none_or(|key| !keys.contains(&key))),
    )
}

fn part(text: &str) -> Value {
    Value::from_pairs([("type", "text"), ("text", text)])
}

/// Messages with nothing but a role and a content that stands for any: of an answer with thoughts, also one with the same
/// thoughts.
pub(crate) fn marked(message: &Value) -> Vec<Value> {
    let content = get(message, "content");
    let content = content.as_str().unwrap_or_default();
    let said = content.rsplit_once("</think>").map(|(_, said)| said.trim_start());
    let thoughts = said.map(|said| &content[..content.len() - said.len()]);
    let marked = |before: &str| {
        Value::from_pairs([
            ("role", get(message, "role")),
            ("content", format!("{before}{MARK}").into()),
        ])
    };
    [""].into_iter().chain(thoughts).map(marked).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{chat::ChatTemplate, config::SpecialTokens};
    use super::*;

    /// With tools and calls, in the manner of Qwen's.
    const CALLS: &str = "{% if tools %}[{{ tools | tojson }}]{% endif %}{% for m in messages %}\
        {{ m.role }}:{{ m.content }}{% for call in m.tool_calls %}<{{ call.function.name }} \
        {{ call.function.arguments | tojson }}>{% endfor %}|{% endfor %}";
    const PLAIN: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}";
    const PARTS: &str = "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}\
        {% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}|{% endfor %}";

    const CALL: &str = r#"{"role": "assistant", "content": null, "tool_calls":
        [{"id": "c1", "type": "function", "function": {"name": "sum", "arguments": {"b": 1, "a": [2]}}}]}"#;
    const ASK: &str = r#"{"role": "user", "content": "1 + 2?"}"#;
    const RESULT: &str = r#"{"role": "tool", "tool_call_id": "c1", "name": "sum", "content": "3"}"#;
    const TOOLS: &str = r#"[{"type": "function", "function": {"name": "sum"}}]"#;

    /// The text of messages, whose error is that of a message or a key.
    fn text(template: &str, messages: &[&str], tools: &str) -> Result<String, String> {
        let template = ChatTemplate::new(template.to_owned(), &SpecialTokens::default());
        let render =
            |messages: &[Value], tools: Option<&Value>| template.render(messages, tools, false);
        let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let messages: Vec<Value> = messages.iter().map(|text| read(text)).collect();
        let Conversation { messages, tools } =
            Conversation::new(&messages, Some(read(tools)), &render)?;
        render(&messages, tools.as_ref())
    }

    #[test]
    fn calls_and_tools_reach_the_text_in_the_order_of_their_keys() {
        let text = text(CALLS, &[ASK, CALL, RESULT], TOOLS).unwrap();
        let expected = r#"[[{"type": "function", "function": {"name": "sum"}}]]user:1 + 2?|assistant:<sum {"b": 1, "a": [2]}>|tool:3|"#;
        assert_eq!(text, expected);
    }

    #[test]
    fn what_a_template_does_not_write_is_refused_by_its_key() {
        let silent = "{% for m in messages if not m.tool_calls and m.role != 'developer' %}{{ m.content }}{% endfor %}";
        let twice = CALL.replace(r#"{"b": 1, "a": [2]}"#, r#""{\"b\": 1}""#);
        for (template, messages, tools, expected) in [
            (
                PLAIN,
                &[ASK, CALL][..],
                "[]",
                "message 2: the chat template does not write `tool_calls`",
            ),
            (PLAIN, &[ASK], TOOLS, "does not write `tools`"),
            (
                silent,
                &[ASK, CALL],
                "[]",
                "message 2: the chat template does not write what the role `assistant`",
            ),
            (
                silent,
                &[r#"{"role": "developer", "content": "Be brief."}"#, ASK],
                "[]",
                "message 1: the chat template does not write what the role `developer`",
            ),
            (
                PLAIN,
                &[r#"{"role": "assistant", "content": "a", "reasoning_content": "b"}"#],
                "[]",
                "does not write `reasoning_content`",
            ),
            (PLAIN, &[r#"{"role": "user", "content": "a", "weight": 2}"#], "[]", "`weight`"),
            (CALLS, &[ASK, &twice], "[]", "as a text in quotes"),
            (
                PLAIN,
                &[r#"{"role": "user", "content": [{"type": "image", "image": "a"}]}"#],
                "[]",
                "message 1: a part of the content is",
            ),
            (
                PLAIN,
                &[
                    r#"{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}"#,
                ],
                "[]",
                "message 1: the chat template does not know a content of several parts",
            ),
        ] {
            let error = text(template, messages, tools).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn what_says_nothing_is_left_out() {
        let nothing =
            r#"{"role": "user", "content": "a", "tool_calls": [], "name": null, "prefix": false}"#;
        assert_eq!(text(PLAIN, &[nothing], "[]").unwrap(), "user:a|");
        assert_eq!(text(PLAIN, &[ASK, RESULT], "null").unwrap(), "user:1 + 2?|tool:3|");
    }

    #[test]
    fn parts_of_a_content_are_their_texts() {
        let one = r#"{"role": "user", "content": [{"type": "text", "text": "a"}]}"#;
        let two = r#"{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}"#;
        assert_eq!(text(PLAIN, &[one], "[]").unwrap(), "user:a|");
        assert_eq!(text(PARTS, &[one, two], "[]").unwrap(), "user:a|user:ab|");
    }

    #[test]
    fn thoughts_have_the_names_that_templates_read() {
        let thinks = "{% for m in messages %}{{ m.reasoning_content }}{{ m.thinking }}{{ m.content }}{% endfor %}";
        for name in THOUGHTS {
            let message = format!(r#"{{"role": "assistant", "content": "a", "{name}": "b"}}"#);
            assert_eq!(text(thinks, &[&message], "[]").unwrap(), "bba", "{name}");
        }
        // A template may leave out those of an answer that is followed by others.
        let last = "{% for m in messages %}{{ m.content }}{% if loop.last %}{{ m.thinking }}{% endif %}{% endfor %}";
        let message = r#"{"role": "assistant", "content": "a", "thinking": "b"}"#;
        assert_eq!(text(last, &[message, ASK], "[]").unwrap(), "a1 + 2?");
    }

    #[test]
    fn a_template_may_write_a_system_message_with_the_last_question() {
        let last = "{% for m in messages if m.role != 'system' %}{% if loop.last and m.role == 'user' %}\
            {{ messages[0].content }} {% endif %}{{ m.content }}{% endfor %}";
        let system = r#"{"role": "system", "content": "Be brief."}"#;
        let answer = r#"{"role": "assistant", "content": "3"}"#;
        assert_eq!(text(last, &[system, ASK, answer], "[]").unwrap(), "1 + 2?3");
        assert_eq!(text(last, &[system, ASK], "[]").unwrap(), "Be brief. 1 + 2?");
    }
}
