//! Everybody gets the sum.

use candle_core::{Result, Tensor};

use super::exchange::{Way, exchange};
use crate::Error;
use crate::comm::{Collective, Group, ReduceOp};

/// The sum, or the mean, of all ranks' `xs`, on every rank.
///
/// Backward: every rank's input is in every rank's result, so the gradient is the sum (the mean) of
/// all ranks' gradients.
///
/// # Errors
/// Another `op` than sum and mean, which have no gradient here; what goes wrong between ranks.
pub fn all_reduce(xs: &Tensor, op: ReduceOp, group: &Group) -> Result<Tensor> {
    if !matches!(op, ReduceOp::Sum | ReduceOp::Mean) {
        let what = format!("the gradient of an all-reduce by {op:?}");
        return Err(Error::Unsupported { what }.into());
    }
    let way = Way::Collective(Collective::AllReduce(op));
    exchange("all_reduce", xs, group, way, way)
}
