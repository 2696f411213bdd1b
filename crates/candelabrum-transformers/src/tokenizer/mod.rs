//! The tokenizer of a pretrained model: its folder's `tokenizer.json`, or the metadata of a GGUF file.
//!
//! The files that a tokenizer was read from stay in memory. So [`Tokenizer::save`] writes them byte for byte, and
//! Python's transformers opens the folder of a model that was trained here.

mod chat;
mod config;
mod files;
mod gguf;
mod messages;
#[cfg(test)]
pub(crate) mod templates;
#[cfg(test)]
pub(crate) mod tiny;

use std::{
    collections::HashMap,
    fmt,
    ops::Range,
    path::Path,
    sync::{Arc, OnceLock},
};

use candle_core::quantized::gguf_file::Value;
use minijinja::{Value as JinjaValue, value::Serde};
use serde::Serialize;
use tokenizers::{Encoding, Model, OffsetType, PostProcessor, PreTokenizer, TruncationDirection};

pub use self::chat::ChatMessage;
pub(crate) use self::messages::{Conversation, MARK, marked, role};
use self::{
    chat::ChatTemplate,
    config::{Config, NewToken, SpecialTokens},
    files::{TOKENIZER, TokenizerFiles},
};
use crate::{
    config::Config as ModelConfig,
    error::{Error, Result},
    models::pad_token_id,
    new_files::NewFiles,
    weights::GgufFile,
};

/// The tokenizer of a pretrained model.
///
/// Clones share everything, and threads may use one tokenizer at the same time.
///
/// ```no_run
/// use candelabrum_transformers::{ChatMessage, Tokenizer};
///
/// # fn main() -> candelabrum_transformers::Result<()> {
/// let tokenizer = Tokenizer::open("SmolLM2-135M-Instruct")?;
/// let prompt = tokenizer.chat(&[ChatMessage::user("Who are you?")], true)?;
/// let tokens = tokenizer.encode(&prompt, false)?; // The template has written the special tokens.
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tokenizer(Arc<TokenizerInner>);

struct TokenizerInner {
    tokenizer: tokenizers::Tokenizer,
    files: TokenizerFiles,
    tokens: SpecialTokens,
    template: Option<ChatTemplate>,
    /// Which end of a long text is cut off.
    cut: TruncationDirection,
    len: usize,
    /// Computed at the first request.
    digest: OnceLock<String>,
}

