//! Windows of a text, for models that predict the next token.
//!
//! The text is one long sequence of tokens. A sample is a window of T + 1 of them: the first T are the
//! inputs, the last T the targets. Windows may overlap. Tokens are in memory, in one byte each if there
//! are at most 256 different ones, or stay in a file, from which each window is read by its position.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use candle_core::{DType, Device, Tensor};
use sha2::{Digest, Sha256};

use crate::{
    dataset::Dataset,
    digest::{hexadecimal, sampled},
    error::{DataFault, Error, Result, check_count},
    pass::Pass,
    vocabulary::Vocabulary,
};

/// Windows of a text. A batch is (inputs, targets), both (B, T).
///
/// ```
/// use candelabrum_datasets::{Dataset, Pass, TextDataset, Vocabulary};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let text = "abcdefgh";
/// let data = TextDataset::of_text(text, &Vocabulary::characters(text), 3, 2)?;
/// assert_eq!(data.len(), 3); // abcd, cdef, efgh
/// let (inputs, targets) = data.read(&[1], &Pass::evaluation())?;
/// assert_eq!(inputs.to_vec2::<u32>()?, [[2, 3, 4]]);
/// assert_eq!(targets.to_vec2::<u32>()?, [[3, 4, 5]]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct TextDataset {
    tokens: StoredTokens,
    length: usize,
    stride: usize,
    dtype: DType,
    /// Computed at the first request.
    sha256: Arc<OnceLock<String>>,
}

/// How the tokens of a file are written: unsigned integers, least significant byte first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenWidth {
    /// One byte for each token.
    U8,
    /// Two bytes for each token, as in nanoGPT's files.
    U16,
    /// Four bytes for each token.
    U32,
}

#[derive(Clone)]
enum StoredTokens {
    Bytes(Arc<[u8]>),
    Words(Arc<[u32]>),
    File { file: Arc<File>, path: PathBuf, width: TokenWidth, count: usize },
}

impl TextDataset {
    /// Windows of `length` tokens and their targets, of which each begins `stride` tokens after the one
    /// before. With a stride of `length`, every token is a target once, except the first one and those
    /// after the last full window ([`left_out`](Self::left_out)).
    ///
    /// # Errors
    /// A length or a stride of 0, or fewer than `length + 1` tokens.
    pub fn new(tokens: impl Into<Vec<u32>>, length: usize, stride: usize) -> Result<Self> {
        let tokens = tokens.into();
        let bytes: Option<Vec<u8>> = tokens.iter().map(|&token| u8::try_from(token).ok()).collect();
        let tokens = bytes
            .map_or(StoredTokens::Words(tokens.into()), |bytes| StoredTokens::Bytes(bytes.into()));
        Self::from_tokens(tokens, length, stride)
    }

    /// Windows of a text: see [`new`](Self::new).
    ///
    /// # Errors
    /// Those of [`Vocabulary::encode`] and of [`new`](Self::new).
    pub fn of_text(
        text: &str,
        vocabulary: &Vocabulary,
        length: usize,
        stride: usize,
    ) -> Result<Self> {
        if vocabulary.is_bytes() {
            return Self::from_tokens(StoredTokens::Bytes(text.as_bytes().into()), length, stride);
        }
        Self::new(vocabulary.encode(text)?, length, stride)
    }

    /// Windows of a file of text, which is read into memory: see [`new`](Self::new). For the vocabulary
    /// of bytes, the file may have any content.
    ///
    /// # Errors
    /// A file that cannot be read or, except for bytes, is not UTF-8. Those of
    /// [`of_text`](Self::of_text).
    pub fn open(
        path: impl AsRef<Path>,
        vocabulary: &Vocabulary,
        length: usize,
        stride: usize,
    ) -> Result<Self> {
        let path = path.as_ref();
        let content = std::fs::read(path).map_err(Error::io("read", path))?;
        if vocabulary.is_bytes() {
            return Self::from_tokens(StoredTokens::Bytes(content.into()), length, stride);
        }
        let text = String::from_utf8(content).map_err(|error| {
            let offset = error.utf8_error().valid_up_to();
            let what = format!(
                "not UTF-8 at byte {offset}: convert the file, or use the vocabulary of bytes"
            );
            DataFault::Unsupported.at(path, what)
        })?;
        Self::of_text(&text, vocabulary, length, stride)
    }

