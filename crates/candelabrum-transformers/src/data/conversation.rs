//! A conversation as tokens, of which those of the answers count.
//!
//! Where an answer stands in the text of a conversation is found by the chat template alone: the text of the messages
//! before it, with the generation prompt, ends where the answer begins, and the text of the messages through it ends
//! where the answer ends. Some templates write earlier messages differently once others follow (Qwen 3 leaves out the
//! thoughts of earlier answers, Mistral moves the system message). There another content in its place shows what the
//! template writes around it. The words of an answer are not searched for: the template itself may have them.

use std::ops::Range;

use crate::{
    error::{Error, Result},
    tokenizer::{Conversation, MARK, Tokenizer, marked, role},
};

/// Tokens, and the places of those that a model is trained to write.
pub(super) struct MarkedTokens {
    pub(super) tokens: Vec<u32>,
    pub(super) answers: Vec<Range<usize>>,
}

/// Where an answer stands in the text of a conversation.
struct AnswerRange {
    bytes: Range<usize>,
    /// Whether the bytes have all that the template writes for the answer. Otherwise they end with what the model says.
    is_whole: bool,
}

/// A conversation by the tokenizer's chat template. Of each message of the role `assistant`, what a model writes counts:
/// the text and the special token behind it that ends the turn, without the spaces behind that. Where a template ends a
/// turn without a special token, all that the template writes for the message counts.
///
/// # Errors
/// No template, or one that refuses the messages. An answer that cannot be found in the text.
pub(super) fn conversation(
    tokenizer: &Tokenizer,
    conversation: &Conversation,
) -> Result<MarkedTokens> {
    let Conversation { messages, tools } = conversation;
    let text = tokenizer.text_of(messages, tools.as_ref(), false)?;
    let answers = answers(tokenizer, conversation, &text)?;
    let (tokens, offsets): (Vec<u32>, Vec<Range<usize>>) =
        tokenizer.encode_with_offsets(&text)?.into_iter().unzip();
    let answers = answers.into_iter().map(|AnswerRange { bytes, is_whole }| {
        let mut places = overlapping(&offsets, &bytes);
        // The token of the last character, or of the first one behind the content.
        let last = if is_whole {
            let said = text[..bytes.end].trim_end().len();
            offsets.iter().rposition(|token| token.start < said)
        } else {
            let behind = text[bytes.end..].trim_start();
            offsets.iter().position(|token| token.end > text.len() - behind.len())
        };
        if let Some(last) = last.filter(|last| tokenizer.is_special(tokens[*last])) {
            places.end = last + 1;
        }
        places
    });
    let answers = answers.collect();
    Ok(MarkedTokens { tokens, answers })
}

/// A text and how it goes on. What counts is the completion and the tokenizer's end token behind it.
///
/// # Errors
/// Those of [`Tokenizer::encode`].
pub(super) fn completion(
    tokenizer: &Tokenizer,
    prompt: &str,
    completion: &str,
) -> Result<MarkedTokens> {
    let text = [prompt, completion].concat();
    let mut tokens = tokenizer.leading()?;
    let leading = tokens.len();
    let (own, offsets): (Vec<u32>, Vec<Range<usize>>) =
        tokenizer.encode_with_offsets(&text)?.into_iter().unzip();
    tokens.extend(own);
    let mut places = overlapping(&offsets, &(prompt.len()..text.len()));
    places = places.start + leading..places.end + leading;
    if let Some(end) = tokenizer.end() {
        tokens.push(end);
        // Also where the completion is empty.
        places = if places.is_empty() { tokens.len() - 1 } else { places.start }..tokens.len();
    }
    Ok(MarkedTokens { tokens, answers: vec![places] })
}

/// The places of the tokens that have bytes in a range. A token that the range begins within is one of them: it has the
/// first characters of the answer. An empty range is before the first token behind it.
fn overlapping(offsets: &[Range<usize>], bytes: &Range<usize>) -> Range<usize> {
    let first = offsets.iter().position(|token| token.end > bytes.start).unwrap_or(offsets.len());
    let behind = offsets[first..].iter().position(|token| token.start >= bytes.end);
    first..behind.map_or(offsets.len(), |count| first + count)
}

