//! From text to the numbers of tokens and back, by bytes, by characters or by words.
//!
//! The vocabularies are a function of the text alone, so all ranks have the same one without a
//! message. Other vocabularies come from a tokenizer of the user's choice, whose tokens go into
//! [`TextDataset::new`](crate::TextDataset::new).

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    error::{Error, Result},
    words::words,
};

/// The tokens of a text.
///
/// ```
/// use candelabrum_datasets::Vocabulary;
///
/// # fn main() -> candelabrum_datasets::Result<()> {
/// let characters = Vocabulary::characters("hello");
/// assert_eq!(characters.len(), 4); // e, h, l, o
/// assert_eq!(characters.encode("hole")?, [1, 3, 2, 0]);
/// assert_eq!(characters.decode(&[1, 3, 2, 0])?, "hole");
/// assert_eq!(Vocabulary::bytes().encode("é")?, [0xc3, 0xa9]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vocabulary(TokenKind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum TokenKind {
    Bytes,
    /// In ascending order.
    Characters(Arc<[char]>),
    Words(Arc<WordCounts>),
}

#[derive(Debug, PartialEq, Eq)]
struct WordCounts {
    /// By their tokens, which count from [`FIRST_WORD`].
    words: Vec<String>,
    tokens: BTreeMap<String, u32>,
}

/// The token of the first word.
const FIRST_WORD: u32 = 2;

impl Vocabulary {
    /// The 256 bytes. A text becomes its bytes in UTF-8, so every text has tokens.
    pub fn bytes() -> Self {
        Self(TokenKind::Bytes)
    }

    /// The characters that occur in a text, in the order of Unicode.
    pub fn characters(text: &str) -> Self {
        let characters: BTreeSet<char> = text.chars().collect();
        Self(TokenKind::Characters(characters.into_iter().collect()))
    }

    /// In a vocabulary of words, the token with which shorter texts are filled up. No word has it.
    pub const PADDING: u32 = 0;

    /// In a vocabulary of words, the token of all words that are not in it.
    pub const UNKNOWN: u32 = 1;

