//! Collectives on tensors that can be differentiated. Tensor, sequence and expert parallelism can
//! be built of them.
//!
//! | operation | forward | backward |
//! |---|---|---|
//! | [`all_reduce`] | sum (or mean) | sum (or mean) of the gradients |
//! | [`all_gather`] | concatenation | [`reduce_scatter`] |
//! | [`reduce_scatter`] | a part of the sum | [`all_gather`] |
//! | [`all_gather_v`], [`reduce_scatter_v`] | the same, with parts of any lengths | each other |
//! | [`broadcast`] | the root's tensor | [`reduce`] |
//! | [`reduce`] | sum on the root, zeros on the other ranks | [`broadcast`] |
//! | [`scatter`] | part `r` of the root's tensor on rank `r` | [`gather`] |
//! | [`gather`] | concatenation on the root, zeros on the other ranks | [`scatter`] |
//! | [`all_to_all`] | part `r` goes to rank `r` | [`all_to_all`] |
//! | [`copy_to_group`] | identity | sum |
//! | [`reduce_from_group`] | sum | identity |
//!
//! **Which loss?** Every rank has a loss of its own. All operations but the last two differentiate the
//! *sum of the losses of all ranks*, as PyTorch's `torch.distributed.nn.functional` does: a
//! tensor's gradient is the derivative of that sum with respect to this rank's tensor. The last two
//! operations are *f* and *g* of Megatron (Shoeybi et al., 2019, arXiv:1909.08053, section 3). They
//! enclose a part of a model that is split over the ranks, where all ranks compute *one and the
//! same* loss. Their gradient is the gradient of this loss, counted once. If the loss is
//! replicated, `all_reduce` would therefore give N times the gradient of `reduce_from_group`. Do
//! not mix the two views in one model.
//!
//! **Order.** Forward and backward are collectives, so all ranks must build the same graph: the
//! same operations in the same order, inputs that need a gradient on all ranks or on none, and
//! results that the loss depends on everywhere or nowhere. candle walks equal graphs in the same
//! order. If the graphs differ, the ranks get [`Error::Disagreement`],
//! or the deadline passes. So the zeros that [`gather`] and [`reduce`] give to the other ranks must be in
//! their losses, for instance as `zeros.sum_all()`: the backward pass of these ranks is a part of the
//! collective.
//!
//! The operations accept f32, f64, f16 and bf16 on the CPU, and add in rank order. They return
//! candle's errors, so that models can call them. A candle error contains the error of a
//! collective, and `Error::from` converts it back to this crate's [`Error`].

mod exchange;

use std::sync::Arc;

use candle_core::shape::Dim;
use candle_core::{Result, Tensor};

use self::exchange::{PassDirection, check_divides, exchange, exchange_along};
use crate::Error;
use crate::comm::{Collective, Group, ReduceOp};

const SUM: PassDirection = PassDirection::Collective(Collective::AllReduce(ReduceOp::Sum));

const fn sum_to(root: usize) -> PassDirection {
    PassDirection::Collective(Collective::Reduce { op: ReduceOp::Sum, root })
}

const fn broadcast_from(root: usize) -> PassDirection {
    PassDirection::Collective(Collective::Broadcast { root })
}

/// The sum, or the mean, of all ranks' `xs`, on every rank.
///
/// Backward: every rank's input is in every rank's result, so the gradient is the sum (the mean) of
/// all ranks' gradients.
///
/// # Errors
/// An `op` other than sum and mean, because only these have a gradient here. A failure of another
/// rank, a passed deadline or a disagreement between ranks.
pub fn all_reduce(xs: &Tensor, op: ReduceOp, group: &Group) -> Result<Tensor> {
    if !matches!(op, ReduceOp::Sum | ReduceOp::Mean) {
        let what = format!("the gradient of an all-reduce by {op:?}");
        return Err(Error::Unsupported { what }.into());
    }
    let way = PassDirection::Collective(Collective::AllReduce(op));
    exchange("all_reduce", xs, group, way.clone(), way)
}

