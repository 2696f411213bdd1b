//! The lengths of sequences that padding has made equally long.

use candle_core::{DType, Result, Tensor, bail};

use super::sizes::{is_index, rows_and_last};

/// The lengths of sequences of tokens that end with the token `padding`: for each one, the number of tokens up to
/// the last one that is not `padding`. The result is on the CPU, where layers read it.
///
/// # Shapes
///
/// `tokens` (.., T) in u8, u32 or i64 -> (..) in u32
///
/// # Errors
///
/// If `tokens` is a scalar or has another dtype.
pub fn sequence_lengths(tokens: &Tensor, padding: u32) -> Result<Tensor> {
    let (rows, steps) = rows_and_last("sequence_lengths", "tokens", tokens.shape(), "(.., T)")?;
    let values = integers("sequence_lengths", "tokens", tokens)?;
    let length = |row: &[i64]| {
        let last = row.iter().rposition(|&token| token != i64::from(padding));
        last.map_or(0, |last| last as u32 + 1)
    };
    let lengths: Vec<u32> = match steps {
        0 => vec![0; rows.iter().product()],
        _ => values.chunks_exact(steps).map(length).collect(),
    };
    Tensor::from_vec(lengths, rows, &candle_core::Device::Cpu)
}

/// The lengths (N) of `batch` sequences of at most `most` steps.
pub(super) fn read(
    name: &str,
    what: &str,
    lengths: &Tensor,
    (batch, most): (usize, usize),
) -> Result<Vec<usize>> {
    if lengths.dims() != [batch] {
        bail!("{name}: {what} of shape {:?}, expected [{batch}]", lengths.shape());
    }
    let length = |(number, length): (usize, i64)| match usize::try_from(length) {
        Ok(length) if length <= most => Ok(length),
        _ => bail!("{name}: {what} {length} of sequence {number}, expected 0 to {most}"),
    };
    integers(name, what, lengths)?.into_iter().enumerate().map(length).collect()
}

/// The elements of a tensor of u8, u32 or i64.
pub(super) fn integers(name: &str, what: &str, tensor: &Tensor) -> Result<Vec<i64>> {
    if !is_index(tensor.dtype()) {
        bail!("{name}: {what} of dtype {:?}, expected u8, u32 or i64", tensor.dtype());
    }
    tensor.flatten_all()?.to_dtype(DType::I64)?.to_vec1()
}
