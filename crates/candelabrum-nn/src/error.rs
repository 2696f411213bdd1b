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
    /// One variable has two names.
    #[error(
        "`{first}` and `{second}` are one variable, which would be updated twice: give it once, under one name (a map: remove the other name); a model ties two layers by using the same tensor in both"
    )]
    SharedVariable {
        /// The name that came first.
        first: String,
        /// The other name.
        second: String,
    },
    /// A buffer that no average and no checkpoint could hold.
    #[error("the buffer `{name}` is {dtype:?}: only floating-point types can be buffers")]
    BufferType {
        /// The buffer.
        name: String,
        /// Its element type.
        dtype: DType,
    },
    /// A block that cannot be computed again in the backward pass.
    #[error("a block cannot be computed again in the backward pass: {what}")]
    RecomputedBlock {
        /// Why.
        what: String,
    },
    /// The gradient would go through an operation of candle that has no backward pass.
    #[error("{message}; {instead} (docs/porting.md)")]
    NoBackward {
        /// candle's error.
        message: String,
        /// What to take instead.
        instead: &'static str,
    },
    /// The gradient would go through an operation of candle that computes a wrong one.
    #[error(
        "the loss goes through candle's `{operation}` (of {shape:?}), whose gradient is wrong in candle 0.11: {how}; take {instead} (docs/porting.md; an operation of your own with these numbers and a right gradient is named by `candelabrum::nn::trust_gradient`)"
    )]
    WrongGradient {
        /// The operation.
        operation: &'static str,
        /// The shape of its input.
        shape: Shape,
        /// The difference from the true gradient.
        how: String,
        /// What to take instead.
        instead: String,
    },
    /// A version of candle whose backward pass is not the one that gradients in buckets rely on.
    #[error(
        "this version of candle-core runs its backward pass in another way than this crate relies on ({what}): take candle-core 0.11.1"
    )]
    CandlePass {
        /// What it did instead.
        what: String,
    },
    /// Gradients that are not the slope of the loss.
    #[error(
        "the gradient of {names} is not the slope of the loss: an operation above has no backward pass or a wrong one; in candle 0.11 these are max_pool2d, conv1d on the CPU, upsample_nearest of a tensor with other uses, and those that cut the gradient, such as softmax_last_dim and layer_norm (docs/porting.md)"
    )]
    Gradients {
        /// The parameters, comma-separated.
        names: String,
    },
    /// A loss that cannot be compared with itself.
    #[error(
        "the loss is not the same twice for the same parameters: leave dropout of candle_nn out for this check, and take one batch"
    )]
    LossDiffers,
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
    /// Adapters that cannot be made or merged.
    #[error("LoRA cannot have {what}")]
    Lora {
        /// The fault and, if there is a remedy, what to do.
        what: String,
    },
    /// candle refused an operation.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

impl From<candelabrum_memory::Error> for Error {
    fn from(error: candelabrum_memory::Error) -> Self {
        Self::Tensor(error.into())
    }
}

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Tensor(error) => error,
            other => Self::wrap(other),
        }
    }
}
