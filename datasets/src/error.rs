//! The error type of this crate.
//!
//! Every message is a fragment of one line that names the file (or the option), the cause and, if
//! there is one, the remedy. Users see it at the end of a failed start. The message is written where
//! the error is found. The variants and [`DataFault`] are what a program can decide by.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use crate::image_error::ImageError;

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any error between a file and a batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation on a file or directory.
    #[error("{}: cannot {operation}: {source}", path.display())]
    Io {
        /// The operation, as a verb: `open`, `read`, `create`.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A file or a folder is not as it must be.
    #[error("{place}: {what}")]
    Data {
        /// The kind of the fault.
        fault: DataFault,
        /// Where it is.
        place: DataPlace,
        /// What is wrong and, if there is a remedy, what to do.
        what: String,
    },
    /// An argument or an option makes no sense, or does not fit the data.
    #[error("{what}")]
    Argument {
        /// What is wrong and, if there is a remedy, what to do.
        what: String,
    },
    /// A set of images was requested but not found.
    #[error("{set} not found: {}; name its folder with --data-dir", tried.join("; "))]
    NotFound {
        /// The name of the set, for instance `mnist`.
        set: &'static str,
        /// The places that were searched, with the result of each.
        tried: Vec<String>,
    },
    /// A sample that the dataset does not have.
    #[error("sample {sample} of a dataset of {len}: samples count from 0")]
    NoSuchSample {
        /// The number of the sample.
        sample: usize,
        /// The number of samples in the dataset.
        len: usize,
    },
    /// A batch could not be read.
    #[error("epoch {epoch}, step {step} (samples {samples}): {source}")]
    Batch {
        /// The epoch, counted from 0.
        epoch: usize,
        /// The step in the epoch, counted from 0.
        step: usize,
        /// The numbers of the first samples of the batch.
        samples: String,
        /// What was wrong.
        source: Box<Error>,
    },
    /// A sample could not be made, or the record of a shard could not be decoded.
    #[error("{sample}: {source}")]
    Sample {
        /// The number of the sample in the dataset, or the place and the key of the record.
        sample: String,
        /// What was wrong.
        source: Box<Error>,
    },
    /// The bytes are no image that can be decoded.
    #[error("not a readable image: {0}")]
    Image(#[from] ImageError),
    /// An error of a user's own function.
    #[error("{0}")]
    Custom(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A thread that prepares batches could not be started, or panicked.
    #[error("{what}")]
    Thread {
        /// What happened, with the operating system's error or the panic's message.
        what: String,
    },
    /// candle could not make a tensor of a batch.
    #[error("cannot make a tensor: {0}")]
    Tensor(#[from] candle_core::Error),
}

/// What is wrong with a file or a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DataFault {
    /// It is needed and not there.
    Missing,
    /// Its end has not arrived.
    CutShort,
    /// Its content is not what its format demands.
    Corrupt,
    /// It is of another kind, or larger, than this crate reads.
    Unsupported,
    /// It does not fit the other files or the options.
    Mismatch,
}

impl DataFault {
    /// The error that this fault is at a place.
    pub(crate) fn at(self, place: impl Into<DataPlace>, what: impl Into<String>) -> Error {
        Error::Data { fault: self, place: place.into(), what: what.into() }
    }
}

/// A place in the data: a file or a folder, or a part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataPlace {
    /// The file or the folder.
    pub path: PathBuf,
    /// In a table, the line on which the record begins, counted from 1, the header included.
    pub line: Option<u64>,
    /// In a table, the name of the column.
    pub column: Option<String>,
    /// In a shard, the offset of the record or of the byte, counted from 0.
    pub byte: Option<u64>,
}

impl DataPlace {
    pub(crate) fn line(path: &Path, line: u64) -> Self {
        Self { line: Some(line), ..path.into() }
    }

    pub(crate) fn cell(path: &Path, line: u64, column: &str) -> Self {
        Self { column: Some(column.into()), ..Self::line(path, line) }
    }

    pub(crate) fn byte(path: &Path, byte: u64) -> Self {
        Self { byte: Some(byte), ..path.into() }
    }
}

impl<P: AsRef<Path>> From<P> for DataPlace {
    fn from(path: P) -> Self {
        Self { path: path.as_ref().into(), line: None, column: None, byte: None }
    }
}

impl fmt::Display for DataPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        self.line.map_or(Ok(()), |line| write!(f, ", line {line}"))?;
        self.column.as_ref().map_or(Ok(()), |column| write!(f, ", column {column:?}"))?;
        self.byte.map_or(Ok(()), |byte| write!(f, ": at byte {byte}"))
    }
}

impl Error {
    /// An error of a user's own function: anything that is an error, or a text.
    pub fn custom(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Custom(error.into())
    }

    pub(crate) fn argument(what: impl Into<String>) -> Self {
        Self::Argument { what: what.into() }
    }

    /// For `map_err`: wraps an I/O error with the operation and the path.
    pub(crate) fn io(
        operation: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { operation, path, source }
    }

    pub(crate) fn empty_dataset() -> Self {
        Self::argument("the dataset is empty")
    }

    /// The lengths of shards do not add up.
    pub(crate) fn shard_lengths(counted: usize, expected: usize) -> Self {
        Self::argument(format!(
            "the shards have {counted} samples together, the dataset has {expected}: count them again"
        ))
    }

    /// The path of a data file is a directory or a device.
    pub(crate) fn no_file(path: impl Into<DataPlace>) -> Self {
        let what = "a directory or another thing that is no file; a file of data is expected here";
        DataFault::Unsupported.at(path, what)
    }

    /// The path of a folder cannot be sent to other ranks as text.
    pub(crate) fn no_text(path: impl Into<DataPlace>) -> Self {
        DataFault::Unsupported.at(path, "the path is not valid UTF-8, rename the directory")
    }
}

/// Refuses more samples than 32-bit indices can name.
pub(crate) fn check_count(len: usize) -> Result<()> {
    let what = || format!("{len} samples are more than the {} that an index can name", u32::MAX);
    u32::try_from(len).map(drop).map_err(|_| Error::argument(what()))
}
