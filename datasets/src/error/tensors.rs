//! What can be wrong with tensors that belong together.

use std::io;

use candle_core::{DType, Shape};

/// An error of tensors in memory, or of samples that are put together into a batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorsError {
    /// The number of tensors is not that of the batch.
    #[error(
        "{got} tensors, the batch has {}",
        needed.map_or("at least 1".to_owned(), |needed| needed.to_string())
    )]
    Count {
        /// The number of tensors given.
        got: usize,
        /// The number of tensors of a batch. `None`: any number above 0.
        needed: Option<usize>,
    },
    /// A tensor has no dimension that counts samples.
    #[error("tensor {index} has no dimensions: its first dimension must count the samples")]
    NoDimension {
        /// The tensor's place among the tensors, counted from 0.
        index: usize,
    },
    /// Tensors have different numbers of samples.
    #[error(
        "tensor {index} has {rows} samples, the first one has {expected}: all must have as many"
    )]
    Rows {
        /// The tensor's place among the tensors, counted from 0.
        index: usize,
        /// Its first dimension.
        rows: usize,
        /// The first dimension of the first tensor.
        expected: usize,
    },
    /// Samples of a batch have different shapes or types.
    #[error(
        "sample {place} of the batch is {dtype:?} {shape:?}, the first one is {first_dtype:?} \
         {first_shape:?}: crop, pad or convert them to one shape and type"
    )]
    Unequal {
        /// The sample's place in the batch, counted from 0.
        place: usize,
        /// Its type.
        dtype: DType,
        /// Its shape.
        shape: Shape,
        /// The type of the first sample.
        first_dtype: DType,
        /// The shape of the first sample.
        first_shape: Shape,
    },
    /// The tensors of a sample are not as many as those of the first sample.
    #[error("sample {place} of the batch has {got} tensors, the first one has {expected}")]
    UnequalCount {
        /// The sample's place in the batch, counted from 0.
        place: usize,
        /// The number of its tensors.
        got: usize,
        /// The number of tensors of the first sample.
        expected: usize,
    },
    /// The digest could not be computed.
    #[error("cannot compute the digest of tensors: {source}")]
    Digest {
        /// The writer's error.
        source: io::Error,
    },
}