    /// Windows of a file of tokens, which stays on the disk: see [`new`](Self::new). Only the windows of
    /// a batch are read.
    ///
    /// # Errors
    /// A file that cannot be opened or whose size is no multiple of a token's. Those of
    /// [`new`](Self::new).
    pub fn open_tokens(
        path: impl AsRef<Path>,
        width: TokenWidth,
        length: usize,
        stride: usize,
    ) -> Result<Self> {
        let path = path.as_ref();
        let file = File::open(path).map_err(Error::io("open", path))?;
        let bytes = file.metadata().map_err(Error::io("open", path))?.len();
        if !bytes.is_multiple_of(width.bytes() as u64) {
            let width = width.bytes();
            let what = format!("{bytes} bytes are not a whole number of tokens of {width} bytes");
            return Err(DataFault::Corrupt.at(path, what));
        }
        let count = (bytes / width.bytes() as u64) as usize;
        let (file, path) = (Arc::new(file), path.into());
        Self::from_tokens(StoredTokens::File { file, path, width, count }, length, stride)
    }

    /// The same windows with tokens of another type in the tensors: u8, u32 (the default) or i64.
    ///
    /// # Errors
    /// Another type, or u8 where tokens may be above 255.
    pub fn tokens_as(self, dtype: DType) -> Result<Self> {
        let largest = self.tokens.largest();
        if matches!(dtype, DType::U32 | DType::I64) || dtype == DType::U8 && largest < 256 {
            return Ok(Self { dtype, ..self });
        }
        Err(Error::argument(format!(
            "tokens up to {largest} as {dtype:?}: choose u8 for tokens below 256, u32 or i64"
        )))
    }

    /// The number of tokens in the text.
    pub fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// The number of tokens that are in no window: those after the last one, and those between windows if
    /// the stride is larger than a window with its targets.
    pub fn left_out(&self) -> usize {
        let (windows, window) = (self.len(), self.length + 1);
        let covered = (windows - 1) * self.stride.min(window) + window;
        self.tokens() - covered
    }

    fn from_tokens(tokens: StoredTokens, length: usize, stride: usize) -> Result<Self> {
        if length == 0 || stride == 0 {
            return Err(Error::argument(format!(
                "windows of {length} tokens every {stride} tokens: both must be at least 1"
            )));
        }
        if tokens.len() <= length {
            return Err(Error::argument(format!(
                "a text of {} tokens has no window of {length} tokens and their targets: {} are \
                 needed",
                tokens.len(),
                length.saturating_add(1)
            )));
        }
        let data = Self { tokens, length, stride, dtype: DType::U32, sha256: Arc::default() };
        check_count(data.len())?;
        Ok(data)
    }

    /// (B * T) tokens -> (B, T)
    fn tensor(&self, tokens: Vec<u32>) -> Result<Tensor> {
        let rows = tokens.len() / self.length;
        let tensor = Tensor::from_vec(tokens, (rows, self.length), &Device::Cpu)?;
        Ok(tensor.to_dtype(self.dtype)?)
    }
}

impl Dataset for TextDataset {
    type Batch = (Tensor, Tensor);

    fn len(&self) -> usize {
        (self.tokens.len() - self.length - 1) / self.stride + 1
    }

    fn read(&self, samples: &[u32], _: &Pass) -> Result<(Tensor, Tensor)> {
        let mut inputs = Vec::with_capacity(samples.len() * self.length);
        let mut targets = Vec::with_capacity(samples.len() * self.length);
        for &sample in samples {
            let sample = sample as usize;
            if sample >= self.len() {
                return Err(Error::NoSuchSample { sample, len: self.len() });
            }
            let window = self.tokens.window(sample * self.stride, self.length + 1)?;
            inputs.extend_from_slice(&window[..self.length]);
            targets.extend_from_slice(&window[1..]);
        }
        Ok((self.tensor(inputs)?, self.tensor(targets)?))
    }

    /// # Cost
    /// The first call reads all tokens that are in memory. It reads 64 KiB of a file of tokens.
    fn fingerprint(&self) -> Result<String> {
        let Self { length, stride, dtype, .. } = self;
        let tokens = match &self.tokens {
            StoredTokens::File { file, path, width, count } => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let bytes = (count * width.bytes()) as u64;
                let blocks = sampled(file, bytes).map_err(Error::io("read", path))?;
                format!("{count} tokens of {width:?} in {name} {blocks}")
            }
            tokens => self.sha256.get_or_init(|| tokens.sha256()).clone(),
        };
        Ok(format!("{tokens}, {length} every {stride} as {dtype:?}"))
    }
}

