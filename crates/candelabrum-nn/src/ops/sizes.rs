//! The sizes of a tensor that must have certain dimensions. candle's own error (`unexpected rank,
//! expected: 2, got: 3`) says neither which operation or layer refuses the tensor nor what it expects.

use std::fmt::Display;

use candle_core::{DType, Result, Shape, bail};

/// Whether labels, tokens, lengths and other indices may be of this type.
pub(super) fn is_index(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::U32 | DType::I64)
}

/// The sizes of `what`, a tensor of `shape`, which must have the dimensions `expected`. The error begins
/// with `name`, the operation or the layer.
pub(crate) fn sizes<const RANK: usize>(
    name: impl Display,
    what: &str,
    shape: &Shape,
    expected: &str,
) -> Result<[usize; RANK]> {
    match <[usize; RANK]>::try_from(shape.dims()) {
        Ok(sizes) => Ok(sizes),
        Err(_) => bail!("{name}: {what} of shape {shape:?}, expected {expected}"),
    }
}

/// The sizes of all dimensions of `what` but the last one, and the last one, which `expected` names.
pub(crate) fn rows_and_last<'a>(
    name: impl Display,
    what: &str,
    shape: &'a Shape,
    expected: &str,
) -> Result<(&'a [usize], usize)> {
    match shape.dims().split_last() {
        Some((&last, rows)) => Ok((rows, last)),
        None => bail!("{name}: {what} of shape {shape:?}, expected {expected}"),
    }
}
