//! Sequences of tokens that end with padding.

use candelabrum_nn::ops;
use candle_core::{Result, Tensor};

/// The token of the padding.
pub(crate) const PADDING: u32 = 0;

/// The tokens `(N, T)` without the steps that are padding in all sequences, but with one step at least, and the
/// lengths `(N)` of the sequences.
pub(crate) fn trimmed(tokens: &Tensor) -> Result<(Tensor, Tensor)> {
    let lengths = ops::sequence_lengths(tokens, PADDING)?;
    let longest = lengths.to_vec1::<u32>()?.into_iter().max().unwrap_or(0).max(1);
    let steps = tokens.dim(1)?.min(longest as usize);
    Ok((tokens.narrow(1, 0, steps)?, lengths))
}
