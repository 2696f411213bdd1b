//! Texts with a class each, from files of lines, tables with tabs, or folders.
//!
//! The texts are in memory as they were written. A vocabulary is made of those for training, and then
//! [`PaddedTexts`] has the numbers for a model.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    classes::Classes,
    error::{DataFault, DataPlace, Error, Result, check_count},
    folder_files::{is_hidden, names_in, state},
    padded_texts::PaddedTexts,
    split::split,
    text_file::{TextEncoding, read_text},
    vocabulary::Vocabulary,
    words::{sentences, words},
};

/// How texts are read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TextOptions {
    /// The encoding of the files, UTF-8 by default.
    pub encoding: TextEncoding,
    /// The classes, if they are known: for a second set, give those of the first one
    /// ([`LabelledTexts::classes`]). Otherwise the classes are those that occur, in alphabetical order.
    pub classes: Option<Vec<String>>,
}

/// Texts with a class each.
///
/// ```
/// use candelabrum_datasets::{Dataset, LabelledTexts, Pass, TextOptions, Vocabulary};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let [good, bad] = ["good.txt", "bad.txt"].map(|name| folder.path().join(name));
/// # std::fs::write(&good, "a fine film\nfine !\n")?;
/// # std::fs::write(&bad, "a film without an end\n")?;
/// // One text a line, one file a class.
/// let texts = LabelledTexts::lines([("good", good), ("bad", bad)], &TextOptions::default())?;
/// assert_eq!(texts.classes(), ["bad", "good"]);
/// let vocabulary = Vocabulary::words(texts.texts(), 1, 10_000);
/// let length = texts.words_at(0.5)?; // half of the texts have at most so many words
/// let data = texts.padded(&vocabulary, length)?;
/// let batch = data.read(&[0, 1, 2], &Pass::evaluation())?;
/// assert_eq!(batch.xs.dims(), [3, 3]);
/// assert_eq!(batch.ys.to_vec1::<u32>()?, [1, 1, 0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct LabelledTexts {
    texts: Arc<[String]>,
    labels: Arc<[u32]>,
    classes: Arc<[String]>,
    left_out: usize,
}

impl LabelledTexts {
    /// Texts in files of one text a line, by the names of their classes. A class may have several files. Empty
    /// lines are [left out](Self::left_out).
    ///
    /// # Errors
    /// A file that cannot be read or has no texts. Text that is not in the encoding, with its file and line. A
    /// class that is not one of those that are known.
    pub fn lines<N: Into<String>, P: AsRef<Path>>(
        files: impl IntoIterator<Item = (N, P)>,
        options: &TextOptions,
    ) -> Result<Self> {
        let mut reader = TextReader::new(options);
        for (class, path) in files {
            let (class, path) = (class.into(), path.as_ref());
            let before = reader.texts.len();
            for line in read_text(path, options.encoding)?.lines() {
                reader.add(&class, line, || path.into())?;
            }
            if reader.texts.len() == before {
                return Err(DataFault::Missing.at(path, "no texts: each line is one"));
            }
        }
        reader.finish()
    }

    /// Texts in a file of lines whose columns are separated by tabs, without a header. `class` and `text` are the
    /// numbers of the columns with the name of the class and the text, counted from 0. Lines without a text are
    /// [left out](Self::left_out).
    ///
    /// # Errors
    /// A file that cannot be read or has no texts. A line that lacks a column or the name of a class, or is not in
    /// the encoding, with its file and number. A class that is not one of those that are known.
    pub fn tab_separated(
        path: impl AsRef<Path>,
        [class, text]: [usize; 2],
        options: &TextOptions,
    ) -> Result<Self> {
        let (path, mut reader) = (path.as_ref(), TextReader::new(options));
        for (line, number) in read_text(path, options.encoding)?.lines().zip(1..) {
            let columns: Vec<&str> = line.split('\t').collect();
            if line.trim().is_empty() {
                reader.left_out += 1;
                continue;
            }
            let place = || DataPlace::line(path, number);
            let (Some(class), Some(text)) = (columns.get(class), columns.get(text)) else {
                let (found, needed) = (columns.len(), class.max(text) + 1);
                let what = format!("{found} column(s) separated by tabs, {needed} are needed");
                return Err(DataFault::Corrupt.at(place(), what));
            };
            if class.trim().is_empty() {
                return Err(DataFault::Corrupt.at(place(), "no name of a class"));
            }
            reader.add(class.trim(), text, place)?;
        }
        if reader.texts.is_empty() {
            return Err(DataFault::Missing.at(path, "no texts: each line is one"));
        }
        reader.finish()
    }

