//! Data-parallel training over ranks.
//!
//! | idea | where |
//! |---|---|
//! | who am I, how was I started | [`World`], [`launch`] |
//! | collectives on buffers, one file per backend | [`comm`] |
//! | gradients in buckets, their exchange, the update | [`DistOpt`] |
//! | what ranks send each other in a step | [`strategy`] |
//! | normalisation by all ranks' batches, state that is not trained | [`synchronize_batch_norm`], [`synchronize_buffers`] |
//! | collectives that can be differentiated | [`ops`] |
//! | do all ranks train the same thing | [`check_consistency`] |
//!
//! `unsafe` lives in `comm::local::region`, `comm::local::exchange`, `launch::signals` and the raw
//! calls of the MPI and NCCL backends.

pub mod comm;
pub mod launch;
pub mod ops;
pub mod strategy;

mod buffers;
mod consistency;
mod error;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(not(feature = "cuda"))]
#[path = "no_gpu.rs"]
mod gpu;
mod opt;
mod sync_batch_norm;
mod unit_plan;
mod world;

pub use buffers::{BufferSync, synchronize_buffers};
pub use comm::{
    Collective, CommStats, Communicator, Element, ElementType, Group, Label, Payload, Pending,
    ReduceOp,
};
pub use consistency::{check_consistency, parameters_sha256};
pub use error::{Error, Result};
pub use opt::{DistOpt, DistOptConfig, OnOverflow, StepFigures, StrategyState};
pub use strategy::StrategyConfig;
pub use sync_batch_norm::{statistics_exchange, synchronize_batch_norm};
pub use world::World;
