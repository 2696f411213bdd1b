//! Texts with a class each, tokenised for a pretrained model when they are read.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use candelabrum_datasets::{Batch, Dataset, Error as DataError, LabelledTexts, Pass, hexadecimal};
use candle_core::{Device, Tensor};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::rows::{check_count, padded};
use crate::{
    error::{Error, Result},
    tokenizer::Tokenizer,
};

/// Texts with a class each, as the tokens of a pretrained model.
///
/// A loader's threads tokenise the texts of a batch. What is in memory is the texts.
#[derive(Clone)]
pub struct ClassifiedTexts {
    texts: Arc<[Box<str>]>,
    labels: Arc<[u32]>,
    classes: Arc<[String]>,
    tokenizer: Tokenizer,
    padding: u32,
    longest: usize,
    /// Both are computed at the first request.
    left_out: Arc<OnceLock<usize>>,
    sha256: Arc<OnceLock<String>>,
}

impl ClassifiedTexts {
    /// Texts of at most `longest` tokens with the special tokens of the tokenizer. Of longer texts the end is cut off,
    /// as in transformers: the special tokens behind the text, such as `[SEP]`, stay.
    ///
    /// # Errors
    /// A tokenizer without a padding token, a length without room for a text, no texts, or one class of texts.
    pub fn new(texts: &LabelledTexts, tokenizer: &Tokenizer, longest: usize) -> Result<Self> {
        let padding = tokenizer.padding().ok_or_else(|| {
            Error::argument(
                "a tokenizer without a padding token: name one as pad_token in tokenizer_config.json",
            )
        })?;
        tokenizer.encode_first("", longest)?;
        check_count(texts.len())?;
        if let [only] = texts.classes() {
            return Err(Error::argument(format!(
                "texts of the one class {only:?}: nothing tells them apart, so a classifier learns nothing"
            )));
        }
        Ok(Self {
            texts: texts.texts().map(Box::from).collect(),
            labels: texts.labels().into(),
            classes: texts.classes().into(),
            tokenizer: tokenizer.clone(),
            padding,
            longest,
            left_out: Arc::default(),
            sha256: Arc::default(),
        })
    }

    /// The names of the classes.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The number of texts whose end is cut off.
    ///
    /// # Errors
    /// A text that cannot be tokenised.
    ///
    /// # Cost
    /// The first call tokenises all texts on all threads.
    pub fn left_out(&self) -> Result<usize> {
        if let Some(&count) = self.left_out.get() {
            return Ok(count);
        }
        let cut = self.texts.par_iter().map(|text| {
            self.tokenizer.encode_first(text, self.longest).map(|(_, is_cut)| usize::from(is_cut))
        });
        let count = cut.try_reduce(|| 0, |a, b| Ok(a + b))?;
        Ok(*self.left_out.get_or_init(|| count))
    }

    fn tokens(&self, sample: u32) -> Result<Vec<u32>, DataError> {
        let len = self.len();
        let text = self.texts.get(sample as usize);
        let text = text.ok_or(DataError::NoSuchSample { sample: sample as usize, len })?;
        self.tokenizer.encode_first(text, self.longest).map(|(tokens, _)| tokens).map_err(|error| {
            let source = Box::new(DataError::custom(error));
            DataError::Sample { sample: format!("sample {sample}"), source }
        })
    }
}

impl Dataset for ClassifiedTexts {
    type Batch = Batch;

    fn len(&self) -> usize {
        self.texts.len()
    }

    /// # Shapes
    /// Inputs (B, T) and labels (B,), both u32. T is the number of tokens of the longest text in the batch.
    fn read(&self, samples: &[u32], _: &Pass) -> Result<Batch, DataError> {
        let texts =
            samples.iter().map(|&sample| self.tokens(sample)).collect::<Result<Vec<_>, _>>()?;
        let ys: Vec<u32> = samples.iter().map(|&sample| self.labels[sample as usize]).collect();
        let ys = Tensor::from_vec(ys, samples.len(), &Device::Cpu)?;
        Ok(Batch { xs: padded(&texts, self.padding)?, ys })
    }

