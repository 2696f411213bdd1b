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
//! gradient says how that sum changes with this rank's tensor. The last two are Megatron's pair, for
//! ranks that all compute *one and the same* loss: the gradient is that of the loss, counted once. So
//! where the loss is replicated, `all_reduce` would give N times the gradient that
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

mod all_gather;
mod all_reduce;
mod all_to_all;
mod broadcast;
mod exchange;
mod reduce_scatter;
mod tensor_parallel;

pub use all_gather::all_gather;
pub use all_reduce::all_reduce;
pub use all_to_all::all_to_all;
pub use broadcast::broadcast;
pub use reduce_scatter::reduce_scatter;
pub use tensor_parallel::{copy_to_group, reduce_from_group};
