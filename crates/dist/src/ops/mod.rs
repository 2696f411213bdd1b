//! Collectives on tensors that can be differentiated: what tensor, sequence and expert parallelism
//! are built of.
//!
//! | operation | forward | backward |
//! |---|---|---|
//! | [`all_reduce`] | sum (or mean) | the same of the gradients |
//! | [`all_gather`] | concatenation | [`reduce_scatter`] |
//! | [`reduce_scatter`] | a part of the sum | [`all_gather`] |
//! | [`broadcast`] | the root's | sum, on the root; zeros elsewhere |
//! | [`all_to_all`] | parts change places | [`all_to_all`] |
//! | [`copy_to_group`] | identity | sum |
//! | [`reduce_from_group`] | sum | identity |
//!
//! **Whose loss?** Every rank has a loss of its own, and what the first five differentiate is the
//! *sum of the losses of all ranks*, as PyTorch's `torch.distributed.nn.functional` does: a tensor's
//! gradient says how that sum changes with this rank's tensor. The last two are *f* and *g* of
//! Megatron (Shoeybi et al., 2019, arXiv:1909.08053, section 3), the two ends of a part of a model that
//! is split over ranks which all compute *one and the same* loss: the gradient is that of the loss,
//! counted once. So where the loss is replicated, `all_reduce` would give N times the gradient that
//! `reduce_from_group` gives. Do not mix the two views in one model.
//!
//! **Order.** Forward and backward are collectives, so all ranks must build the same graph: the same
//! operations in the same order, inputs that need a gradient on all ranks or on none, and results
//! that the loss depends on everywhere or nowhere. candle walks equal graphs in the same order. Ranks
//! that do not get [`Error::Disagreement`](crate::Error::Disagreement), or a deadline.
//!
//! f32, f64, f16 and bf16 on the CPU; sums are added in rank order. The operations give candle's
//! errors, so that models can use them; one that comes from another rank keeps its
//! [`Error`](crate::Error), which `Error::from` finds again.

mod exchange;

use candle_core::shape::Dim;
use candle_core::{Result, Tensor};

use self::exchange::{Way, check_divides, exchange, exchange_along};
use crate::Error;
use crate::comm::{Collective, Group, ReduceOp};

const SUM: Way = Way::Collective(Collective::AllReduce(ReduceOp::Sum));

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