/// All ranks' `xs`, concatenated along `dim` in rank order, on every rank. All ranks pass the same
/// shape.
///
/// Backward: this rank's part of the sum of all ranks' gradients.
///
/// # Errors
/// A dimension that `xs` does not have. A failure of another rank, a passed deadline or a
/// disagreement between ranks.
pub fn all_gather(xs: &Tensor, dim: impl Dim + Copy, group: &Group) -> Result<Tensor> {
    let forward = PassDirection::Collective(Collective::AllGather);
    let backward = PassDirection::Collective(Collective::ReduceScatter(ReduceOp::Sum));
    exchange_along("all_gather", xs, dim, group, forward, backward)
}

/// The sum of all ranks' `xs`, cut along `dim` into one equal part for each rank. Rank `r` gets
/// part `r`.
///
/// Backward: all ranks' gradients, concatenated.
///
/// # Errors
/// A dimension that `xs` does not have or that does not divide by the number of ranks. A failure of
/// another rank, a passed deadline or a disagreement between ranks.
pub fn reduce_scatter(xs: &Tensor, dim: impl Dim + Copy, group: &Group) -> Result<Tensor> {
    check_divides("reduce_scatter", xs, dim, group)?;
    let forward = PassDirection::Collective(Collective::ReduceScatter(ReduceOp::Sum));
    let backward = PassDirection::Collective(Collective::AllGather);
    exchange_along("reduce_scatter", xs, dim, group, forward, backward)
}

/// [`all_gather`] of tensors whose lengths along `dim` may differ between the ranks. The ranks tell each other
/// their lengths first.
///
/// Backward: this rank's part of the sum of all ranks' gradients.
///
/// # Errors
/// A dimension that `xs` does not have. Ranks whose tensors differ in another dimension, a failure of another rank, a
/// passed deadline or a disagreement between ranks.
pub fn all_gather_v(xs: &Tensor, dim: impl Dim + Copy, group: &Group) -> Result<Tensor> {
    let index = dim.to_index(xs.shape(), "all_gather_v")?;
    let mut own: Vec<i64> = xs.dims().iter().map(|&len| len as i64).collect();
    own.swap(0, index);
    let all = group.all_gather(&own)?;
    let mut shapes = all.chunks(own.len()).enumerate();
    if let Some((rank, shape)) = shapes.find(|(_, shape)| shape[1..] != own[1..]) {
        let what = format!(
            "all_gather_v along dimension {index} of {:?} here and {:?} on rank {}: the other dimensions must be equal",
            restored(&own, index),
            restored(shape, index),
            group.ranks()[rank]
        );
        return Err(Error::Unsupported { what }.into());
    }
    let lens: Arc<[usize]> = all.chunks(own.len()).map(|shape| shape[0] as usize).collect();
    let (forward, backward) =
        (PassDirection::GatherRows(lens.clone()), PassDirection::ReduceRows(lens));
    exchange_along("all_gather_v", xs, dim, group, forward, backward)
}

/// The dimensions of a tensor whose dimension `index` has been exchanged with the first one.
fn restored(dims: &[i64], index: usize) -> Vec<i64> {
    let mut dims = dims.to_vec();
    dims.swap(0, index);
    dims
}

/// [`reduce_scatter`] into parts of any lengths: rank `r` gets `lens[r]` entries along `dim`. All ranks pass the same
/// `lens`.
///
/// Backward: all ranks' gradients, concatenated.
///
/// # Errors
/// A dimension that `xs` does not have, or `lens` that are not one length for each rank or do not add up to the length
/// of that dimension. A failure of another rank, a passed deadline or a disagreement between ranks.
pub fn reduce_scatter_v(
    xs: &Tensor,
    dim: impl Dim + Copy,
    lens: &[usize],
    group: &Group,
) -> Result<Tensor> {
    let (op, world_size) = ("reduce_scatter_v", group.world_size());
    if lens.len() != world_size {
        return Err(Error::Parts { op, parts: lens.len(), world_size }.into());
    }
    let (expected, got) = (xs.dim(dim)?, lens.iter().sum());
    if expected != got {
        return Err(Error::Length { op, expected, got }.into());
    }
    let lens: Arc<[usize]> = lens.into();
    let (forward, backward) =
        (PassDirection::ReduceRows(lens.clone()), PassDirection::GatherRows(lens));
    exchange_along(op, xs, dim, group, forward, backward)
}

