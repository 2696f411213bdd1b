//! Conversations for fine-tuning, of which only the answers have targets.

use std::{ops::Range, path::Path, sync::Arc};

use candelabrum_datasets::{
    Batch, DataFault, DataPlace, Dataset, Error as DataError, Pass, hexadecimal,
};
use minijinja::{Value, value::ValueKind};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::{
    conversation::{MarkedTokens, completion, conversation},
    rows::{check_count, padded, read_text},
};
use crate::{
    error::{Error, Result},
    models::IGNORED,
    tokenizer::Tokenizer,
};

/// Conversations, or prompts with their completions, as the tokens of a pretrained model.
///
/// The targets are the tokens one place later. Those that are not written by the model are [`IGNORED`]: of a
/// conversation, all but the answers and the special tokens that end them, and of a prompt with a completion, the prompt.
///
/// The tokens are in memory, with 4 bytes each.
#[derive(Debug, Clone)]
pub struct Chats {
    samples: Arc<[ChatSample]>,
    /// Those that belong to this part.
    part: Range<usize>,
    longest: usize,
    padding: u32,
    cut: usize,
    /// Numbers of lines.
    left_out: Arc<[usize]>,
    sha256: String,
    ignored: Arc<[String]>,
    tokenizer: Tokenizer,
}

#[derive(Debug)]
struct ChatSample {
    /// At least two.
    tokens: Box<[u32]>,
    /// The places of the tokens that count. The first token is not among them.
    answers: Box<[Range<usize>]>,
}

impl Chats {
    /// Conversations in a file of JSON lines. A line is `{"messages": [{"role": "user", "content": ".."}, ..]}` or
    /// `{"prompt": "..", "completion": ".."}`. Empty lines are left out. Conversations are written by the tokenizer's chat
    /// template. The completion of a prompt gets the tokenizer's [end token](Tokenizer::end).
    ///
    /// A message may have what the template knows besides: `tool_calls`, `reasoning_content`, a content of parts
    /// `{"type": "text", "text": ".."}`, or no content beside its calls. A line of messages may have `tools`, a list of the
    /// functions that the model may call. Any other key, and one that the template does not write, is an error: see
    /// [`open_ignoring`](Self::open_ignoring).
    ///
    /// A sample has at most `longest` inputs. What is longer is cut at the end. Where no answer is left, the line is
    /// [left out](Self::left_out).
    ///
    /// # Errors
    /// A file that cannot be read, a length of 0, no samples. A line that is not one of these, or whose messages the
    /// template refuses or does not write: the file and the line.
    ///
    /// # Cost
    /// All threads tokenise all lines.
    pub fn open(path: impl AsRef<Path>, tokenizer: &Tokenizer, longest: usize) -> Result<Self> {
        Self::open_ignoring(path, tokenizer, longest, [])
    }