/// Where the answers stand in the text of a conversation.
fn answers(
    tokenizer: &Tokenizer,
    conversation: &Conversation,
    text: &str,
) -> Result<Vec<AnswerRange>> {
    let Conversation { messages, tools } = conversation;
    // A template may refuse a part of a conversation.
    let begins = |end: usize, prompt: bool| {
        let part = tokenizer.text_of(&messages[..end], tools.as_ref(), prompt).ok();
        part.filter(|part| text.starts_with(part.as_str())).map(|part| part.len())
    };
    let is_answer = |place: &usize| role(&messages[*place]) == "assistant";
    (0..messages.len())
        .filter(is_answer)
        .map(|place| {
            // Without messages before it an answer has no prompt.
            let start = (place > 0).then(|| begins(place, true)).flatten();
            match (start, begins(place + 1, false)) {
                (Some(start), Some(end)) if start <= end => {
                    Ok(AnswerRange { bytes: start..end, is_whole: true })
                }
                _ => among_others(tokenizer, conversation, text, place, start),
            }
        })
        .collect()
}

/// Where an answer stands that the template writes differently when others follow: what the text has in the place of
/// [`MARK`] in the same conversation with this content. Where the generation prompt of the template does not lead to the
/// thoughts of an answer, they do not count.
///
/// # Errors
/// A template that writes other things differently, too.
fn among_others(
    tokenizer: &Tokenizer,
    conversation: &Conversation,
    text: &str,
    place: usize,
    start: Option<usize>,
) -> Result<AnswerRange> {
    let bytes = marked(&conversation.messages[place]).into_iter().find_map(|message| {
        let others = conversation.with(place, message);
        let others = tokenizer.text_of(&others, conversation.tools.as_ref(), false).ok()?;
        let (before, behind) = others.split_once(MARK)?;
        let start = start.or_else(|| text.starts_with(before).then_some(before.len()))?;
        let end = text.len().checked_sub(behind.len())?;
        (text.ends_with(behind) && start <= end && !behind.contains(MARK)).then_some(start..end)
    });
    let bytes = bytes.ok_or_else(|| {
        Error::argument(format!(
            "the chat template writes message {} (`assistant`) of {} in another way when others follow, and what is around \
             it, too: its tokens cannot be told apart",
            place + 1,
            conversation.messages.len()
        ))
    })?;
    Ok(AnswerRange { bytes, is_whole: false })
}

#[cfg(test)]
mod tests {
    use candle_core::quantized::gguf_file::Value;
    use minijinja::value::Serde;

    use super::*;
    use crate::tokenizer::{
        ChatMessage,
        templates::{CHATML, LLAMA_3, MISTRAL, QWEN_3, SMOLLM_2},
        tiny,
    };

    /// A tokenizer with a template, in which the names of special tokens are those of the tokenizer.
    fn tokenizer(template: &str) -> Tokenizer {
        let mut metadata = tiny::metadata("smollm");
        let template =
            template.replace("<|im_start|>", "<|start|>").replace("<|im_end|>", "<|stop|>");
        let template = template.replace("<|eot_id|>", "<|stop|>");
        metadata.insert("tokenizer.chat_template".into(), Value::String(template));
        Tokenizer::from_gguf("model.gguf", &metadata).unwrap()
    }

    /// The texts of the tokens that count, with the special tokens.
    fn counted(
        tokenizer: &Tokenizer,
        MarkedTokens { tokens, answers }: &MarkedTokens,
    ) -> Vec<String> {
        let text = |answer: &Range<usize>| {
            tokens[answer.clone()]
                .iter()
                .map(|&token| match tokenizer.is_special(token) {
                    true => tokenizer.token(token).unwrap(),
                    false => tokenizer.decode(&[token]).unwrap(),
                })
                .collect()
        };
        answers.iter().map(text).collect()
    }

    fn found(tokenizer: &Tokenizer, messages: &[ChatMessage]) -> Result<MarkedTokens> {
        let messages: Vec<minijinja::Value> =
            messages.iter().map(|message| Serde(message).into()).collect();
        conversation(tokenizer, &tokenizer.conversation(&messages, None, false)?)
    }

    fn long() -> [ChatMessage; 6] {
        [
            ChatMessage::system("Yes."),
            ChatMessage::user("Yes. or no?"),
            ChatMessage::assistant("Yes."),
            ChatMessage::user("Why?"),
            ChatMessage::assistant("<think>\nhm\n</think>\n\nhello."),
            ChatMessage::user("Bye."),
        ]
    }