/// The `xs` of rank `root`, on every rank. Every other rank passes a tensor of the same shape,
/// whose values are ignored.
///
/// Backward: the sum of all ranks' gradients on `root`, zeros on the other ranks. If the tensor of
/// `root` needs a gradient, the tensors of the other ranks must need one too. Otherwise these ranks
/// do not take part in the sum.
///
/// # Errors
/// A root that does not exist. A failure of another rank, a passed deadline or a disagreement
/// between ranks.
pub fn broadcast(xs: &Tensor, root: usize, group: &Group) -> Result<Tensor> {
    exchange("broadcast", xs, group, broadcast_from(root), sum_to(root))
}

/// The sum of all ranks' `xs` on rank `root`, and zeros of the same shape on the other ranks.
///
/// Backward: every rank gets the gradient of `root`. The loss of each rank must depend on its result.
///
/// # Errors
/// A root that does not exist. A failure of another rank, a passed deadline or a disagreement
/// between ranks.
pub fn reduce(xs: &Tensor, root: usize, group: &Group) -> Result<Tensor> {
    exchange("reduce", xs, group, sum_to(root), broadcast_from(root))
}

/// The `xs` of rank `root`, cut along `dim` into one equal part for each rank. Rank `r` gets part `r`.
/// Every other rank passes a tensor of the same shape, whose values are ignored.
///
/// Backward: all ranks' gradients on `root`, concatenated, and zeros on the other ranks. As for
/// [`broadcast`], either all ranks' tensors need a gradient or none does.
///
/// # Errors
/// A root that does not exist. A dimension that `xs` does not have or that does not divide by the
/// number of ranks. A failure of another rank, a passed deadline or a disagreement between ranks.
pub fn scatter(xs: &Tensor, dim: impl Dim + Copy, root: usize, group: &Group) -> Result<Tensor> {
    check_divides("scatter", xs, dim, group)?;
    let forward = PassDirection::Collective(Collective::Scatter { root });
    let backward = PassDirection::Collective(Collective::Gather { root });
    exchange_along("scatter", xs, dim, group, forward, backward)
}

/// All ranks' `xs` on rank `root`, concatenated along `dim` in rank order, and zeros of the same shape on
/// the other ranks. All ranks pass the same shape.
///
/// Backward: each rank gets its part of the gradient of `root`. The loss of each rank must depend on its
/// result.
///
/// # Errors
/// A root that does not exist, or a dimension that `xs` does not have. A failure of another rank, a
/// passed deadline or a disagreement between ranks.
pub fn gather(xs: &Tensor, dim: impl Dim + Copy, root: usize, group: &Group) -> Result<Tensor> {
    let forward = PassDirection::Collective(Collective::Gather { root });
    let backward = PassDirection::Collective(Collective::Scatter { root });
    exchange_along("gather", xs, dim, group, forward, backward)
}

/// Cuts `xs` along `dim` into one equal part for each rank and sends part `r` to rank `r`. Returns
/// the received parts, concatenated along `dim` in rank order.
///
/// Backward: each part's gradient returns to the rank that sent the part.
///
/// # Errors
/// A dimension that `xs` does not have or that does not divide by the number of ranks. A failure of
/// another rank, a passed deadline or a disagreement between ranks.
pub fn all_to_all(xs: &Tensor, dim: impl Dim + Copy, group: &Group) -> Result<Tensor> {
    check_divides("all_to_all", xs, dim, group)?;
    let way = PassDirection::Collective(Collective::AllToAll);
    exchange_along("all_to_all", xs, dim, group, way.clone(), way)
}

/// *f*: passes `xs`, which is the same on every rank, to layers that are split over the ranks.
/// Forward it is the identity. Backward it is the sum over the ranks, because each rank's part of
/// the layers contributes to the gradient.
///
/// # Errors
/// In the backward pass: a failure of another rank, a passed deadline or a disagreement.
pub fn copy_to_group(xs: &Tensor, group: &Group) -> Result<Tensor> {
    exchange("copy_to_group", xs, group, PassDirection::Identity, SUM)
}

/// *g*: adds the ranks' partial results, so the result is the same on every rank again. Forward it
/// is the sum. Backward it is the identity, because every rank has the whole gradient.
///
/// # Errors
/// A failure of another rank, a passed deadline or a disagreement between ranks.
pub fn reduce_from_group(xs: &Tensor, group: &Group) -> Result<Tensor> {
    exchange("reduce_from_group", xs, group, SUM, PassDirection::Identity)
}
