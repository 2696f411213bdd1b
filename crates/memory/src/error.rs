//! What can go wrong with memory.

use crate::ElementType;

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of memory and of its devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Numbers read as another type than theirs.
    #[error("a buffer of {expected} was used as {got}")]
    ElementType {
        /// The type of the numbers.
        expected: ElementType,
        /// The type asked for.
        got: ElementType,
    },
    /// Two runs of numbers of different lengths.
    #[error("{op}: the slice has {got} elements, {expected} are needed")]
    Length {
        /// The operation.
        op: &'static str,
        /// The length that the operation needs.
        expected: usize,
        /// The length that it got.
        got: usize,
    },
    /// Numbers in a GPU's memory, read as if they were on the host.
    #[error(
        "the buffer is on a GPU: copy it with `to_host` or `copy_to_tensor` to read it, with `copy_from_host` or `copy_from_tensor` to write it"
    )]
    OnDevice,
    /// Something that does not exist, here or at all.
    #[error("{what} is not supported")]
    Unsupported {
        /// What was asked for.
        what: String,
    },
    /// Something that this build leaves out.
    #[error("{what}: build with `--features {feature}`")]
    NotCompiled {
        /// What was asked for.
        what: String,
        /// The cargo feature that has it.
        feature: &'static str,
    },
    /// A call of the CUDA driver failed.
    #[error("{call}: {message}")]
    Cuda {
        /// The function.
        call: &'static str,
        /// The driver's own words.
        message: String,
    },
    /// candle refused an operation.
    #[error("{message}")]
    Tensor {
        /// candle's own words.
        message: String,
    },
}

impl From<candle_core::Error> for Error {
    fn from(source: candle_core::Error) -> Self {
        Self::Tensor { message: source.to_string() }
    }
}

/// For candle operations that work on this crate's memory.
impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        Self::wrap(error)
    }
}