    /// The [`words`] of texts, which should be those for training: the `most` most frequent of those that come at
    /// least `least` times. More frequent words have smaller tokens, from 2 on. Words of the same frequency have the
    /// order of the alphabet.
    ///
    /// ```
    /// use candelabrum_datasets::Vocabulary;
    ///
    /// # fn main() -> candelabrum_datasets::Result<()> {
    /// let vocabulary = Vocabulary::words(["a good film", "a bad film", "A mess"], 2, 10_000);
    /// assert_eq!(vocabulary.len(), 4); // padding, unknown, a, film
    /// assert_eq!(vocabulary.encode("a great film")?, [2, Vocabulary::UNKNOWN, 3]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn words<'a>(texts: impl IntoIterator<Item = &'a str>, least: usize, most: usize) -> Self {
        let mut counts = BTreeMap::<String, usize>::new();
        for word in texts.into_iter().flat_map(words) {
            *counts.entry(word).or_default() += 1;
        }
        let mut counted: Vec<(String, usize)> =
            counts.into_iter().filter(|(_, count)| *count >= least).collect();
        counted.sort_by_key(|(_, count)| Reverse(*count)); // stable: the alphabet decides otherwise
        let words: Vec<String> = counted.into_iter().take(most).map(|(word, _)| word).collect();
        let tokens = words.iter().cloned().zip(FIRST_WORD..).collect();
        Self(TokenKind::Words(Arc::new(WordCounts { words, tokens })))
    }

    /// The number of tokens. Padding and unknown words count in a vocabulary of words.
    pub fn len(&self) -> usize {
        match &self.0 {
            TokenKind::Bytes => 256,
            TokenKind::Characters(characters) => characters.len(),
            TokenKind::Words(words) => FIRST_WORD as usize + words.words.len(),
        }
    }

    /// Whether there are no tokens. This is so for the characters of an empty text.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the tokens are bytes.
    pub(crate) fn is_bytes(&self) -> bool {
        self.0 == TokenKind::Bytes
    }

    /// Whether the tokens are words.
    pub(crate) fn is_words(&self) -> bool {
        matches!(self.0, TokenKind::Words(_))
    }

    /// The tokens of a text. A word that is not in the vocabulary is [`UNKNOWN`](Self::UNKNOWN).
    ///
    /// # Errors
    /// A character that is not in the vocabulary.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match &self.0 {
            TokenKind::Bytes => Ok(text.bytes().map(u32::from).collect()),
            TokenKind::Characters(characters) => {
                let token = |(offset, character)| {
                    let found = characters.binary_search(&character);
                    found.map(|token| token as u32).map_err(|_| {
                        Error::argument(format!(
                            "the character {character:?} at byte {offset} is not among the {} of \
                             the vocabulary: make it of all texts",
                            self.len()
                        ))
                    })
                };
                text.char_indices().map(token).collect()
            }
            TokenKind::Words(known) => {
                let token = |word| known.tokens.get(&word).copied().unwrap_or(Self::UNKNOWN);
                Ok(words(text).map(token).collect())
            }
        }
    }

    /// The text of some tokens. Bytes that are not UTF-8 become replacement characters. Words have a space
    /// between them, `<unknown>` stands for the unknown ones, and padding is left out.
    ///
    /// # Errors
    /// A token that is not in the vocabulary.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        let unknown = |token| {
            let len = self.len();
            Error::argument(format!("token {token} of a vocabulary of {len}: tokens count from 0"))
        };
        match &self.0 {
            TokenKind::Bytes => {
                let byte = |&token| u8::try_from(token).map_err(|_| unknown(token));
                let bytes = tokens.iter().map(byte).collect::<Result<Vec<u8>>>()?;
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            TokenKind::Characters(characters) => {
                let known = |&token: &u32| characters.get(token as usize).copied();
                tokens.iter().map(|token| known(token).ok_or_else(|| unknown(*token))).collect()
            }
            TokenKind::Words(known) => {
                let word = |&token: &u32| match token {
                    Self::UNKNOWN => Ok("<unknown>"),
                    _ => {
                        let word = known.words.get((token - FIRST_WORD) as usize);
                        word.map(String::as_str).ok_or_else(|| unknown(token))
                    }
                };
                let tokens = tokens.iter().filter(|token| **token != Self::PADDING);
                Ok(tokens.map(word).collect::<Result<Vec<&str>>>()?.join(" "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_survives_the_way_through_tokens() {
        let text = "Größe: 3 µm\n";
        for vocabulary in [Vocabulary::bytes(), Vocabulary::characters(text)] {
            let tokens = vocabulary.encode(text).unwrap();
            assert_eq!(vocabulary.decode(&tokens).unwrap(), text);
            assert!(tokens.iter().all(|&token| (token as usize) < vocabulary.len()));
        }
        assert!(Vocabulary::characters("").is_empty());
    }

    #[test]
    fn what_is_not_in_the_vocabulary_is_an_error() {
        let vocabulary = Vocabulary::characters("abc");
        let message = vocabulary.encode("aéz").unwrap_err().to_string();
        assert_eq!(
            message,
            "the character 'é' at byte 1 is not among the 3 of the vocabulary: make it of all texts"
        );
        let message = vocabulary.decode(&[0, 3]).unwrap_err().to_string();
        assert_eq!(message, "token 3 of a vocabulary of 3: tokens count from 0");
        assert!(Vocabulary::bytes().decode(&[256]).is_err());
        assert_eq!(Vocabulary::bytes().decode(&[0xff, 0x61]).unwrap(), "\u{fffd}a");
    }
    #[test]
    fn words_are_numbered_by_their_frequency_and_then_by_the_alphabet() {
        let texts = ["b a c", "c A d", "c e"];
        let vocabulary = Vocabulary::words(texts, 1, 4);
        assert_eq!(vocabulary.len(), 6);
        // c 3 times, a twice, then b, d and e once each, of which e is one too many.
        assert_eq!(vocabulary.encode("C a b d e zebra").unwrap(), [2, 3, 4, 5, 1, 1]);
        assert_eq!(vocabulary.decode(&[2, 5, 1, 0, 0]).unwrap(), "c d <unknown>");
        assert!(vocabulary.decode(&[6]).is_err());
        assert_eq!(Vocabulary::words(texts, 2, 9).len(), 4);
        assert_eq!(Vocabulary::words([], 1, 9).encode("x y").unwrap(), [1, 1]);
    }
}
