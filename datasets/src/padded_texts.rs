//! Texts as numbers of words in tensors, cut and filled up to one length.
//!
//! Token 0 is the padding, and stands at the end alone. So a model knows the length of a text from its
//! inputs: the number of tokens before the first 0. No text has the length 0: one without words is a
//! single unknown word. A document is a row of sentences in the same way: those behind its last one are
//! 0 throughout.
//!
//! Texts of like lengths can be put into buckets. Then a batch is no wider than its bucket, and with
//! [`Shuffle::WithinShards`](crate::Shuffle::WithinShards) all samples of a global batch are of one bucket.

use std::sync::{Arc, OnceLock};

use candle_core::{Device, Tensor};
use sha2::{Digest, Sha256};

use crate::{
    batch::Batch,
    dataset::Dataset,
    digest::hexadecimal,
    error::{Error, Result},
    pass::Pass,
    vocabulary::Vocabulary,
};

/// Texts of words, or documents of sentences of words, with a class each.
///
/// [`LabelledTexts::padded`](crate::LabelledTexts::padded) and
/// [`LabelledTexts::documents`](crate::LabelledTexts::documents) make them.
#[derive(Debug, Clone)]
pub struct PaddedTexts {
    /// The words of each text, or the sentences of each document, each filled up to `words`.
    samples: Arc<[Box<[u32]>]>,
    labels: Arc<[u32]>,
    classes: Arc<[String]>,
    /// In documents, the words of a sentence.
    words: Option<usize>,
    /// In the order of the samples.
    buckets: Arc<[LengthBucket]>,
    /// The longest text or document.
    longest: usize,
    left_out: usize,
    /// Computed at the first request.
    sha256: Arc<OnceLock<String>>,
}

/// Adjacent samples that are filled up to the same length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LengthBucket {
    /// The number of the first sample behind the bucket.
    end: usize,
    /// The words of a text, or the sentences of a document.
    width: usize,
}

impl PaddedTexts {
    /// The tokens of texts, of which the first `length` are kept.
    pub(crate) fn of_words(
        texts: Vec<Vec<u32>>,
        labels: &Arc<[u32]>,
        classes: &Arc<[String]>,
        vocabulary: &Vocabulary,
        length: usize,
    ) -> Result<Self> {
        let mut left_out = 0;
        let samples = texts.into_iter().map(|text| cut(text, length, &mut left_out).into());
        let data = Self {
            samples: samples.collect(),
            labels: Arc::clone(labels),
            classes: Arc::clone(classes),
            words: None,
            buckets: Arc::from([]),
            longest: length,
            left_out,
            sha256: Arc::default(),
        };
        data.checked(vocabulary)
    }

    /// The tokens of the sentences of documents. The first sentences of each and the first words of these are
    /// kept, \[sentences, words\].
    pub(crate) fn of_sentences(
        documents: Vec<Vec<Vec<u32>>>,
        labels: &Arc<[u32]>,
        classes: &Arc<[String]>,
        vocabulary: &Vocabulary,
        [longest, words]: [usize; 2],
    ) -> Result<Self> {
        let mut left_out = 0;
        let sample = |mut document: Vec<Vec<u32>>| {
            let behind = document.split_off(document.len().min(longest));
            left_out += behind.iter().map(Vec::len).sum::<usize>();
            if document.is_empty() {
                document.push(Vec::new());
            }
            let rows = document.into_iter().flat_map(|sentence| {
                let mut row = cut(sentence, words, &mut left_out);
                row.resize(words, Vocabulary::PADDING);
                row
            });
            rows.collect()
        };
        let samples: Vec<Box<[u32]>> = documents.into_iter().map(sample).collect();
        let data = Self {
            samples: samples.into(),
            labels: Arc::clone(labels),
            classes: Arc::clone(classes),
            words: Some(words),
            buckets: Arc::from([]),
            longest,
            left_out,
            sha256: Arc::default(),
        };
        data.checked(vocabulary)
    }

    fn checked(self, vocabulary: &Vocabulary) -> Result<Self> {
        if self.longest == 0 || self.words == Some(0) {
            return Err(Error::argument(
                "texts or sentences of 0 words: the length must be at least 1",
            ));
        }
        if !vocabulary.is_words() {
            let what =
                "the vocabulary must be one of words (Vocabulary::words), whose token 0 is padding";
            return Err(Error::argument(what));
        }
        if self.samples.is_empty() {
            return Err(Error::empty_dataset());
        }
        let whole = LengthBucket { end: self.samples.len(), width: self.longest };
        Ok(Self { buckets: Arc::from([whole]), ..self })
    }

