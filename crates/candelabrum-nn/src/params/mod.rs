//! The parameters of a model: named, ordered, seeded.
//!
//! **Invariant** Names are unique. Parameters are in the order of their creation, which is the same
//! on all ranks that run the same program. Initial values depend on the seed and on the name, and
//! on nothing else.

mod arrival;
mod blocks;
mod buffers;
mod freeze;
mod init;
mod initial_values;
mod master;
mod param;
mod quantized;
mod recompute;
mod scope;
mod sharding;
mod store;
mod tensors;
mod together;
mod uses;
mod var_builder;
mod weight;

pub(crate) use blocks::{
    BlockPass, BlockPlace, begin_backward, enter_backward, hold_blocks, hold_inner_blocks,
    leave_backward, present_block,
};
pub use buffers::Buffer;
pub(crate) use buffers::update_on_gpu;
pub use init::Init;
pub use initial_values::InitialValues;
pub(crate) use master::is_half;
pub use param::Param;
pub use quantized::QuantizedMatrix;
pub use recompute::Recompute;
pub use scope::Scope;
pub use sharding::ShardedValues;
pub use store::Params;
pub(crate) use store::is_running_statistic;
pub use tensors::{to_flat, with_span};
pub use weight::Weight;
pub(crate) use weight::{Adapter, WeightMatrix, layer_of};
