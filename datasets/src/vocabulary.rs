//! From text to the numbers of tokens and back, by bytes or by characters.
//!
//! Both vocabularies are a function of the text alone, so all ranks have the same one without a
//! message. Larger vocabularies come from a tokenizer of the user's choice, whose tokens go into
//! [`TextDataset::new`](crate::TextDataset::new).

use std::{collections::BTreeSet, sync::Arc};

use crate::error::{Error, Result};

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
}

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

    /// The number of tokens.
    pub fn len(&self) -> usize {
        match &self.0 {
            TokenKind::Bytes => 256,
            TokenKind::Characters(characters) => characters.len(),
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

    /// The tokens of a text.
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
        }
    }

    /// The text of some tokens. Bytes that are not UTF-8 become replacement characters.
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
}
