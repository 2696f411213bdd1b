//! What can be wrong with a text and its tokens.

use std::path::PathBuf;

use candle_core::DType;

/// An error of a text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A character is not in the vocabulary.
    #[error(
        "the character {character:?} at byte {offset} is not among the {vocabulary} of the \
         vocabulary: make it of all texts"
    )]
    UnknownCharacter {
        /// The character.
        character: char,
        /// Its offset in the text, in bytes.
        offset: usize,
        /// The number of characters in the vocabulary.
        vocabulary: usize,
    },
    /// A token is not in the vocabulary.
    #[error("token {token} of a vocabulary of {vocabulary}: tokens count from 0")]
    UnknownToken {
        /// The token.
        token: u32,
        /// The number of tokens in the vocabulary.
        vocabulary: usize,
    },
    /// The windows have no tokens, or all of them begin at the same place.
    #[error("windows of {length} tokens every {stride} tokens: both must be at least 1")]
    Window {
        /// The number of input tokens in a window.
        length: usize,
        /// The number of tokens from the start of one window to the start of the next.
        stride: usize,
    },
    /// The text is shorter than a window.
    #[error(
        "a text of {tokens} tokens has no window of {length} tokens and their targets: {} are needed",
        length.saturating_add(1)
    )]
    TooShort {
        /// The number of tokens in the text.
        tokens: usize,
        /// The number of input tokens in a window.
        length: usize,
    },
    /// Tokens cannot be of the chosen type.
    #[error("tokens up to {largest} as {dtype:?}: choose u8 for tokens below 256, u32 or i64")]
    TokenType {
        /// The largest token.
        largest: u32,
        /// The chosen type.
        dtype: DType,
    },
    /// A file of text is not UTF-8.
    #[error("{}: not UTF-8 at byte {offset}: convert the file, or use the vocabulary of bytes", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The offset of the first byte that is wrong.
        offset: usize,
    },
    /// The size of a file is not a multiple of the size of its tokens.
    #[error("{}: {bytes} bytes are not a whole number of tokens of {width} bytes", path.display())]
    PartialToken {
        /// The file.
        path: PathBuf,
        /// The size of the file.
        bytes: u64,
        /// The size of a token.
        width: usize,
    },
}
