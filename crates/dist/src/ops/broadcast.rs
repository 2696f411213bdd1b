//! Everybody gets what one rank has.

use candle_core::{Result, Tensor};

use super::exchange::{Way, exchange};
use crate::comm::{Collective, Group};

/// `root`'s `xs`, on every rank. The others pass a tensor of the same shape; its values are not
/// looked at.
///
/// Backward: the sum of all ranks' gradients on `root`, zeros elsewhere. The others' tensors must
/// need a gradient if `root`'s does, or they do not take part in that sum.
///
/// # Errors
/// A root that does not exist; what goes wrong between ranks.
pub fn broadcast(xs: &Tensor, root: usize, group: &Group) -> Result<Tensor> {
    let forward = Way::Collective(Collective::Broadcast { root });
    exchange("broadcast", xs, group, forward, Way::SumTo { root })
}
