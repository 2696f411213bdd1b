//! What can go wrong with an optimizer.

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of optimizers.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting outside its range.
    #[error("{optimizer}: {setting} is {value}, it must be {range}")]
    Setting {
        /// The optimizer.
        optimizer: &'static str,
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: f64,
        /// What it may be.
        range: &'static str,
    },
    /// An update of a parameter that [`bind`](crate::Optimizer::bind) was not told of.
    #[error("parameter number {index} is not bound: the optimizer was bound to {bound} parameters")]
    Unbound {
        /// The parameter's index.
        index: usize,
        /// How many were bound.
        bound: usize,
    },
    /// Slices of the wrong length.
    #[error(
        "parameter number {index} has {expected} elements, its value {value}, its gradient {grad}"
    )]
    Length {
        /// The parameter's index.
        index: usize,
        /// Its bound length.
        expected: usize,
        /// The value's length.
        value: usize,
        /// The gradient's length.
        grad: usize,
    },
}