impl TokenWidth {
    fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::U32 => 4,
        }
    }
}

impl StoredTokens {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Words(words) => words.len(),
            Self::File { count, .. } => *count,
        }
    }

    /// The largest token, or, in a file, the largest that can be there.
    fn largest(&self) -> u32 {
        match self {
            Self::Bytes(bytes) => bytes.iter().copied().max().unwrap_or(0).into(),
            Self::Words(words) => words.iter().copied().max().unwrap_or(0),
            Self::File { width: TokenWidth::U8, .. } => u8::MAX.into(),
            Self::File { width: TokenWidth::U16, .. } => u16::MAX.into(),
            Self::File { width: TokenWidth::U32, .. } => u32::MAX,
        }
    }

    /// `count` tokens from `start` on, which are not after the end.
    fn window(&self, start: usize, count: usize) -> Result<Vec<u32>> {
        match self {
            Self::Bytes(bytes) => {
                Ok(bytes[start..start + count].iter().map(|&byte| byte.into()).collect())
            }
            Self::Words(words) => Ok(words[start..start + count].to_vec()),
            Self::File { file, path, width, .. } => {
                let width = width.bytes();
                let mut bytes = vec![0; count * width];
                file.read_exact_at(&mut bytes, (start * width) as u64)
                    .map_err(Error::io("read", path))?;
                let token = |bytes: &[u8]| {
                    bytes.iter().rev().fold(0, |token, &byte| token << 8 | u32::from(byte))
                };
                Ok(bytes.chunks_exact(width).map(token).collect())
            }
        }
    }

    /// The digest of tokens in memory, which does not depend on how they are stored.
    fn sha256(&self) -> String {
        let mut hasher = Sha256::new();
        match self {
            Self::Bytes(bytes) => {
                bytes.iter().for_each(|&byte| hasher.update(u32::from(byte).to_le_bytes()));
            }
            Self::Words(words) => words.iter().for_each(|word| hasher.update(word.to_le_bytes())),
            Self::File { .. } => {}
        }
        hexadecimal(&hasher.finalize())
    }
}

