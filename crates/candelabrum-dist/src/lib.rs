//! Data-parallel training over ranks.
//!
//! | idea | where |
//! |---|---|
//! | the rank of this process, and its launcher | [`World`], [`launch`] |
//! | collectives on buffers, one file per backend | [`comm`] |
//! | gradients in buckets, their exchange, the update | [`DistOpt`] |
//! | the messages between ranks in a step | [`strategy`] |
//! | batch normalisation over all ranks' batches | [`synchronize_batch_norm`] |
//! | state that is not trained | [`synchronize_buffers`] |
//! | collectives that can be differentiated | [`ops`] |
//! | a check that all ranks train the same model | [`check_consistency`] |
//!
//! `unsafe` code is only in `comm::local::region`, `comm::local::exchange`, `launch::signals`, `launch::tie` and
//! the raw calls of the MPI and NCCL backends.
//!
//! Ranks that need no MPI need Linux: the cfg `local_ranks`, which `build.rs` sets. On other systems, and with the
//! variable `CANDELABRUM_PORTABLE` on Linux, a world has one rank or those of MPI.

#![cfg_attr(
    not(local_ranks),
    expect(dead_code, reason = "what only the local backend, TCP and the launcher use")
)]

pub mod comm;
pub mod launch;
pub mod ops;
pub mod strategy;

mod bucketing;
mod buffers;
mod consistency;
mod constants;
mod error;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(not(feature = "cuda"))]
#[path = "no_gpu.rs"]
mod gpu;
mod note;
mod opt;
mod step_weight;
mod sync_batch_norm;
mod trained;
mod world;

pub use buffers::{BufferSync, synchronize_buffers};
pub use comm::{
    Announcement, BorrowedElements, Collective, CommStats, Communicator, Element, ElementType,
    Group, Label, Mesh, Payload, Pending, ReduceOp, Replicate,
};
pub use consistency::{check_consistency, parameters_sha256};
pub use constants::Constants;
pub use error::{Error, Result};
#[doc(hidden)]
pub use error::{carried, of_rank};
pub use launch::WorldConfig;
#[doc(hidden)]
pub use note::note;
pub use opt::{
    DistOpt, DistOptConfig, DistOptState, LossScale, NewValues, OnOverflow, OptimizerMemory,
    OptimizerVector, RoundServers, ServerMessages, Servers, Shard, StepFigures, StepGraph,
    StepServer, StrategyState, UpdateServers,
};
pub(crate) use step_weight::{StepWeight, TotalWeight};
pub use strategy::StrategyConfig;
pub use sync_batch_norm::{statistics_exchange, synchronize_batch_norm};
pub(crate) use trained::TrainableParams;
pub use world::World;
