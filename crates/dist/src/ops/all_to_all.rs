//! Everybody sends everybody a part.

use candle_core::shape::Dim;
use candle_core::{Result, Tensor};

use super::exchange::{Way, check_divides, exchange_along};
use crate::comm::{Collective, Group};

/// Cuts `xs` along `dim` into as many equal parts as ranks and sends part `r` to rank `r`; gives the
/// parts that came from the ranks, concatenated along `dim` in rank order.
///
/// Backward: the gradients go back the way the parts came.
///
/// # Errors
/// A dimension that `xs` has not or that cannot be cut; what goes wrong between ranks.
pub fn all_to_all(xs: &Tensor, dim: impl Dim + Copy, group: &Group) -> Result<Tensor> {
    check_divides("all_to_all", xs, dim, group)?;
    let way = Way::Collective(Collective::AllToAll);
    exchange_along("all_to_all", xs, dim, group, way, way)
}