    /// [`open`](Self::open), where the keys `ignored` of lines and messages are left out.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_ignoring(
        path: impl AsRef<Path>,
        tokenizer: &Tokenizer,
        longest: usize,
        ignored: impl IntoIterator<Item = String>,
    ) -> Result<Self> {
        let (path, ignored) = (path.as_ref(), Arc::<[String]>::from_iter(ignored));
        if longest == 0 {
            return Err(Error::argument(
                "conversations of 0 tokens: the length must be at least 1",
            ));
        }
        let text = read_text(path)?;
        let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
        let lines: Vec<(usize, &str)> = lines.collect();
        let read = lines.par_iter().map(|&(number, line)| {
            let counted = counted(line, tokenizer, &ignored);
            Ok((number, counted.map_err(|what| at_line(path, number, what))?))
        });
        // The error of the first line that has one, whatever the order of the threads.
        let read: Vec<Result<(usize, MarkedTokens)>> = read.collect();
        let (mut samples, mut left_out, mut cut) = (Vec::new(), Vec::new(), 0);
        for read in read {
            let (number, counted) = read?;
            cut += usize::from(counted.tokens.len() > longest + 1);
            match ChatSample::of(counted, longest) {
                Some(sample) => samples.push(sample),
                None => left_out.push(number),
            }
        }
        if samples.is_empty() {
            let what = format!("no line with an answer within {longest} tokens");
            return Err(Error::file(path, what));
        }
        check_count(samples.len())?;
        Ok(Self {
            part: 0..samples.len(),
            samples: samples.into(),
            longest,
            // The targets of the padding do not count, so any token will do.
            padding: tokenizer.padding().or(tokenizer.end()).unwrap_or(0),
            cut,
            left_out: left_out.into(),
            sha256: hexadecimal(&Sha256::digest(&text)),
            ignored,
            tokenizer: tokenizer.clone(),
        })
    }

    /// A part for training and, behind it, one for tests with this share of the conversations.
    ///
    /// # Errors
    /// A share that leaves a part empty.
    pub fn split(&self, test_share: f64) -> Result<(Self, Self)> {
        let count = self.part.len();
        let tests = (count as f64 * test_share).round().max(1.0);
        if !(test_share > 0.0 && tests < count as f64) {
            return Err(Error::argument(format!(
                "a test share of {test_share} of {count} conversations leaves one of both parts empty"
            )));
        }
        let end = self.part.end - tests as usize;
        let part = |part| Self { part, ..self.clone() };
        Ok((part(self.part.start..end), part(end..self.part.end)))
    }

    /// The numbers of the lines, counted from 1, that have no answer, or none within the longest length.
    pub fn left_out(&self) -> &[usize] {
        &self.left_out
    }

    /// The number of lines whose end is cut off, those that are left out included.
    pub fn cut(&self) -> usize {
        self.cut
    }

    /// The number of tokens with a target that counts.
    pub fn counted(&self) -> usize {
        let samples = self.samples[self.part.clone()].iter();
        samples.flat_map(|sample| sample.answers.iter().map(Range::len)).sum()
    }
}

impl ChatSample {
    /// `None` if no token counts.
    fn of(MarkedTokens { mut tokens, answers }: MarkedTokens, longest: usize) -> Option<Self> {
        tokens.truncate(longest.saturating_add(1));
        let kept =
            answers.into_iter().map(|answer| answer.start.max(1)..answer.end.min(tokens.len()));
        let answers: Box<[_]> = kept.filter(|answer| !answer.is_empty()).collect();
        (!answers.is_empty()).then(|| Self { tokens: tokens.into(), answers })
    }

    fn inputs(&self) -> &[u32] {
        &self.tokens[..self.tokens.len() - 1]
    }

    fn targets(&self) -> Vec<i64> {
        let mut targets = vec![IGNORED; self.tokens.len() - 1];
        for place in self.answers.iter().cloned().flatten() {
            targets[place - 1] = self.tokens[place].into();
        }
        targets
    }
}

impl Dataset for Chats {
    type Batch = Batch;

    fn len(&self) -> usize {
        self.part.len()
    }

    /// # Shapes
    /// Inputs (B, T), u32, and targets (B, T), i64. T is the length of the longest sample in the batch.
    fn read(&self, samples: &[u32], _: &Pass) -> Result<Batch, DataError> {
        let (mut xs, mut ys) = (Vec::new(), Vec::new());
        for &sample in samples {
            let (sample, len) = (sample as usize, self.len());
            let found = self.samples[self.part.clone()]
                .get(sample)
                .ok_or(DataError::NoSuchSample { sample, len })?;
            xs.push(found.inputs().to_vec());
            ys.push(found.targets());
        }
        Ok(Batch { xs: padded(&xs, self.padding)?, ys: padded(&ys, IGNORED)? })
    }

    /// # Cost
    /// The first call reads all files of the tokenizer.
    fn fingerprint(&self) -> Result<String, DataError> {
        let Self { sha256, longest, part, ignored, .. } = self;
        let tokenizer = self.tokenizer.digest();
        let without = match ignored.is_empty() {
            true => String::new(),
            false => format!(", without {}", ignored.join(", ")),
        };
        Ok(format!(
            "chats {part:?} of {sha256}, at most {longest} tokens of tokenizer {tokenizer}{without}"
        ))
    }
}