impl Tokenizer {
    /// The tokenizer in a folder of Hugging Face's: `tokenizer.json` and, where they exist, `tokenizer_config.json`,
    /// `special_tokens_map.json`, `added_tokens.json` and `chat_template.jinja`. For the path of a GGUF file: the `tokenizer.json` beside
    /// the file or, where there is none, [the tokenizer in the file](Self::from_gguf).
    ///
    /// Truncation and padding that `tokenizer.json` asks for are switched off, because the
    /// [datasets](crate::ClassifiedTexts) cut and pad.
    ///
    /// # Errors
    /// No `tokenizer.json`, or a file that cannot be read, is malformed, says what is not understood, or contradicts
    /// another one: the file and what is wrong. Those of [`from_gguf`](Self::from_gguf).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_accepting(path.as_ref(), &Arc::from([]))
    }

    /// [`open`](Self::open) with keys that the user has named as of no effect.
    pub(crate) fn open_accepting(path: &Path, accepted: &Arc<[String]>) -> Result<Self> {
        if path.extension().is_none_or(|extension| extension != "gguf") {
            let tokenizer = Self::from_files(TokenizerFiles::read(path)?, accepted)?;
            tokenizer.check_padding(path)?;
            return Ok(tokenizer);
        }
        if let Some(beside) = Self::beside(path, accepted)? {
            return Ok(beside);
        }
        Self::from_gguf_accepting(path, GgufFile::open(path)?.raw_metadata(), accepted)
    }

    /// Refuses a padding that the model beside the tokenizer would read as text: the model hides the token that its
    /// config names.
    fn check_padding(&self, folder: &Path) -> Result<()> {
        let Some(config) = ModelConfig::read_if_there(&folder.join("config.json"))? else {
            return Ok(());
        };
        match (pad_token_id(&config)?, self.padding()) {
            (Some(hidden), Some(padding)) if hidden != padding as usize => Err(config.fault(format!(
                "hides the padding token {hidden} (pad_token_id), and the tokenizer pads texts with {padding} ({}): set \
                 pad_token_id to {padding}",
                self.token(padding).unwrap_or_default()
            ))),
            _ => Ok(()),
        }
    }

    /// The tokenizer of a `tokenizer.json` beside the GGUF file at `path`, if there is one.
    pub(crate) fn beside(path: &Path, accepted: &Arc<[String]>) -> Result<Option<Self>> {
        let folder = path.parent().filter(|folder| folder.join(TOKENIZER).is_file());
        folder.map(|folder| Self::from_files(TokenizerFiles::read(folder)?, accepted)).transpose()
    }

    /// The tokenizer in the metadata of a GGUF file: byte-level BPE (`tokenizer.ggml.model` is `gpt2`) whose texts are
    /// divided (`tokenizer.ggml.pre`) as `gpt-2` (also `default`), `smollm`, `llama-bpe` or `qwen2`. The path is that
    /// of the file, for messages.
    ///
    /// Qwen's texts are brought into normal form C, as by its own `tokenizer.json`. A file does not mention that.
    ///
    /// # Errors
    /// Another kind of tokenizer, or metadata that are missing or contradict each other.
    pub fn from_gguf(path: impl AsRef<Path>, metadata: &HashMap<String, Value>) -> Result<Self> {
        Self::from_gguf_accepting(path.as_ref(), metadata, &Arc::from([]))
    }

    /// [`from_gguf`](Self::from_gguf) with keys that the user has named as of no effect.
    pub(crate) fn from_gguf_accepting(
        path: &Path,
        metadata: &HashMap<String, Value>,
        accepted: &Arc<[String]>,
    ) -> Result<Self> {
        Self::from_files(gguf::files(path, metadata, accepted)?, accepted)
    }

    fn from_files(files: TokenizerFiles, accepted: &Arc<[String]>) -> Result<Self> {
        let config = Config::from_files(&files, accepted)?;
        let content = files.get(TOKENIZER).unwrap_or_default();
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(content).map_err(|error| {
            Error::file(files.path_of(TOKENIZER), format!("no tokenizer: {error}"))
        })?;
        let padding = tokenizer.get_padding().map(|padding| padding.pad_token.clone());
        tokenizer.with_padding(None);
        let tokens = config.tokens.with_default_padding(padding);
        let failed = |error| Error::file(files.path_of(TOKENIZER), format!("{error}"));
        tokenizer.with_truncation(None).map_err(failed)?;

        // As transformers: tokens with numbers replace those of tokenizer.json, and the others are added where they are
        // no tokens yet.
        for NewToken { token, id, file } in config.added {
            let known = tokenizer.get_added_tokens_decoder();
            let (text, is_special) = (token.content.clone(), token.special);
            if id.is_none() && known.values().any(|added| added.content == text) {
                continue;
            }
            let one = std::iter::once(token);
            let added = if is_special {
                tokenizer.add_special_tokens(one)
            } else {
                tokenizer.add_tokens(one)
            };
            added.map_err(failed)?;
            let got = tokenizer.token_to_id(&text);
            if let Some(id) = id.filter(|id| got != Some(*id)) {
                let got = got.map_or_else(|| "none".to_owned(), |got| got.to_string());
                let what = format!(
                    "has the token {text:?} with the number {id}, and by tokenizer.json it has {got}: the files are not \
                     of one tokenizer"
                );
                return Err(Error::file(files.path_of(file), what));
            }
        }

        let largest = tokenizer.get_vocab(true).into_values().max();
        let len = largest.map_or(0, |largest| largest as usize + 1);
        let template = config.template.map(|source| ChatTemplate::new(source, &tokens));
        let digest = OnceLock::new();
        let cut = config.cut;
        Ok(Self(Arc::new(TokenizerInner { tokenizer, files, tokens, template, cut, len, digest })))
    }

    /// Writes the files that the tokenizer was read from into a folder, and makes the folder if there is none. A
    /// tokenizer from a GGUF file is written as `tokenizer.json` and `tokenizer_config.json`. Python's transformers
    /// opens both.
    ///
    /// # Errors
    /// A folder or file that cannot be written.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        let mut folder = NewFiles::new(folder.as_ref())?;
        self.save_with(&mut folder)?;
        folder.places()
    }

    /// Adds the files that the tokenizer was read from to those of a model.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(crate) fn save_with(&self, folder: &mut NewFiles<'_>) -> Result<()> {
        self.0.files.write(folder)
    }

    /// The tokens of a text, with or without the special tokens that the model expects around a text, such as
    /// `[CLS]` and `[SEP]`. Special tokens that are written out in the text are found in any case.
    ///
    /// # Errors
    /// A text that the tokenizer cannot divide: few tokenizers have such texts.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        let encoding = self.0.tokenizer.encode_fast(text, add_special_tokens);
        Ok(encoding.map_err(|error| self.failed(&*error))?.get_ids().to_vec())
    }

    /// The tokens of a pair of texts, and for each token the number of its segment, 0 or 1. A BERT takes both as the two rows
    /// of one input (N, 2, T). Without the second row, all tokens are of the first text for the model.
    ///
    /// # Errors
    /// Those of [`encode`](Self::encode).
    pub fn encode_pair(
        &self,
        first: &str,
        second: &str,
        add_special_tokens: bool,
    ) -> Result<(Vec<u32>, Vec<u32>)> {
        let encoding = self.0.tokenizer.encode_fast((first, second), add_special_tokens);
        let encoding = encoding.map_err(|error| self.failed(&*error))?;
        Ok((encoding.get_ids().to_vec(), encoding.get_type_ids().to_vec()))
    }

    /// The tokens of a text without additional special tokens, each with the bytes of the text that it stands for.
    /// Where several tokens make one character, each has all bytes of the character. A space in front of a word
    /// belongs to the token that contains the space.
    ///
    /// # Errors
    /// Those of [`encode`](Self::encode).
    pub fn encode_with_offsets(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>> {
        let encoding = self.parts(text)?;
        let offsets = encoding.get_offsets().iter().map(|&(start, end)| start..end);
        Ok(encoding.get_ids().iter().copied().zip(offsets).collect())
    }

    /// At most `longest` tokens of a text, special tokens included, and whether there were more. As in transformers,
    /// what is cut off is the end of the text, or its beginning if `truncation_side` says so, and the special tokens behind
    /// the text stay.
    ///
    /// # Errors
    /// Those of [`encode`](Self::encode). A length without room for a token of the text.
    pub(crate) fn encode_first(&self, text: &str, longest: usize) -> Result<(Vec<u32>, bool)> {
        let mut encoding = self.parts(text)?;
        let room = longest.saturating_sub(self.added_tokens());
        if room == 0 {
            return Err(Error::argument(format!(
                "texts of at most {longest} tokens, of which {} are special: there is no room for a text",
                self.added_tokens()
            )));
        }
        let is_cut = encoding.len() > room;
        encoding.truncate(room, 0, self.0.cut);
        let whole = self.0.tokenizer.post_process(encoding, None, true);
        Ok((whole.map_err(|error| self.failed(&*error))?.get_ids().to_vec(), is_cut))
    }

    /// The special tokens that stand in front of every text.
    ///
    /// # Errors
    /// Those of [`encode`](Self::encode).
    pub(crate) fn leading(&self) -> Result<Vec<u32>> {
        let encoding = self.0.tokenizer.post_process(self.parts("a")?, None, true);
        let encoding = encoding.map_err(|error| self.failed(&*error))?;
        let added = encoding.get_special_tokens_mask().iter().take_while(|&&added| added == 1);
        Ok(encoding.get_ids()[..added.count()].to_vec())
    }

    /// The text of tokens. Special tokens are left out, and a token that the tokenizer does not have is nothing.
    ///
    /// # Errors
    /// Tokens that have no text together: few tokenizers have such tokens.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        self.0.tokenizer.decode(tokens, true).map_err(|error| {
            Error::file(self.0.files.path(), format!("cannot decode tokens: {error}"))
        })
    }

    /// The text of a conversation by the chat template of the model. With `add_generation_prompt`, what stands in
    /// front of the next answer comes at the end. The template writes all special tokens, so encode the text without
    /// additional ones.
    ///
    /// A message is a [`ChatMessage`] or any other value that serde makes such an object of, with more keys: `tool_calls`, for
    /// instance. Its content may be a list of parts `{"type": "text", "text": ".."}`.
    ///
    /// # Errors
    /// No template, no messages, or a template that fails or refuses the messages: its message. A key of a message that the
    /// template does not write.
    pub fn chat<M: Serialize>(
        &self,
        messages: &[M],
        add_generation_prompt: bool,
    ) -> Result<String> {
        self.chat_with_tools(messages, &[] as &[M], add_generation_prompt)
    }

    /// [`chat`](Self::chat) of a model that may call `tools`, functions as JSON schemas describe them.
    ///
    /// # Errors
    /// Those of [`chat`](Self::chat), and a template that does not write tools.
    pub fn chat_with_tools<M: Serialize, T: Serialize>(
        &self,
        messages: &[M],
        tools: &[T],
        add_generation_prompt: bool,
    ) -> Result<String> {
        let messages: Vec<JinjaValue> =
            messages.iter().map(|message| Serde(message).into()).collect();
        let tools = JinjaValue::from(Serde(tools));
        let conversation = self.conversation(&messages, Some(tools), add_generation_prompt)?;
        self.text_of(&conversation.messages, conversation.tools.as_ref(), add_generation_prompt)
    }

    /// A conversation, every key of which reaches the text.
    ///
    /// # Errors
    /// Those of [`chat_with_tools`](Self::chat_with_tools).
    pub(crate) fn conversation(
        &self,
        messages: &[JinjaValue],
        tools: Option<JinjaValue>,
        add_generation_prompt: bool,
    ) -> Result<Conversation> {
        if messages.is_empty() {
            return Err(Error::argument("a conversation without messages"));
        }
        let template = self.template()?;
        let render = |messages: &[JinjaValue], tools: Option<&JinjaValue>| {
            template.render(messages, tools, add_generation_prompt)
        };
        Conversation::new(messages, tools, &render).map_err(Error::argument)
    }

    /// The text of messages as they are.
    ///
    /// # Errors
    /// No template, or one that fails or refuses the messages.
    pub(crate) fn text_of(
        &self,
        messages: &[JinjaValue],
        tools: Option<&JinjaValue>,
        add_generation_prompt: bool,
    ) -> Result<String> {
        let text = self.template()?.render(messages, tools, add_generation_prompt);
        text.map_err(|what| Error::file(self.0.files.path(), what))
    }

    fn template(&self) -> Result<&ChatTemplate> {
        self.0.template.as_ref().ok_or_else(|| {
            let what = "no chat template: neither a chat_template in tokenizer_config.json nor chat_template.jinja. \
                A model that was not trained for conversations has none";
            Error::file(self.0.files.path(), what)
        })
    }

    /// Whether there is a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.0.template.is_some()
    }

    /// The largest id plus 1, with added tokens. An embedding needs as many rows: see
    /// [`check_vocabulary`](crate::check_vocabulary).
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The token with which a batch's shorter texts are filled up, `pad_token`.
    pub fn padding(&self) -> Option<u32> {
        self.special("pad_token")
    }

    /// The token at the end of an answer or a document, `eos_token`.
    pub fn end(&self) -> Option<u32> {
        self.special("eos_token")
    }

    /// The token at the beginning of a text, `bos_token`.
    pub fn beginning(&self) -> Option<u32> {
        self.special("bos_token")
    }

    /// The token with this id, as `tokenizer.json` writes it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.0.tokenizer.id_to_token(id)
    }

    /// The id of a token, as `tokenizer.json` writes the token.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.0.tokenizer.token_to_id(token)
    }

    /// Whether this is a special token, which [`decode`](Self::decode) leaves out.
    pub fn is_special(&self, id: u32) -> bool {
        let added = self.0.tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        added.get(&id).is_some_and(|token| token.special)
    }

    /// A SHA-256 of all files of the tokenizer.
    pub(crate) fn digest(&self) -> &str {
        self.0.digest.get_or_init(|| self.0.files.digest())
    }

    /// The number of special tokens that come to a text.
    pub(crate) fn added_tokens(&self) -> usize {
        let processor = self.0.tokenizer.get_post_processor();
        processor.map_or(0, |processor| processor.added_tokens(false))
    }

    fn special(&self, name: &str) -> Option<u32> {
        self.0.tokens.get(name).and_then(|token| self.id(token))
    }

    /// A text in tokens as the model of the tokenizer gives them, before a post-processor adds special tokens and, in
    /// some tokenizers, takes the spaces out of the offsets.
    fn parts(&self, text: &str) -> Result<Encoding> {
        let tokenizer = &self.0.tokenizer;
        let added = tokenizer.get_added_vocabulary();
        let mut parts = added.extract_and_normalize(tokenizer.get_normalizer(), text);
        let divided = tokenizer
            .get_pre_tokenizer()
            .map_or(Ok(()), |pre_tokenizer| pre_tokenizer.pre_tokenize(&mut parts))
            .and_then(|()| tokenizer.get_model().tokenize_in_pretokenized(&mut parts, None))
            .and_then(|()| parts.into_encoding(None, 0, OffsetType::Byte));
        divided.map_err(|error| self.failed(&*error))
    }

    fn failed(&self, error: &(dyn std::error::Error + Send + Sync)) -> Error {
        Error::file(self.0.files.path(), format!("cannot divide a text into tokens: {error}"))
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, len) = (self.0.files.path(), self.len());
        f.debug_struct("Tokenizer").field("path", &path).field("len", &len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn bert() -> (tempfile::TempDir, Tokenizer) {
        let folder = tempfile::tempdir().unwrap();
        tiny::bert(folder.path());
        let tokenizer = Tokenizer::open(folder.path()).unwrap();
        (folder, tokenizer)
    }

    fn smollm() -> Tokenizer {
        Tokenizer::from_gguf("model.gguf", &tiny::metadata("smollm")).unwrap()
    }

    #[test]
    fn the_file_neither_cuts_nor_pads() {
        let (_folder, tokenizer) = bert();
        assert_eq!(tokenizer.encode("A FINE film", true).unwrap(), [2, 4, 5, 6, 3]);
        let long = "a ".repeat(20);
        assert_eq!(tokenizer.encode(&long, false).unwrap(), [4; 20]);
        assert_eq!(tokenizer.padding(), Some(0), "from tokenizer.json");
        assert_eq!((tokenizer.end(), tokenizer.beginning()), (None, None));
        assert_eq!((tokenizer.len(), tokenizer.is_empty()), (11, false));
        assert_eq!(tokenizer.decode(&[2, 4, 6, 7, 3, 99]).unwrap(), "a films");
        let pair = tokenizer.encode_pair("a", "no films", true).unwrap();
        assert_eq!(pair, (vec![2, 4, 3, 8, 6, 7, 3], vec![0, 0, 0, 1, 1, 1, 1]));
    }

    #[test]
    fn a_text_is_cut_before_its_last_special_token() {
        let (_folder, tokenizer) = bert();
        assert_eq!(tokenizer.encode_first("a fine film.", 5).unwrap(), (vec![2, 4, 5, 6, 3], true));
        assert_eq!(tokenizer.encode_first("a film.", 5).unwrap(), (vec![2, 4, 6, 9, 3], false));
        assert_eq!(tokenizer.encode_first("", 5).unwrap(), (vec![2, 3], false));
        let message = tokenizer.encode_first("a", 2).unwrap_err().to_string();
        assert!(
            message.starts_with("texts of at most 2 tokens, of which 2 are special"),
            "{message}"
        );
        assert_eq!(tokenizer.leading().unwrap(), [2]);
        assert_eq!(smollm().encode_first("hello 12", 2).unwrap(), (vec![259, 220], true));
        assert!(smollm().leading().unwrap().is_empty());
    }

    #[test]
    fn offsets_are_bytes_and_have_the_spaces() {
        let (_folder, bert) = bert();
        assert_eq!(bert.encode_with_offsets("A  film").unwrap(), [(4, 0..1), (6, 3..7)]);
        let text = "hello w<|stop|>é\n";
        let expected =
            [(259, 0..5), (264, 5..7), (268, 7..15), (127, 15..17), (102, 15..17), (198, 17..18)];
        assert_eq!(smollm().encode_with_offsets(text).unwrap(), expected);
    }

    #[test]
    fn special_tokens_are_texts_or_objects_and_become_tokens() {
        let (folder, _) = bert();
        let write =
            |name: &str, content: &str| fs::write(folder.path().join(name), content).unwrap();
        let config = r#"{"eos_token": {"content": "[SEP]"}, "pad_token": "[UNK]", "bos_token": null, "cls_token": 7}"#;
        write("tokenizer_config.json", config);
        let message = Tokenizer::open(folder.path()).unwrap_err().to_string();
        assert!(
            message.contains("tokenizer_config.json: cls_token is 7: neither a text"),
            "{message}"
        );
        write("tokenizer_config.json", &config.replace('7', r#""[CLS]""#));
        let tokenizer = Tokenizer::open(folder.path()).unwrap();
        let named = |of: &Tokenizer| [of.beginning(), of.end(), of.padding()];
        assert_eq!(named(&tokenizer), [None, Some(3), Some(1)]);
        // An old folder: the map counts. `film` is a token, `<new>` is none yet.
        write(
            "special_tokens_map.json",
            r#"{"eos_token": "film", "bos_token": {"content": "<new>"}}"#,
        );
        let tokenizer = Tokenizer::open(folder.path()).unwrap();
        assert_eq!(named(&tokenizer), [Some(11), Some(6), Some(1)]);
        assert_eq!((tokenizer.len(), tokenizer.is_special(6)), (12, true));
        assert_eq!(tokenizer.encode("<new>a", false).unwrap(), [11, 4]);
        // In a new one it does not.
        write("tokenizer_config.json", r#"{"eos_token": "[SEP]", "added_tokens_decoder": {}}"#);
        let tokenizer = Tokenizer::open(folder.path()).unwrap();
        assert_eq!(named(&tokenizer), [None, Some(3), Some(0)]);
    }

    #[test]
    fn the_template_is_a_text_or_one_of_several_or_a_file() {
        let (folder, tokenizer) = bert();
        let chat = || Tokenizer::open(folder.path())?.chat(&[ChatMessage::user("x")], true);
        let write =
            |name: &str, content: &str| fs::write(folder.path().join(name), content).unwrap();
        let message = tokenizer.chat(&[ChatMessage::user("x")], true).unwrap_err().to_string();
        assert!(message.contains(": no chat template: neither"), "{message}");
        write("tokenizer_config.json", r#"{"chat_template": "one"}"#);
        assert_eq!(chat().unwrap(), "one");
        let several = r#"{"chat_template": [{"name": "rag", "template": "rag"}, {"name": "default", "template": "two"}]}"#;
        write("tokenizer_config.json", several);
        assert_eq!(chat().unwrap(), "two");
        write("tokenizer_config.json", &several.replace("default", "other"));
        let message = chat().unwrap_err().to_string();
        assert!(message.ends_with("nor a list with one of the name `default`"), "{message}");
        write("tokenizer_config.json", several);
        write("chat_template.jinja", "{{ messages[0].content }}\n");
        assert_eq!(chat().unwrap(), "x");
        let message =
            Tokenizer::open(folder.path()).unwrap().chat(&[] as &[ChatMessage], true).unwrap_err();
        assert_eq!(message.to_string(), "a conversation without messages");
    }

    #[test]
    fn what_is_saved_has_the_same_bytes() {
        let (folder, _) = bert();
        let config = r#"{ "eos_token" : "[SEP]" }"#;
        fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
        let tokenizer = Tokenizer::open(folder.path()).unwrap();
        let target = folder.path().join("tuned/model");
        tokenizer.save(&target).unwrap();
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            let [saved, read] =
                [&target, folder.path()].map(|folder| fs::read(folder.join(name)).unwrap());
            assert_eq!(saved, read, "{name}");
        }
        assert_eq!(fs::read_dir(&target).unwrap().count(), 2);
        let saved = Tokenizer::open(&target).unwrap();
        assert_eq!(saved.digest(), tokenizer.digest());
        assert_ne!(saved.digest(), bert().1.digest());
    }

    #[test]
    fn a_gguf_file_gives_way_to_the_tokenizer_beside_it() {
        let (folder, _) = bert();
        let path = folder.path().join("model.gguf");
        assert_eq!(Tokenizer::open(&path).unwrap().len(), 11);
        fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
        let metadata = tiny::metadata("smollm");
        let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
        let mut file = fs::File::create(&path).unwrap();
        candle_core::quantized::gguf_file::write(&mut file, &metadata, &[]).unwrap();
        assert_eq!(Tokenizer::open(&path).unwrap().len(), 270);
        fs::write(&path, "GGUF").unwrap();
        assert!(Tokenizer::open(&path).unwrap_err().to_string().contains("model.gguf: "));
    }

    #[test]
    fn files_that_are_missing_or_malformed_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = || Tokenizer::open(folder.path()).unwrap_err().to_string();
        assert!(error().contains("no tokenizer.json in this folder. Download"), "{}", error());
        fs::write(folder.path().join("tokenizer.json"), r#"{"version": "1.0", "#).unwrap();
        assert!(error().contains("tokenizer.json: no tokenizer: EOF while parsing"), "{}", error());
        tiny::bert(folder.path());
        fs::write(folder.path().join("tokenizer_config.json"), "[]").unwrap();
        assert!(error().contains("tokenizer_config.json: is no JSON object: "), "{}", error());
        let message = Tokenizer::open(folder.path().join("none")).unwrap_err().to_string();
        assert!(message.contains("none: cannot open: "), "{message}");
        let message =
            Tokenizer::open(folder.path().join("tokenizer.json")).unwrap_err().to_string();
        assert!(message.ends_with("a tokenizer is a folder or a .gguf file"), "{message}");
    }

    /// The expected tokens are those of `AutoTokenizer` in transformers 5.24.
    #[test]
    fn real_tokenizers_give_the_tokens_of_transformers() {
        if let Some(path) = tiny::real(tiny::MINI_LM) {
            let tokenizer = Tokenizer::open(path).unwrap();
            let expected =
                [101, 1996, 15743, 7668, 1010, 13138, 2549, 14477, 20961, 3468, 2616, 999, 102];
            let text = "The naïve café, 1234 unaffable words!";
            assert_eq!(tokenizer.encode(text, true).unwrap(), expected);
            assert_eq!(tokenizer.encode("日本 😀", true).unwrap(), [101, 1864, 1876, 100, 102]);
            assert_eq!((tokenizer.len(), tokenizer.padding()), (30_522, Some(0)));
        }
        if let Some(path) = tiny::real(tiny::SMOL_LM_2) {
            let tokenizer = Tokenizer::open(path).unwrap();
            let expected = [
                1604, 275, 24, 104, 727, 472, 1003, 1792, 1903, 216, 33, 34, 35, 36, 216, 907,
                15486, 46494, 40303, 218, 198,
            ];
            let text = "def f(x):\n    return x ** 1234  # naïve 😀\n";
            assert_eq!(tokenizer.encode(text, true).unwrap(), expected);
            assert_eq!(tokenizer.decode(&expected).unwrap(), text);
            let named = [tokenizer.beginning(), tokenizer.end(), tokenizer.padding()];
            assert_eq!((tokenizer.len(), named), (49_152, [Some(1), Some(2), Some(2)]));
            let expected = [
                1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018,
                411, 407, 19712, 8182, 2, 198, 1, 4093, 198, 10576, 359, 346, 47, 2, 198, 1, 520,
                9531, 198,
            ];
            let prompt = tokenizer.chat(&[ChatMessage::user("Who are you?")], true).unwrap();
            assert_eq!(tokenizer.encode(&prompt, false).unwrap(), expected);
        }
    }
}
