//! The two ends of a part of a model that is split over ranks: *f* and *g* of Megatron (Shoeybi et
//! al., 2019, arXiv:1909.08053, section 3).
//!
//! Before and after that part all ranks compute the same, and so they all compute the same loss. The
//! gradients are those of that one loss, not of the sum of its N copies.

use candle_core::{Result, Tensor};

use super::exchange::{Way, exchange};
use crate::comm::{Collective, Group, ReduceOp};

const SUM: Way = Way::Collective(Collective::AllReduce(ReduceOp::Sum));

/// *f*: hands `xs`, which is the same on every rank, to layers that are split over the ranks. The
/// identity; backward, the sum over the ranks of what each one's part contributes to the gradient.
///
/// # Errors
/// What goes wrong between ranks, in the backward.
pub fn copy_to_group(xs: &Tensor, group: &Group) -> Result<Tensor> {
    exchange("copy_to_group", xs, group, Way::Identity, SUM)
}

/// *g*: adds up the ranks' partial results, so that `xs` is the same on every rank again. The sum;
/// backward, the identity, since every rank has the whole gradient.
///
/// # Errors
/// What goes wrong between ranks.
pub fn reduce_from_group(xs: &Tensor, group: &Group) -> Result<Tensor> {
    exchange("reduce_from_group", xs, group, SUM, Way::Identity)
}
