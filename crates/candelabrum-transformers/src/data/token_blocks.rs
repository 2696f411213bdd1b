//! Texts for a language model: their tokens one after the other, cut into blocks.

use std::{
    ops::Range,
    path::Path,
    sync::{Arc, OnceLock},
};

use candelabrum_datasets::{Batch, Dataset, Error as DataError, Pass, hexadecimal};
use candle_core::{Device, Tensor};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::rows::{check_count, read_text};
use crate::{
    error::{Error, Result},
    tokenizer::Tokenizer,
};

/// The bytes of a text that are tokenised at a time. While it is tokenised, a text takes about a hundred times its size.
const PIECE: usize = 1 << 16;

/// The bytes on each side of a place that are tokenised to see whether the text may be cut there.
const MARGIN: usize = 128;

/// The line breaks in a row at which a text may not be cut, after which no further one is tried.
const TRIES: usize = 100;

/// The tokens of texts, cut into blocks of the same length. Each block is a sample, and its targets are the same tokens
/// one place later.
///
/// The tokens of all texts are in memory, with 4 bytes each.
#[derive(Debug, Clone)]
pub struct TokenBlocks {
    tokens: Arc<[u32]>,
    /// The tokens of this part.
    part: Range<usize>,
    length: usize,
    tokenizer: Tokenizer,
    /// Computed at the first request.
    sha256: Arc<OnceLock<String>>,
}

impl TokenBlocks {
    /// The tokens of files of text in UTF-8, in this order. Between the texts of two files there is the tokenizer's
    /// [end token](Tokenizer::end). No other special token is added.
    ///
    /// # Errors
    /// A file that cannot be read or is not UTF-8. Several files and a tokenizer without an end token. A length of 0, or
    /// fewer tokens than a block with its targets has.
    pub fn open<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
        tokenizer: &Tokenizer,
        length: usize,
    ) -> Result<Self> {
        let mut tokens = Vec::new();
        for (place, path) in paths.into_iter().enumerate() {
            if place > 0 {
                tokens.push(tokenizer.end().ok_or_else(|| {
                    Error::argument(
                        "several files and a tokenizer without an end token (eos_token), which would separate them: \
                         join the files, or name the token in tokenizer_config.json",
                    )
                })?);
            }
            tokens.append(&mut tokens_of(&read_text(path.as_ref())?, tokenizer)?);
        }
        Self::new(tokens, tokenizer, length)
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// A length of 0, or fewer tokens than a block with its targets has.
    pub fn of_text(text: &str, tokenizer: &Tokenizer, length: usize) -> Result<Self> {
        Self::new(tokens_of(text, tokenizer)?, tokenizer, length)
    }

    fn new(tokens: Vec<u32>, tokenizer: &Tokenizer, length: usize) -> Result<Self> {
        let whole = Self {
            part: 0..tokens.len(),
            tokens: tokens.into(),
            length,
            tokenizer: tokenizer.clone(),
            sha256: Arc::default(),
        };
        whole.part(0..whole.tokens.len())
    }

    /// A part for training and, behind it, one for tests with this share of the tokens. The blocks of both begin anew.
    ///
    /// # Errors
    /// A share that leaves a part without a block.
    pub fn split(&self, test_share: f64) -> Result<(Self, Self)> {
        let tests = (self.tokens() as f64 * test_share).round();
        if !(tests >= 1.0 && tests < self.tokens() as f64) {
            return Err(Error::argument(format!(
                "a test share of {test_share} of {} tokens leaves one of both parts empty",
                self.tokens()
            )));
        }
        let end = self.part.end - tests as usize;
        Ok((self.part(self.part.start..end)?, self.part(end..self.part.end)?))
    }

    fn part(&self, part: Range<usize>) -> Result<Self> {
        if self.length == 0 {
            return Err(Error::argument("blocks of 0 tokens: the length must be at least 1"));
        }
        if part.len() <= self.length {
            return Err(Error::argument(format!(
                "{} tokens have no block of {} tokens and their targets: {} are needed",
                part.len(),
                self.length,
                self.length.saturating_add(1)
            )));
        }
        let data = Self { part, sha256: Arc::default(), ..self.clone() };
        check_count(data.len())?;
        Ok(data)
    }

    /// The number of tokens.
    pub fn tokens(&self) -> usize {
        self.part.len()
    }

    /// The number of tokens that are in no block: those behind the last one.
    pub fn left_out(&self) -> usize {
        self.tokens() - 1 - self.len() * self.length
    }
}