    /// # Cost
    /// The first call reads all texts and all files of the tokenizer.
    fn fingerprint(&self) -> Result<String, DataError> {
        let sha256 = self.sha256.get_or_init(|| {
            let mut hasher = Sha256::new();
            for (text, label) in self.texts.iter().zip(&*self.labels) {
                hasher.update((text.len() as u64).to_le_bytes());
                hasher.update(label.to_le_bytes());
                hasher.update(text.as_bytes());
            }
            hexadecimal(&hasher.finalize())
        });
        let (count, longest, tokenizer) = (self.len(), self.longest, self.tokenizer.digest());
        Ok(format!("{count} texts {sha256} of at most {longest} tokens of tokenizer {tokenizer}"))
    }
}

impl fmt::Debug for ClassifiedTexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClassifiedTexts")
            .field("len", &self.len())
            .field("classes", &self.classes)
            .field("tokenizer", &self.tokenizer)
            .field("longest", &self.longest)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use candelabrum_datasets::TextOptions;

    use super::*;
    use crate::tokenizer::tiny;

    /// A tokenizer as BERT's, and texts: good ones, then bad ones.
    fn texts(lines: [&str; 2]) -> (Tokenizer, LabelledTexts) {
        let folder = tempfile::tempdir().unwrap();
        let names = ["good", "bad"];
        let paths = names.map(|name| folder.path().join(name));
        paths.iter().zip(lines).for_each(|(path, lines)| fs::write(path, lines).unwrap());
        tiny::bert(folder.path());
        let texts = LabelledTexts::lines(names.into_iter().zip(&paths), &TextOptions::default());
        (Tokenizer::open(folder.path()).unwrap(), texts.unwrap())
    }

    #[test]
    fn batches_are_as_wide_as_their_longest_text() {
        let (tokenizer, texts) = texts(["a fine film\na\n", "no . ends films ."]);
        let data = ClassifiedTexts::new(&texts, &tokenizer, 6).unwrap();
        assert_eq!((data.len(), data.classes()), (3, &["bad".to_owned(), "good".to_owned()][..]));
        let read = |samples: &[u32]| {
            let Batch { xs, ys } = data.read(samples, &Pass::training(0, 0)).unwrap();
            (xs.to_vec2::<u32>().unwrap(), ys.to_vec1::<u32>().unwrap())
        };
        assert_eq!(read(&[1]), (vec![vec![2, 4, 3]], vec![1]));
        let rows = vec![vec![2, 4, 3, 0, 0], vec![2, 4, 5, 6, 3]];
        assert_eq!(read(&[1, 0]), (rows, vec![1, 1]));
        // The last special token stays.
        assert_eq!(read(&[2]), (vec![vec![2, 8, 9, 10, 6, 3]], vec![0]));
        assert_eq!(data.left_out().unwrap(), 1);
        assert_eq!(data.read(&[], &Pass::evaluation()).unwrap().xs.dims(), [0, 1]);
        assert!(matches!(
            data.read(&[3], &Pass::evaluation()),
            Err(DataError::NoSuchSample { sample: 3, len: 3 })
        ));
    }

    #[test]
    fn texts_for_which_there_is_no_room_or_no_padding_are_errors() {
        let (bert, texts) = texts(["a\n", "film\n"]);
        let message = ClassifiedTexts::new(&texts, &bert, 2).unwrap_err().to_string();
        assert!(
            message.ends_with("of which 2 are special: there is no room for a text"),
            "{message}"
        );
        let mut metadata = tiny::metadata("gpt-2");
        metadata.remove("tokenizer.ggml.padding_token_id");
        let gpt_2 = Tokenizer::from_gguf("model.gguf", &metadata).unwrap();
        let message = ClassifiedTexts::new(&texts, &gpt_2, 2).unwrap_err().to_string();
        assert!(message.starts_with("a tokenizer without a padding token: name one"), "{message}");
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("good"), "a\n").unwrap();
        let one = [("good", folder.path().join("good"))];
        let one = LabelledTexts::lines(one, &TextOptions::default()).unwrap();
        let message = ClassifiedTexts::new(&one, &bert, 8).unwrap_err().to_string();
        assert!(message.starts_with("texts of the one class \"good\""), "{message}");
    }

    #[test]
    fn the_fingerprint_shows_every_difference() {
        let of = |lines, longest| {
            let (tokenizer, texts) = texts(lines);
            ClassifiedTexts::new(&texts, &tokenizer, longest).unwrap().fingerprint().unwrap()
        };
        let one = of(["a\n", "film\n"], 8);
        assert_eq!(of(["a\n", "film\n"], 8), one);
        assert!(
            ![of(["a\n", "films\n"], 8), of(["film\n", "a\n"], 8), of(["a\n", "film\n"], 9)]
                .contains(&one)
        );
    }
}
