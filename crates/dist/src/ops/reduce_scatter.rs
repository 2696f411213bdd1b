//! Everybody gets a part of the sum.

use candle_core::shape::Dim;
use candle_core::{Result, Tensor};

use super::exchange::{Way, check_divides, exchange_along};
use crate::comm::{Collective, Group, ReduceOp};

/// The sum of all ranks' `xs`, cut along `dim` into as many equal parts as ranks: rank `r` gets part
/// `r`.
///
/// Backward: all ranks' gradients, concatenated.
///
/// # Errors
/// A dimension that `xs` has not or that cannot be cut; what goes wrong between ranks.
pub fn reduce_scatter(xs: &Tensor, dim: impl Dim + Copy, group: &Group) -> Result<Tensor> {
    check_divides("reduce_scatter", xs, dim, group)?;
    let forward = Way::Collective(Collective::ReduceScatter(ReduceOp::Sum));
    let backward = Way::Collective(Collective::AllGather);
    exchange_along("reduce_scatter", xs, dim, group, forward, backward)
}
