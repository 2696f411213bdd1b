//! Everybody gets everything.

use candle_core::shape::Dim;
use candle_core::{Result, Tensor};

use super::exchange::{Way, exchange_along};
use crate::comm::{Collective, Group, ReduceOp};

/// All ranks' `xs`, concatenated along `dim` in rank order, on every rank. All have the same shape.
///
/// Backward: a rank's part of the sum of all ranks' gradients.
///
/// # Errors
/// A dimension that `xs` has not; what goes wrong between ranks.
pub fn all_gather(xs: &Tensor, dim: impl Dim + Copy, group: &Group) -> Result<Tensor> {
    let forward = Way::Collective(Collective::AllGather);
    let backward = Way::Collective(Collective::ReduceScatter(ReduceOp::Sum));
    exchange_along("all_gather", xs, dim, group, forward, backward)
}
