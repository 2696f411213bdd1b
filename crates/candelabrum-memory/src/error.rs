//! Errors of memory.

use crate::ElementType;

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of memory or of a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Numbers were read as another type.
    #[error("a buffer of {expected} was used as {got}")]
    ElementType {
        /// The type of the numbers.
        expected: ElementType,
        /// The requested type.
        got: ElementType,
    },
    /// The lengths of two runs of numbers differ.
    #[error("{op}: the slice has {got} elements, {expected} are needed")]
    Length {
        /// The operation.
        op: &'static str,
        /// The length that the operation needs.
        expected: usize,
        /// The given length.
        got: usize,
    },
    /// Numbers in a GPU's memory were read as if they were on the host.
    #[error(
        "the buffer is on a GPU: read it by `to_host` or `copy_to_tensor`, write it by \
         `copy_from_host` or `copy_from_tensor`"
    )]
    OnDevice,
    /// The request is not supported.
    #[error("{what} is not supported")]
    Unsupported {
        /// The request.
        what: String,
    },
    /// This build does not include the requested part.
    #[error("{what}: build with `--features {feature}`")]
    NotCompiled {
        /// The request.
        what: String,
        /// The cargo feature of the missing part.
        feature: &'static str,
    },
    /// A call of the CUDA driver failed.
    #[error("{call}: {message}")]
    Cuda {
        /// The function.
        call: &'static str,
        /// The driver's message.
        message: String,
    },
    /// candle refused an operation.
    #[error("{message}")]
    Tensor {
        /// candle's message.
        message: String,
    },
}

impl From<candle_core::Error> for Error {
    fn from(source: candle_core::Error) -> Self {
        Self::Tensor { message: source.to_string() }
    }
}

/// For candle operations on this crate's memory.
impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        Self::wrap(error)
    }
}

pub(crate) fn kernel_on_host() -> Error {
    Error::Unsupported { what: "a kernel of a GPU on numbers in host memory".to_owned() }
}

pub(crate) fn check_len(op: &'static str, expected: usize, got: usize) -> Result<()> {
    if expected == got { Ok(()) } else { Err(Error::Length { op, expected, got }) }
}