impl Dataset for TokenBlocks {
    type Batch = Batch;

    fn len(&self) -> usize {
        (self.part.len() - 1) / self.length
    }

    /// # Shapes
    /// Inputs and targets (B, T), both u32. T is the length of a block.
    fn read(&self, samples: &[u32], _: &Pass) -> Result<Batch, DataError> {
        let tokens = &self.tokens[self.part.clone()];
        let (mut xs, mut ys) = (Vec::new(), Vec::new());
        for &sample in samples {
            let sample = sample as usize;
            if sample >= self.len() {
                return Err(DataError::NoSuchSample { sample, len: self.len() });
            }
            let block = &tokens[sample * self.length..][..self.length + 1];
            xs.extend_from_slice(&block[..self.length]);
            ys.extend_from_slice(&block[1..]);
        }
        let tensor = |tokens| Tensor::from_vec(tokens, (samples.len(), self.length), &Device::Cpu);
        Ok(Batch { xs: tensor(xs)?, ys: tensor(ys)? })
    }

    /// # Cost
    /// The first call reads all tokens and all files of the tokenizer.
    fn fingerprint(&self) -> Result<String, DataError> {
        let sha256 = self.sha256.get_or_init(|| {
            let mut hasher = Sha256::new();
            let tokens = &self.tokens[self.part.clone()];
            tokens.iter().for_each(|token| hasher.update(token.to_le_bytes()));
            hexadecimal(&hasher.finalize())
        });
        let (count, tokenizer) = (self.tokens(), self.tokenizer.digest());
        Ok(format!("{count} tokens {sha256} of tokenizer {tokenizer} in blocks of {}", self.length))
    }
}

/// The tokens of a text, which is tokenised in pieces on all threads. They are those of the text in one piece.
fn tokens_of(text: &str, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    let pieces = pieces(text, tokenizer, PIECE)?;
    let pieces = pieces.par_iter().map(|piece| tokenizer.encode(piece, false));
    Ok(pieces.collect::<Result<Vec<_>>>()?.concat())
}

/// A text cut before line breaks into pieces of at least so many bytes.
///
/// Line breaks may belong to a token with what stands around them, and some tokenizers begin each text with a space. So
/// a text is cut only where the tokens of both sides are those of the whole. Where no such place is found, the rest is
/// one piece.
fn pieces<'a>(text: &'a str, tokenizer: &Tokenizer, length: usize) -> Result<Vec<&'a str>> {
    let (mut pieces, mut start, mut failures) = (Vec::new(), 0, 0);
    let mut from = length;
    while failures < TRIES
        && let Some(line) = text.as_bytes().get(from..).and_then(line_break)
    {
        let at = from + line;
        if is_boundary(text, at, tokenizer)? {
            pieces.push(&text[start..at]);
            (start, from, failures) = (at, at + length, 0);
        } else {
            (from, failures) = (at + 1, failures + 1);
        }
    }
    pieces.push(&text[start..]);
    Ok(pieces)
}

fn line_break(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|&byte| byte == b'\n')
}