/// The tokens of a line.
fn counted(line: &str, tokenizer: &Tokenizer, ignored: &[String]) -> Result<MarkedTokens, String> {
    let line: Value = serde_json::from_str(line).map_err(|error| format!("no JSON: {error}"))?;
    let line = without(&line, ignored);
    let [messages, tools, prompt, completed] = ["messages", "tools", "prompt", "completion"]
        .map(|key| line.get_attr(key).unwrap_or_default());
    let counted = if messages.kind() == ValueKind::Seq {
        refuse_others(&line, &["messages", "tools"])?;
        if !matches!(tools.kind(), ValueKind::Seq | ValueKind::None | ValueKind::Undefined) {
            return Err("tools: no list of functions".into());
        }
        let messages = items(&messages)?;
        let messages: Vec<Value> =
            messages.iter().map(|message| without(message, ignored)).collect();
        let conversed = tokenizer.conversation(&messages, Some(tools), false);
        conversed.and_then(|conversed| conversation(tokenizer, &conversed))
    } else if let (Some(prompt), Some(text)) = (prompt.as_str(), completed.as_str()) {
        refuse_others(&line, &["prompt", "completion"])?;
        completion(tokenizer, prompt, text)
    } else {
        return Err("neither a list `messages` nor the texts `prompt` and `completion`".into());
    };
    counted.map_err(|error| error.to_string())
}

/// An object without some of its keys.
fn without(object: &Value, keys: &[String]) -> Value {
    if keys.is_empty() || object.kind() != ValueKind::Map {
        return object.clone();
    }
    let is_kept =
        |key: &Value| key.as_str().is_none_or(|key| !keys.iter().any(|other| other == key));
    let kept = items(object).unwrap_or_default().into_iter().filter(is_kept);
    Value::from_pairs(kept.map(|key| (key.clone(), object.get_item(&key).unwrap_or_default())))
}

/// The values of a list, or the keys of an object.
fn items(value: &Value) -> Result<Vec<Value>, String> {
    let items = value.try_iter().and_then(|items| items.checked().collect());
    items.map_err(|error: minijinja::Error| error.to_string())
}

/// # Errors
/// A key of the line that is not `known`.
fn refuse_others(line: &Value, known: &[&str]) -> Result<(), String> {
    let is_other = |key: &&Value| {
        let is_null = line.get_item(key).is_ok_and(|value| value.is_none());
        !is_null && key.as_str().is_none_or(|key| !known.contains(&key))
    };
    match items(line)?.iter().find(is_other) {
        None => Ok(()),
        Some(key) => Err(format!(
            "has the key `{key}`, which is not read: remove the key, or name it in `Chats::open_ignoring` (finetune_llm has \
             `--ignore {key}`)"
        )),
    }
}

fn at_line(path: &Path, line: usize, what: String) -> Error {
    let place = DataPlace { line: Some(line as u64), ..path.into() };
    DataError::Data { fault: DataFault::Corrupt, place, what }.into()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::tokenizer::tiny;

    fn open(lines: &str, longest: usize) -> Result<Chats> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chats.jsonl");
        fs::write(&path, lines).unwrap();
        let tokenizer = Tokenizer::from_gguf("model.gguf", &tiny::metadata("smollm")).unwrap();
        Chats::open(path, &tokenizer, longest)
    }

    const TWO: &str = r#"{"messages": [{"role": "u", "content": "b"}, {"role": "assistant", "content": "hello"}]}