    /// The same texts in the order of their lengths, in at most so many buckets of about the same size. Documents
    /// go by their sentences. A batch is as wide as its widest bucket, whose width is the length of its longest
    /// text.
    ///
    /// With [`Shuffle::WithinShards`](crate::Shuffle::WithinShards), a global batch has texts of one bucket, whatever
    /// the number of ranks. Only the last batches of an epoch have texts of several ones.
    ///
    /// # Errors
    /// 0 buckets.
    pub fn bucketed(&self, count: usize) -> Result<Self> {
        if count == 0 {
            return Err(Error::argument("0 buckets of texts: there must be at least 1"));
        }
        let mut order: Vec<usize> = (0..self.samples.len()).collect();
        order.sort_by_key(|&sample| self.length(sample)); // stable
        let mut buckets: Vec<LengthBucket> = Vec::new();
        for bucket in 1..=count {
            let share = (order.len() * bucket).div_ceil(count);
            let width = self.length(order[share - 1]);
            // All texts of a length are in one bucket.
            let end = order.partition_point(|&sample| self.length(sample) <= width);
            if buckets.last().is_none_or(|last| last.end < end) {
                buckets.push(LengthBucket { end, width });
            }
        }
        Ok(Self {
            samples: order.iter().map(|&sample| self.samples[sample].clone()).collect(),
            labels: order.iter().map(|&sample| self.labels[sample]).collect(),
            buckets: buckets.into(),
            sha256: Arc::default(),
            ..self.clone()
        })
    }

    /// The names of the classes.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The words of a text, or the sentences of a document, that are kept of it.
    pub fn length(&self, sample: usize) -> usize {
        self.samples.get(sample).map_or(0, |tokens| tokens.len() / self.words.unwrap_or(1))
    }

    /// The dimensions of a sample without buckets: \[T\], or \[S, W\].
    pub fn shape(&self) -> Vec<usize> {
        [self.longest].into_iter().chain(self.words).collect()
    }

    /// The number of samples and the width of each bucket. Without buckets, one of all samples.
    pub fn buckets(&self) -> Vec<(usize, usize)> {
        let starts = [0].into_iter().chain(self.buckets.iter().map(|bucket| bucket.end));
        self.buckets
            .iter()
            .zip(starts)
            .map(|(bucket, start)| (bucket.end - start, bucket.width))
            .collect()
    }

    /// The number of words of all texts that were cut off.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// The width of the bucket of a sample.
    fn width(&self, sample: usize) -> usize {
        let bucket = self.buckets.partition_point(|bucket| bucket.end <= sample);
        self.buckets.get(bucket).map_or(self.longest, |bucket| bucket.width)
    }
}

/// The first `length` tokens, and a single unknown one if there are none. Counts the others.
fn cut(mut tokens: Vec<u32>, length: usize, left_out: &mut usize) -> Vec<u32> {
    *left_out += tokens.len().saturating_sub(length);
    tokens.truncate(length);
    if tokens.is_empty() {
        tokens.push(Vocabulary::UNKNOWN);
    }
    tokens
}

impl Dataset for PaddedTexts {
    type Batch = Batch;

    fn len(&self) -> usize {
        self.samples.len()
    }

    /// # Shapes
    /// Inputs (B, T), or (B, S, W), and labels (B,), all u32. T or S is the width of the widest bucket among the
    /// samples.
    fn read(&self, samples: &[u32], _: &Pass) -> Result<Batch> {
        let len = self.len();
        if let Some(&sample) = samples.iter().find(|&&sample| sample as usize >= len) {
            return Err(Error::NoSuchSample { sample: sample as usize, len });
        }
        let width = samples.iter().map(|&sample| self.width(sample as usize)).max();
        let width = width.unwrap_or(self.longest);
        let row = width * self.words.unwrap_or(1);
        let mut xs = Vec::with_capacity(samples.len() * row);
        for (&sample, end) in samples.iter().zip(1..) {
            xs.extend_from_slice(&self.samples[sample as usize]);
            xs.resize(end * row, Vocabulary::PADDING);
        }
        let dims: Vec<usize> = [samples.len(), width].into_iter().chain(self.words).collect();
        let ys: Vec<u32> = samples.iter().map(|&sample| self.labels[sample as usize]).collect();
        let (xs, count) = (Tensor::from_vec(xs, dims, &Device::Cpu)?, ys.len());
        Ok(Batch { xs, ys: Tensor::from_vec(ys, count, &Device::Cpu)? })
    }

    /// # Cost
    /// The first call reads all tokens.
    fn fingerprint(&self) -> Result<String> {
        let sha256 = self.sha256.get_or_init(|| {
            let mut hasher = Sha256::new();
            for (tokens, label) in self.samples.iter().zip(&*self.labels) {
                hasher.update((tokens.len() as u64).to_le_bytes());
                hasher.update(label.to_le_bytes());
                tokens.iter().for_each(|token| hasher.update(token.to_le_bytes()));
            }
            hexadecimal(&hasher.finalize())
        });
        let (count, shape, buckets) = (self.len(), self.shape(), self.buckets());
        Ok(format!("{count} texts {sha256} of {shape:?} in {buckets:?}"))
    }

    fn shards(&self) -> Vec<usize> {
        self.buckets().into_iter().map(|(len, _)| len).collect()
    }
}