/// Whether the tokens around a place are those of the texts before and behind it.
fn is_boundary(text: &str, at: usize, tokenizer: &Tokenizer) -> Result<bool> {
    let start = text.floor_char_boundary(at.saturating_sub(MARGIN));
    let end = text.ceil_char_boundary(at.saturating_add(MARGIN).min(text.len()));
    let [whole, before, behind] =
        [start..end, start..at, at..end].map(|part| tokenizer.encode(&text[part], false));
    Ok(whole? == [before?, behind?].concat())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;
    use crate::tokenizer::tiny;

    fn tokenizer(pre: &str) -> Tokenizer {
        Tokenizer::from_gguf("model.gguf", &tiny::metadata(pre)).unwrap()
    }

    /// The tokens of all blocks, of each the inputs and the last target.
    fn blocks(data: &TokenBlocks) -> Vec<Vec<u32>> {
        let all: Vec<u32> = (0..data.len() as u32).collect();
        let Batch { xs, ys } = data.read(&all, &Pass::evaluation()).unwrap();
        let [xs, ys] = [xs, ys].map(|tensor| tensor.to_vec2::<u32>().unwrap());
        assert!(xs.iter().zip(&ys).all(|(x, y)| x[1..] == y[..y.len() - 1]));
        xs.into_iter().zip(ys).map(|(x, y)| [&x, &y[y.len() - 1..]].concat()).collect()
    }

    #[test]
    fn blocks_follow_each_other_and_what_is_left_is_counted() {
        let gpt_2 = tokenizer("gpt-2");
        // hello, Ġw, a, b, c, d, e
        let data = TokenBlocks::of_text("hello wabcde", &gpt_2, 2).unwrap();
        assert_eq!(blocks(&data), [[259, 264, 64], [64, 65, 66], [66, 67, 68]]);
        assert_eq!((data.len(), data.tokens(), data.left_out()), (3, 7, 0));
        let data = TokenBlocks::of_text("hello wabcde", &gpt_2, 4).unwrap();
        assert_eq!(blocks(&data), [[259, 264, 64, 65, 66]]);
        assert_eq!(data.left_out(), 2);
        assert_eq!(data.read(&[], &Pass::evaluation()).unwrap().xs.dims(), [0, 4]);
        assert!(matches!(
            data.read(&[1], &Pass::evaluation()),
            Err(DataError::NoSuchSample { sample: 1, len: 1 })
        ));
    }

    #[test]
    fn the_last_tokens_are_for_tests() {
        let text: String = ('a'..='t').collect();
        let data = TokenBlocks::of_text(&text, &tokenizer("gpt-2"), 3).unwrap();
        let (train, test) = data.split(0.3).unwrap();
        assert_eq!((train.tokens(), test.tokens()), (14, 6));
        assert_eq!(blocks(&test), [[78, 79, 80, 81]]);
        assert_eq!(blocks(&train).last().unwrap(), &[73, 74, 75, 76]);
        assert_eq!((train.left_out(), test.left_out()), (1, 2));
        for share in [0.0, 0.01, 1.0, f64::NAN] {
            let message = data.split(share).unwrap_err().to_string();
            assert!(message.ends_with("leaves one of both parts empty"), "{message}");
        }
        let message = data.split(0.1).unwrap_err().to_string();
        assert!(message.starts_with("2 tokens have no block of 3 tokens"), "{message}");
    }

    #[test]
    fn files_are_separated_by_the_end_token() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| folder.path().join(name));
        fs::write(&paths[0], "\u{feff}ab").unwrap();
        fs::write(&paths[1], "c").unwrap();
        let data = TokenBlocks::open(&paths, &tokenizer("gpt-2"), 3).unwrap();
        assert_eq!(blocks(&data), [[64, 65, 268, 66]]);
        let data = TokenBlocks::open([&paths[0]], &tokenizer("llama-bpe"), 1).unwrap();
        assert_eq!(blocks(&data), [[64, 65]]);

        tiny::bert(folder.path());
        let bert = Tokenizer::open(folder.path()).unwrap();
        let error = |paths: &[std::path::PathBuf]| {
            TokenBlocks::open(paths, &bert, 3).unwrap_err().to_string()
        };
        assert!(error(&paths).starts_with("several files and a tokenizer without an end token"));
        fs::write(&paths[1], [b'a', 0xff]).unwrap();
        assert!(error(&paths[1..]).ends_with("b: not UTF-8 at byte 1: convert the file"));
        assert!(error(&[folder.path().join("none")]).contains("none: cannot read: "));
    }

    #[test]
    fn blocks_without_tokens_are_errors() {
        let error = |text: &str, length| {
            TokenBlocks::of_text(text, &tokenizer("gpt-2"), length).unwrap_err().to_string()
        };
        assert_eq!(error("abc", 0), "blocks of 0 tokens: the length must be at least 1");
        assert_eq!(
            error("abc", 3),
            "3 tokens have no block of 3 tokens and their targets: 4 are needed"
        );
        assert!(error("", usize::MAX).starts_with("0 tokens have no block of "));
    }

    #[test]
    fn the_fingerprint_shows_every_difference() {
        let of = |text: &str, pre: &str, length| {
            let data = TokenBlocks::of_text(text, &tokenizer(pre), length).unwrap();
            data.fingerprint().unwrap()
        };
        let one = of("abcdef", "gpt-2", 2);
        assert_eq!(of("abcdef", "gpt-2", 2), one);
        let others = [of("abcdeg", "gpt-2", 2), of("abcdef", "qwen2", 2), of("abcdef", "gpt-2", 3)];
        assert!(!others.contains(&one));
        let (train, test) =
            TokenBlocks::of_text("abcdabcd", &tokenizer("gpt-2"), 2).unwrap().split(0.5).unwrap();
        assert_eq!(train.fingerprint().unwrap(), test.fingerprint().unwrap(), "the same tokens");
    }

    #[test]
    fn a_text_that_may_not_be_cut_stays_whole() {
        // Each text begins with a space, so a part has another token than the same words in the whole.
        let mut json: serde_json::Value = {
            let folder = tempfile::tempdir().unwrap();
            tokenizer("gpt-2").save(folder.path()).unwrap();
            let content = fs::read(folder.path().join("tokenizer.json")).unwrap();
            serde_json::from_slice(&content).unwrap()
        };
        json["pre_tokenizer"]["add_prefix_space"] = true.into();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
        let tokenizer = Tokenizer::open(folder.path()).unwrap();
        let text = "hello\n".repeat(150);
        assert_eq!(pieces(&text, &tokenizer, 10).unwrap(), [&text]);
        let gpt_2 = self::tokenizer("gpt-2");
        assert_eq!(pieces(&text, &gpt_2, 10).unwrap().len(), 76);
        // Two line breaks are one token, and so are a full stop and a line break.
        let qwen = self::tokenizer("qwen2");
        let text = "hello.\nhello\n\nhello .\nhello\n";
        let cut = ["hello.\nhello", "\n\nhello .\nhello", "\n"];
        assert_eq!(pieces(text, &qwen, 1).unwrap(), cut);
    }

    #[test]
    fn pieces_of_a_long_text_have_the_tokens_of_the_whole() {
        let line = |number: u64| match number % 5 {
            0 => String::new(),
            1 => format!("    if x == {number} {{ return; }}"),
            2 => format!("The {number}. line. Then an end."),
            3 => format!("Ein Satz für {}", "Übergröße ".repeat(number as usize % 7)),
            _ => format!("日本 {number} 😀"),
        };
        let text: String = (0..5_000).map(|number| line(number) + "\n").collect();
        for name in [tiny::MINI_LM, tiny::SMOL_LM_2] {
            let Some(path) = tiny::real(name) else { continue };
            let tokenizer = Tokenizer::open(path).unwrap();
            let count = pieces(&text, &tokenizer, PIECE).unwrap().len();
            assert_eq!(count, text.len().div_ceil(PIECE), "{name}");
            let whole = tokenizer.encode(&text, false).unwrap();
            assert_eq!(tokens_of(&text, &tokenizer).unwrap(), whole, "{name}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn pieces_have_the_tokens_of_the_whole(
            text in "[he12 .\n\r<éa]{0,80}",
            length in 1..20_usize,
            pre in prop::sample::select(vec!["gpt-2", "smollm", "llama-bpe", "qwen2"]),
        ) {
            let tokenizer = tokenizer(pre);
            let pieces = pieces(&text, &tokenizer, length).unwrap();
            prop_assert_eq!(pieces.concat(), text.clone());
            let cut: Vec<u32> =
                pieces.iter().flat_map(|piece| tokenizer.encode(piece, false).unwrap()).collect();
            prop_assert_eq!(cut, tokenizer.encode(&text, false).unwrap());
        }
    }
}
