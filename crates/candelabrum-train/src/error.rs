//! Errors of training runs.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use candle_core::DType;

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a training run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The ranks could not finish a step together.
    #[error(transparent)]
    Dist(#[from] candelabrum_dist::Error),
    /// The key-value store refused a request, or could not be reached.
    #[error(transparent)]
    Store(#[from] candelabrum_kvstore::Error),
    /// The data could not be read or divided.
    #[error(transparent)]
    Data(#[from] candelabrum_datasets::Error),
    /// A file beside the run could not be written.
    #[error("cannot write the {what} {}: {source}", path.display())]
    Write {
        /// What is in the file: `report`, `weights` or `timeline`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The log of the run cannot be written.
    #[error("the log: {what}")]
    Log {
        /// The file, the reason, and what to do.
        what: String,
    },
    /// A checkpoint, or a directory of checkpoints, cannot be used.
    #[error("checkpoint: {} {what}", path.display())]
    Checkpoint {
        /// The file or directory.
        path: PathBuf,
        /// The reason, and what to do.
        what: String,
    },
    /// A value that a hook needs was not measured.
    #[error(
        "no evaluation has measured `{measure}`: choose `loss`, or a measure of the trainer's score, and of a further evaluation set `SET/loss` or `SET/NAME`"
    )]
    NotMeasured {
        /// The name of the value.
        measure: String,
    },
    /// The saved state of a hook cannot be read.
    #[error("the checkpoint's state of the hook `{hook}` cannot be used: {what}")]
    HookState {
        /// The hook.
        hook: String,
        /// The reason.
        what: String,
    },
    /// A parameter or buffer refused a value.
    #[error(transparent)]
    Params(#[from] candelabrum_nn::Error),
    /// An option outside its range.
    #[error("{option} is {value}: it must be {range}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// The allowed values.
        range: String,
    },
    /// A key-value store without a rank that works.
    #[error(
        "the key-value store has {servers} server(s), which leaves no worker among {ranks} rank(s): `--workers 1 --kvstore dist_sync` starts one worker and one server on this machine"
    )]
    NoWorkers {
        /// The number of servers.
        servers: usize,
        /// The number of all ranks.
        ranks: usize,
    },
    /// The dataset is divided among another number of ranks than there are.
    #[error(
        "the dataset is already a share of {shared_by} ranks, and there are {ranks}: give every rank the whole one, which is divided among the ranks here, or give each rank a part of its own"
    )]
    AlreadyPartitioned {
        /// The number of ranks among which the dataset is divided.
        shared_by: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// Two ranks have the same part of a dataset.
    #[error(
        "ranks {first} and {second} have the same part of the training data: give each rank the part whose number is its rank"
    )]
    SamePart {
        /// The first rank with the part.
        first: usize,
        /// The second rank with the part.
        second: usize,
    },
    /// The scores do not name a class for each sample.
    #[error(
        "right answers are counted in scores of shape (N, classes) or (N, T, classes) of two classes or more, these are {dims:?}: use `Trainer::with_score` for other outputs (`RegressionErrors`, `LossOnly`)"
    )]
    Scores {
        /// The shape of the scores.
        dims: Vec<usize>,
    },
    /// The targets do not name a class for each sample.
    #[error(
        "targets {dims:?} of {dtype:?} for scores {scores:?}: {why}; they must be class indices, one for each row of scores, or one-hot of the shape of the scores"
    )]
    Targets {
        /// The shape of the targets.
        dims: Vec<usize>,
        /// Their element type.
        dtype: DType,
        /// The reason.
        why: String,
        /// The shape of the scores.
        scores: Vec<usize>,
    },
    /// The outputs of all samples are no tensor.
    #[error(
        "predictions are one tensor with a row for each sample, but {why}: let the model give one row of the same shape for each sample"
    )]
    Outputs {
        /// The shapes that do not fit.
        why: String,
    },
    /// The ranks' parameters differ at the end of an epoch, although they should be equal.
    #[error(
        "rank {rank} has other parameters than rank 0 after the epoch: does a strategy of your own give ranks different averages, or does something else change parameters on one rank?"
    )]
    ReplicasDiffer {
        /// The first rank that differs.
        rank: usize,
    },
    /// The losses of all batches of an epoch have counted nothing.
    #[error(
        "the training of epoch {epoch} has counted no target on any rank, so nothing was learned: the loss ignores all of them (`ignore_index`, a mask, or a `weighted` loss of weight 0)"
    )]
    NothingCounted {
        /// The epoch.
        epoch: usize,
    },
    /// The thread pool exists already, with a different number of threads.
    #[error("{wanted} compute threads were asked for, but the pool already runs with {running}")]
    Threads {
        /// The requested number.
        wanted: usize,
        /// The existing number.
        running: usize,
    },
}

/// Returns the error of a collective or of a store inside a candle operation unchanged.
impl From<candle_core::Error> for Error {
    fn from(source: candle_core::Error) -> Self {
        match source.into() {
            candelabrum_kvstore::Error::Dist(error) => Self::Dist(error),
            error => Self::Store(error),
        }
    }
}

impl Error {
    /// An option or a setting with a value that it cannot have.
    pub(crate) fn option(
        option: &'static str,
        value: &dyn Display,
        range: impl Into<String>,
    ) -> Self {
        Self::Option { option, value: value.to_string(), range: range.into() }
    }

    /// A file that could not be written.
    pub(crate) fn write(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Write { what, path: path.to_owned(), source }
    }

    /// A checkpoint, or a directory of checkpoints, that cannot be used.
    pub(crate) fn checkpoint(path: &Path, what: impl Into<String>) -> Self {
        Self::Checkpoint { path: path.to_owned(), what: what.into() }
    }

    /// Whether a step failed on all ranks, and changed nothing, because a loss or a gradient is not finite.
    pub fn is_not_finite(&self) -> bool {
        matches!(self, Self::Dist(candelabrum_dist::Error::NotFinite { .. }))
    }
}