{"prompt": "a", "completion": "b"}
"#;

    #[test]
    fn what_the_model_does_not_write_has_no_target() {
        let data = open(TWO, 100).unwrap();
        let Batch { xs, ys } = data.read(&[1, 0], &Pass::evaluation()).unwrap();
        let [xs, ys] = [xs.to_dtype(candle_core::DType::I64).unwrap(), ys]
            .map(|t| t.to_vec2::<i64>().unwrap());
        // <|start|>u\nb<|stop|>\n<|start|>assistant\nhello<|stop|>\n
        let assistant = [64, 82, 82, 72, 82, 83, 64, 77, 83];
        let conversation =
            [&[267, 84, 198, 65, 268, 198, 267][..], &assistant, &[198, 259, 268]].concat();
        let padding = vec![266; conversation.len() - 2];
        assert_eq!(xs, [[&[64, 65][..], &padding].concat(), conversation]);
        let rows = [
            [&[65, 268][..], &[IGNORED; 17]].concat(),
            [&[IGNORED; 16][..], &[259, 268, IGNORED]].concat(),
        ];
        assert_eq!(ys, rows);
        assert_eq!((data.len(), data.counted(), data.cut()), (2, 4, 0));
        assert!(data.left_out().is_empty());
        let empty = data.read(&[], &Pass::evaluation()).unwrap();
        assert_eq!((empty.xs.dims(), empty.ys.dtype()), (&[0, 1][..], candle_core::DType::I64));
        assert!(matches!(
            data.read(&[2], &Pass::evaluation()),
            Err(DataError::NoSuchSample { sample: 2, len: 2 })
        ));
    }

    #[test]
    fn parts_have_the_samples_of_the_whole() {
        let whole = open(TWO, 100).unwrap();
        let (train, test) = whole.split(0.1).unwrap();
        assert_eq!((train.len(), test.len()), (1, 1));
        assert_eq!(train.counted() + test.counted(), whole.counted());
        let ys = |data: &Chats, sample| {
            data.read(&[sample], &Pass::evaluation()).unwrap().ys.to_vec2::<i64>().unwrap()
        };
        assert_eq!((ys(&train, 0), ys(&test, 0)), (ys(&whole, 0), ys(&whole, 1)));
        assert!(matches!(
            test.read(&[1], &Pass::evaluation()),
            Err(DataError::NoSuchSample { sample: 1, len: 1 })
        ));
        assert_ne!(train.fingerprint().unwrap(), whole.fingerprint().unwrap());
        let message = train.split(0.5).unwrap_err().to_string();
        assert!(message.contains("0.5 of 1 conversations"), "{message}");
    }

    #[test]
    fn long_conversations_are_cut_and_those_without_answers_left_out() {
        let data = open(TWO, 17).unwrap();
        let Batch { xs, ys } = data.read(&[0], &Pass::evaluation()).unwrap();
        assert_eq!((xs.dims(), ys.dims()), (&[1, 17][..], &[1, 17][..]));
        assert_eq!((data.counted(), data.cut()), (1 + 2, 1));
        let data = open(TWO, 16).unwrap();
        assert_eq!((data.len(), data.left_out(), data.cut()), (1, &[1][..], 1));
        let asked = r#"{"messages": [{"role": "user", "content": "a"}]}"#;
        let data = open(&format!("{asked}\n{TWO}{asked}"), 100).unwrap();
        assert_eq!((data.len(), data.left_out()), (2, &[1, 5][..]));
        let message = open(asked, 100).unwrap_err().to_string();
        assert!(
            message.ends_with("chats.jsonl: no line with an answer within 100 tokens"),
            "{message}"
        );
    }

    #[test]
    fn malformed_lines_are_named() {
        for (line, expected) in [
            ("{", "no JSON: EOF while parsing"),
            ("[]", "neither a list `messages` nor the texts `prompt` and `completion`"),
            (r#"{"prompt": "a"}"#, "neither a list `messages` nor the texts"),
            (r#"{"messages": [{"role": "user"}]}"#, "message 1: missing the text `content`"),
            (
                r#"{"messages": [{"role": "user", "content": null}]}"#,
                "message 1: missing the text `content`",
            ),
            (r#"{"messages": [{"content": "a"}]}"#, "message 1: missing the text `role`"),
            (r#"{"messages": [{"role": "user", "content": 3}]}"#, "the content is 3"),
            (r#"{"messages": ["a"]}"#, "message 1: no object"),
            (r#"{"prompt": "a", "completion": "b", "weight": 2}"#, "has the key `weight`"),
            (
                r#"{"messages": [{"role": "user", "content": "a"}], "system": "b"}"#,
                "`--ignore system`",
            ),
            (
                r#"{"messages": [{"role": "user", "content": "a"}], "tools": "[]"}"#,
                "tools: no list",
            ),
            (r#"{"messages": []}"#, "a conversation without messages"),
        ] {
            let message = open(&format!("{TWO}{line}\n{{\n"), 100).unwrap_err().to_string();
            assert!(
                message.contains("chats.jsonl, line 4: ") && message.contains(expected),
                "{message}"
            );
        }
        assert!(open(TWO, 0).unwrap_err().to_string().starts_with("conversations of 0 tokens"));
    }

    #[test]
    fn the_fingerprint_shows_every_difference() {
        let of = |lines: &str, longest| open(lines, longest).unwrap().fingerprint().unwrap();
        assert_eq!(of(TWO, 100), of(TWO, 100));
        let others = [of(&TWO.replace("hello", "hell"), 100), of(TWO, 99)];
        assert!(!others.contains(&of(TWO, 100)));
    }
}
