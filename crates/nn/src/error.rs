//! Errors about parameters.

use std::path::PathBuf;

use candle_core::{DType, Shape};

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error about parameters. Layers and models return candle's own error, which wraps this one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two parameters or buffers have the same name.
    #[error(
        "two parameters or buffers are called `{name}`: give each layer a path of its own with `scope.pp(..)`"
    )]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// There is no parameter of this name.
    #[error("there is no parameter `{name}`; there are: {known}")]
    UnknownName {
        /// The unknown name.
        name: String,
        /// The names that exist, comma-separated.
        known: String,
    },
    /// A value does not fit its parameter or buffer.
    #[error("`{name}` is {expected:?} {expected_dtype:?}, the value {got:?} {got_dtype:?}")]
    Mismatch {
        /// The parameter.
        name: String,
        /// The parameter's shape.
        expected: Shape,
        /// The parameter's element type.
        expected_dtype: DType,
        /// The value's shape.
        got: Shape,
        /// The value's element type.
        got_dtype: DType,
    },
    /// There is no strategy of this name.
    #[error("unknown dist option `{name}`: one of {known}")]
    UnknownDistOption {
        /// The unknown name.
        name: String,
        /// The names that exist, comma-separated.
        known: String,
    },
    /// A name that a user's own strategy cannot have.
    #[error("a strategy cannot be named `{name}`: {why}")]
    DistOptionName {
        /// The refused name.
        name: String,
        /// The reason.
        why: &'static str,
    },
    /// A file of weights cannot be used.
    #[error("the weights in {} cannot be used: the file {what}", path.display())]
    Weights {
        /// The file.
        path: PathBuf,
        /// The reason.
        what: String,
    },
    /// A file of weights and the model do not match.
    #[error("the weights do not match the model: {report}")]
    Incomplete {
        /// What was loaded, and what was not.
        report: String,
    },
    /// candle refused an operation.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Tensor(error) => error,
            other => Self::wrap(other),
        }
    }
}
