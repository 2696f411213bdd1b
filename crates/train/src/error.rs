//! What can go wrong in a training run.

use std::io;
use std::path::PathBuf;

use candle_core::DType;

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of training runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The ranks could not agree on a step.
    #[error(transparent)]
    Dist(#[from] candelabrum_dist::Error),
    /// The data could not be read or split.
    #[error(transparent)]
    Data(#[from] candelabrum_datasets::Error),
    /// candle refused an operation.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// The report could not be written.
    #[error("write the report {}: {source}", path.display())]
    Report {
        /// Where it should go.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The timeline could not be written.
    #[error("write the timeline {}: {source}", path.display())]
    Timeline {
        /// Where it should go.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// An option outside its range.
    #[error("{option} is {value}: it must be {range}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        range: String,
    },
    /// A dataset that was partitioned already, where the whole is divided here.
    #[error(
        "the dataset is already a share of {shared_by} ranks: give the whole one, it is divided among the ranks here (`partition` is for loops of your own)"
    )]
    AlreadyPartitioned {
        /// Among how many ranks it was divided.
        shared_by: usize,
    },
    /// Scores that name no class for each sample.
    #[error(
        "right answers are counted in scores of shape (N, classes), these are {dims:?}: measure other models in a loop of your own"
    )]
    Scores {
        /// The shape of the scores.
        dims: Vec<usize>,
    },
    /// Targets that name no class for each sample.
    #[error(
        "targets {dims:?} of {dtype:?} for scores ({samples}, {classes}): {why}; they must be class indices ({samples},) or one-hot ({samples}, {classes})"
    )]
    Targets {
        /// The shape of the targets.
        dims: Vec<usize>,
        /// Their element type.
        dtype: DType,
        /// What is wrong with them.
        why: String,
        /// How many samples have scores.
        samples: usize,
        /// How many classes have scores.
        classes: usize,
    },
    /// Ranks that should have ended an epoch with one model.
    #[error(
        "rank {rank} has other parameters than rank 0 after the epoch: does a strategy of your own give ranks different averages, or does something else change parameters on one rank?"
    )]
    ReplicasDiffer {
        /// The first rank that differs.
        rank: usize,
    },
    /// The thread pool exists already, with another number of threads.
    #[error("{wanted} compute threads were asked for, but the pool already runs with {running}")]
    Threads {
        /// How many were asked for.
        wanted: usize,
        /// How many there are.
        running: usize,
    },
}