impl std::fmt::Debug for StoredTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} tokens", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(data: &TextDataset) -> Vec<Vec<u32>> {
        let all: Vec<u32> = (0..data.len() as u32).collect();
        let (inputs, targets) = data.read(&all, &Pass::evaluation()).unwrap();
        let numbers = |tensor: Tensor| tensor.to_dtype(DType::U32).unwrap().to_vec2().unwrap();
        let (inputs, targets): (Vec<Vec<u32>>, Vec<Vec<u32>>) = (numbers(inputs), numbers(targets));
        assert!(
            inputs
                .iter()
                .zip(&targets)
                .all(|(input, target)| input[1..] == target[..target.len() - 1])
        );
        inputs.into_iter().zip(targets).map(|(i, t)| [&i[..1], &t].concat()).collect()
    }

    #[test]
    fn windows_have_their_length_and_stride_and_end_inside_the_text() {
        let windows = |len: u32, length, stride| {
            windows(&TextDataset::new((0..len).collect::<Vec<_>>(), length, stride).unwrap())
        };
        assert_eq!(windows(7, 2, 2), [[0, 1, 2], [2, 3, 4], [4, 5, 6]]);
        assert_eq!(windows(6, 2, 2), [[0, 1, 2], [2, 3, 4]]);
        assert_eq!(windows(4, 2, 1), [[0, 1, 2], [1, 2, 3]]);
        assert_eq!(windows(3, 2, 100), [[0, 1, 2]]);
        assert_eq!(windows(500, 499, 1)[0], (0..500).collect::<Vec<_>>());
    }

    #[test]
    fn tokens_in_no_window_are_counted() {
        for (tokens, length, stride) in
            [(7, 2, 2), (8, 2, 2), (6, 2, 2), (4, 2, 1), (30, 2, 3), (31, 2, 10), (3, 2, 100)]
        {
            let all: Vec<u32> = (0..tokens).collect();
            let data = TextDataset::new(all.clone(), length, stride).unwrap();
            let seen: std::collections::BTreeSet<u32> =
                windows(&data).concat().into_iter().collect();
            assert_eq!(data.left_out(), all.len() - seen.len(), "{tokens}, {length}, {stride}");
        }
    }

    #[test]
    fn tokens_have_the_chosen_type() {
        let data = TextDataset::new([0, 255, 3], 1, 1).unwrap();
        for dtype in [DType::U8, DType::U32, DType::I64] {
            let typed = data.clone().tokens_as(dtype).unwrap();
            let (inputs, targets) = typed.read(&[1], &Pass::evaluation()).unwrap();
            assert_eq!((inputs.dtype(), targets.dtype()), (dtype, dtype));
            assert_eq!(windows(&typed), [[0, 255], [255, 3]]);
            assert_eq!(typed.read(&[], &Pass::evaluation()).unwrap().0.dims(), [0, 1]);
        }
        assert!(data.tokens_as(DType::F32).is_err());
        let message = TextDataset::new([0, 256], 1, 1).unwrap().tokens_as(DType::U8).unwrap_err();
        assert!(message.to_string().starts_with("tokens up to 256 as U8"), "{message}");
    }

    #[test]
    fn files_give_the_windows_of_their_tokens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.bin");
        let tokens: Vec<u32> = (0..40).map(|i| i * 7 % 256).collect();
        let expected = windows(&TextDataset::new(tokens.clone(), 5, 4).unwrap());
        for (width, bytes) in [(TokenWidth::U8, 1), (TokenWidth::U16, 2), (TokenWidth::U32, 4)] {
            let content: Vec<u8> =
                tokens.iter().flat_map(|token| token.to_le_bytes()[..bytes].to_vec()).collect();
            std::fs::write(&path, content).unwrap();
            let data = TextDataset::open_tokens(&path, width, 5, 4).unwrap();
            assert_eq!(windows(&data), expected);
            let fingerprint = data.fingerprint().unwrap();
            assert!(fingerprint.contains("40 tokens"));
            let last = std::fs::metadata(&path).unwrap().len() - 1;
            File::options().write(true).open(&path).unwrap().write_all_at(&[9], last).unwrap();
            assert_ne!(data.fingerprint().unwrap(), fingerprint);
        }
        let error = TextDataset::open(&path, &Vocabulary::bytes(), 200, 1).unwrap_err().to_string();
        assert!(error.contains("a text of 160 tokens has no window of 200"), "{error}");
        std::fs::write(&path, [b'a', b'b', 0xff]).unwrap();
        let error = TextDataset::open_tokens(&path, TokenWidth::U16, 1, 1).unwrap_err().to_string();
        assert!(error.ends_with("3 bytes are not a whole number of tokens of 2 bytes"), "{error}");
        let characters = Vocabulary::characters("ab");
        let error = TextDataset::open(&path, &characters, 1, 1).unwrap_err().to_string();
        assert!(error.contains("tokens.bin: not UTF-8 at byte 2"), "{error}");
        std::fs::write(&path, "abba").unwrap();
        let data = TextDataset::open(&path, &characters, 1, 1).unwrap();
        assert_eq!(windows(&data), [[0, 1], [1, 1], [1, 0]]);
    }

    #[test]
    fn windows_without_tokens_are_errors() {
        let error = |length, stride| TextDataset::new([1, 2, 3], length, stride).unwrap_err();
        for (length, stride) in [(0, 1), (1, 0)] {
            let message = error(length, stride).to_string();
            assert!(message.ends_with("both must be at least 1"), "{message}");
        }
        assert!(error(3, 1).to_string().ends_with("4 are needed"));
        assert!(error(usize::MAX, 1).to_string().contains("no window"));
        let data = TextDataset::new([1, 2, 3], 1, 1).unwrap();
        assert!(matches!(data.read(&[2], &Pass::evaluation()), Err(Error::NoSuchSample { .. })));
    }

    #[test]
    fn the_fingerprint_shows_every_difference_but_not_how_tokens_are_stored() {
        let of = |tokens: &[u32], length, stride| {
            TextDataset::new(tokens, length, stride).unwrap().fingerprint().unwrap()
        };
        let one = of(&[1, 2, 3, 4], 2, 1);
        assert_eq!(of(&[1, 2, 3, 4], 2, 1), one);
        let text =
            TextDataset::of_text("\u{1}\u{2}\u{3}\u{4}", &Vocabulary::bytes(), 2, 1).unwrap();
        assert_eq!(text.fingerprint().unwrap(), one);
        for other in [of(&[1, 2, 3, 5], 2, 1), of(&[1, 2, 3, 4], 1, 1), of(&[1, 2, 3, 4], 2, 2)] {
            assert_ne!(other, one);
        }
    }
}