    /// Texts in folders, one folder for each class and one file for each text: `root/class/file`. Hidden files,
    /// files without text, and files beside the folders are [left out](Self::left_out).
    ///
    /// # Errors
    /// A folder that cannot be read, no folders of classes, a class without texts, a folder within that of a class,
    /// a class that is not one of those that are known. Text that is not in the encoding, with its file and line.
    pub fn folder(root: impl AsRef<Path>, options: &TextOptions) -> Result<Self> {
        let (root, mut reader) = (root.as_ref(), TextReader::new(options));
        let mut has_classes = false;
        for name in names_in(root)? {
            let folder = root.join(&name);
            if is_hidden(&name) || !state(&folder)?.is_dir() {
                reader.left_out += 1;
                continue;
            }
            let class = name.into_string().map_err(|_| Error::no_text(&folder))?;
            reader.add_folder(&class, &folder, options.encoding)?;
            has_classes = true;
        }
        if !has_classes {
            let what = "no folders in it; each class needs a folder with its texts";
            return Err(DataFault::Missing.at(root, what));
        }
        reader.finish()
    }

    /// The number of texts.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether there are no texts.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The texts.
    pub fn texts(&self) -> impl ExactSizeIterator<Item = &str> {
        self.texts.iter().map(String::as_str)
    }

    /// The class of each text, as its place among the [classes](Self::classes).
    pub fn labels(&self) -> &[u32] {
        &self.labels
    }

    /// The names of the classes.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The number of lines without a text, or of files that are no texts of a class. A hidden folder counts as one.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// A part for training and one for tests, drawn at random. The draw depends on the seed and the number of texts
    /// alone. In both parts the texts keep their order.
    ///
    /// # Errors
    /// A share that leaves a part empty.
    pub fn split(&self, test_share: f64, seed: u64) -> Result<(Self, Self)> {
        let part = |chosen: Vec<usize>| Self {
            texts: chosen.iter().map(|&index| self.texts[index].clone()).collect(),
            labels: chosen.iter().map(|&index| self.labels[index]).collect(),
            ..self.clone()
        };
        let [train, test] = split(self.len(), "texts", test_share, seed)?.map(part);
        Ok((train, test))
    }

    /// A number of words that this share of the texts does not exceed: the quantile of their lengths.
    ///
    /// # Errors
    /// A share that is not above 0 and at most 1, or no texts.
    pub fn words_at(&self, share: f64) -> Result<usize> {
        quantile(self.texts().map(|text| words(text).count()).collect(), share)
    }

    /// A number of sentences that this share of the texts does not exceed, and a number of words that this share of
    /// all sentences does not exceed.
    ///
    /// # Errors
    /// Those of [`words_at`](Self::words_at).
    pub fn sentences_at(&self, share: f64) -> Result<[usize; 2]> {
        let in_texts = self.texts().map(|text| sentences(text).len()).collect();
        let all = self.texts().flat_map(sentences);
        let in_sentences = all.map(|sentence| words(sentence).count()).collect();
        Ok([quantile(in_texts, share)?, quantile(in_sentences, share)?])
    }

