//! What can go wrong with parameters.

use candle_core::{DType, Shape};

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Errors about parameters; layers and models return candle's own error, which wraps these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two parameters or buffers asked for the same name.
    #[error(
        "two parameters or buffers are called `{name}`: give each layer a path of its own with `scope.pp(..)`"
    )]
    DuplicateName {
        /// The name in question.
        name: String,
    },
    /// No parameter of that name exists.
    #[error("there is no parameter `{name}`; there are: {known}")]
    UnknownName {
        /// The name asked for.
        name: String,
        /// The names that exist, comma-separated.
        known: String,
    },
    /// A value does not fit its parameter or buffer.
    #[error("`{name}` is {expected:?} {expected_dtype:?}, the value {got:?} {got_dtype:?}")]
    Mismatch {
        /// The parameter.
        name: String,
        /// Its shape.
        expected: Shape,
        /// Its element type.
        expected_dtype: DType,
        /// The value's shape.
        got: Shape,
        /// The value's element type.
        got_dtype: DType,
    },
    /// A strategy name that does not exist.
    #[error("unknown dist option `{name}`: one of {known}")]
    UnknownDistOption {
        /// The name given.
        name: String,
        /// The names that exist, comma-separated.
        known: String,
    },
    /// A name that no strategy of the user's own can have.
    #[error("a strategy cannot be named `{name}`: {why}")]
    DistOptionName {
        /// The name given.
        name: String,
        /// What is wrong with it.
        why: &'static str,
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