    #[test]
    fn an_answer_counts_through_the_token_that_ends_its_turn() {
        let plain = tokenizer(
            "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}\
             {% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}",
        );
        let thought = "<think>\nhm\n</think>\n\nhello.";
        let all = |last: &str| ["Yes.<|stop|>".to_owned(), format!("{last}<|stop|>")];
        for (tokenizer, messages, expected) in [
            (tokenizer(CHATML), &long()[..], all(thought)),
            (tokenizer(SMOLLM_2), &long()[1..], all(thought)),
            (tokenizer(LLAMA_3), &long()[..], all(thought)),
            (tokenizer(MISTRAL), &long()[1..5], all(thought)),
            // Thoughts of earlier answers are left out.
            (tokenizer(QWEN_3), &long()[..], all("hello.")),
            (tokenizer(QWEN_3), &long()[..5], all(thought)),
            // No special token ends the turn.
            (plain, &long()[..], ["Yes.\n".to_owned(), format!("{thought}\n")]),
        ] {
            let counted = counted(&tokenizer, &found(&tokenizer, messages).unwrap());
            assert_eq!(counted, expected);
        }
    }

    #[test]
    fn a_template_may_move_the_system_message() {
        let moved = "{% for m in messages %}{% if m.role == 'user' %}{{ '[' }}{% if loop.last or messages[loop.index:]\
            | selectattr('role', 'equalto', 'user') | list | length == 0 %}{{ messages[0].content + ' ' }}{% endif %}\
            {{ m.content + ']' }}{% elif m.role == 'assistant' %}{{ m.content + eos_token }}{% endif %}{% endfor %}";
        let tokenizer = tokenizer(moved);
        let text = tokenizer.chat(&long()[..4], true).unwrap();
        assert_eq!(text, "[Yes. or no?]Yes.<|stop|>[Yes. Why?]");
        let before = tokenizer.encode("[Yes. or no?]", false).unwrap().len();
        // The question has the words of the first answer, and the template those of the second one.
        for (answer, expected) in [("Yes.", "Yes.<|stop|>"), ("]", "]<|stop|>"), ("", "<|stop|>")] {
            let mut messages = long();
            messages[2] = ChatMessage::assistant(answer);
            let found = found(&tokenizer, &messages[..4]).unwrap();
            assert_eq!(counted(&tokenizer, &found), [expected]);
            assert_eq!(found.answers[0].start, before);
        }
    }

    #[test]
    fn an_answer_that_is_written_otherwise_is_an_error() {
        // What the template makes of the words is what the model learns.
        let upper = "{% for m in messages %}{{ (m.content if loop.last else m.content | upper) + '|' }}{% endfor %}";
        let tokenizer_of_upper = tokenizer(upper);
        let answer = found(&tokenizer_of_upper, &long()[..4]).unwrap();
        assert_eq!(counted(&tokenizer_of_upper, &answer), ["YES."]);
        let length = "{% for m in messages %}{% if not loop.last %}{{ m.content | length }}{% endif %}\
            {{ m.content + '|' }}{% endfor %}";
        let message = found(&tokenizer(length), &long()[..4]).map(|_| ()).unwrap_err().to_string();
        assert!(
            message.starts_with(
                "the chat template writes message 3 (`assistant`) of 4 in another way"
            ),
            "{message}"
        );
        // The first message is an answer: there is no prompt before it.
        let tokenizer = tokenizer(LLAMA_3);
        let found = found(&tokenizer, &[ChatMessage::assistant(" hello ")]).unwrap();
        assert_eq!(counted(&tokenizer, &found), ["hello<|stop|>"]);
    }

    #[test]
    fn a_completion_counts_with_the_end_token() {
        let of = |tokenizer: &Tokenizer, prompt, text| {
            let MarkedTokens { tokens, answers } = completion(tokenizer, prompt, text).unwrap();
            assert_eq!(answers.len(), 1);
            (tokens, answers[0].clone())
        };
        let mut metadata = tiny::metadata("llama-bpe");
        let tokenizer = Tokenizer::from_gguf("model.gguf", &metadata).unwrap();
        assert_eq!(of(&tokenizer, "a ", "hello"), (vec![267, 64, 220, 259, 268], 3..5));
        // The first word of the answer has the space of the prompt.
        assert_eq!(of(&tokenizer, "a ", "wb"), (vec![267, 64, 264, 65, 268], 2..5));
        assert_eq!(of(&tokenizer, "a", ""), (vec![267, 64, 268], 2..3));
        metadata.remove("tokenizer.ggml.eos_token_id");
        let tokenizer = Tokenizer::from_gguf("model.gguf", &metadata).unwrap();
        assert_eq!(of(&tokenizer, "a", "b"), (vec![267, 64, 65], 2..3));
    }
}