    /// Each text as its first `length` words.
    ///
    /// # Shapes
    /// A batch is (B, T) tokens with labels (B,), both u32. T is `length`.
    ///
    /// # Errors
    /// A length of 0, a vocabulary that is not one of [words](Vocabulary::words), no texts.
    pub fn padded(&self, vocabulary: &Vocabulary, length: usize) -> Result<PaddedTexts> {
        let texts = self.texts().map(|text| vocabulary.encode(text)).collect::<Result<Vec<_>>>()?;
        PaddedTexts::of_words(texts, &self.labels, &self.classes, vocabulary, length)
    }

    /// Each text as its first sentences, and each of these as its first words, for instance for hierarchical
    /// attention (Yang et al. 2016, <https://aclanthology.org/N16-1174>).
    ///
    /// # Shapes
    /// A batch is (B, S, W) tokens with labels (B,), both u32. `lengths` is \[S, W\].
    ///
    /// # Errors
    /// Those of [`padded`](Self::padded).
    pub fn documents(&self, vocabulary: &Vocabulary, lengths: [usize; 2]) -> Result<PaddedTexts> {
        let document = |text| sentences(text).into_iter().map(|s| vocabulary.encode(s)).collect();
        let documents = self.texts().map(document).collect::<Result<Vec<Vec<_>>>>()?;
        PaddedTexts::of_sentences(documents, &self.labels, &self.classes, vocabulary, lengths)
    }
}

/// The smallest of the numbers that this share of them does not exceed, and at least 1.
fn quantile(mut numbers: Vec<usize>, share: f64) -> Result<usize> {
    if !(share > 0.0 && share <= 1.0) {
        let what = format!("a share of {share} of the lengths: it must be above 0 and at most 1");
        return Err(Error::argument(what));
    }
    numbers.sort_unstable();
    let place = (numbers.len() as f64 * share).ceil() as usize;
    let number = numbers.get(place.saturating_sub(1)).ok_or_else(Error::empty_dataset)?;
    Ok((*number).max(1))
}

/// What has been read so far.
struct TextReader {
    classes: Classes,
    texts: Vec<String>,
    labels: Vec<u32>,
    left_out: usize,
}

impl TextReader {
    fn new(options: &TextOptions) -> Self {
        let classes = Classes::new(options.classes.as_deref());
        Self { classes, texts: Vec::new(), labels: Vec::new(), left_out: 0 }
    }

    /// Adds a text, or counts it if there is none.
    fn add(&mut self, class: &str, text: &str, place: impl FnOnce() -> DataPlace) -> Result<()> {
        if text.trim().is_empty() {
            self.left_out += 1;
            return Ok(());
        }
        let label = self.classes.number(class).ok_or_else(|| {
            let known = self.classes.len();
            let what = format!("the class {class:?} is not one of the {known} that are known");
            DataFault::Mismatch.at(place(), what)
        })?;
        self.texts.push(text.to_owned());
        self.labels.push(label);
        Ok(())
    }

    /// Adds the texts of a class.
    fn add_folder(&mut self, class: &str, folder: &Path, encoding: TextEncoding) -> Result<()> {
        let before = self.texts.len();
        for name in names_in(folder)? {
            let path: PathBuf = folder.join(&name);
            if is_hidden(&name) {
                self.left_out += 1;
            } else if state(&path)?.is_dir() {
                let what = "a folder within that of a class: move its texts up, or open it as a set of its own";
                return Err(DataFault::Unsupported.at(path, what));
            } else {
                self.add(class, &read_text(&path, encoding)?, || folder.into())?;
            }
        }
        if self.texts.len() == before {
            return Err(DataFault::Missing.at(folder, "no texts in the folder of this class"));
        }
        Ok(())
    }

    fn finish(mut self) -> Result<LabelledTexts> {
        check_count(self.texts.len())?;
        let classes = self.classes.sorted(&mut self.labels);
        let (texts, labels) = (self.texts.into(), self.labels.into());
        Ok(LabelledTexts { texts, labels, classes: classes.into(), left_out: self.left_out })
    }
}
