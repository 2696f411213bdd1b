//! The parts of a training program besides training: options, start-up, errors.

mod args;
mod averages;
mod checkpoints;
mod data;
mod interrupt;
mod kvstore;
mod optimizer;
#[cfg(test)]
mod page;
mod parse;
mod precision;
mod read_marks;
mod run;
mod unread;

pub use args::{Augment, RecomputedBlocks, TrainArgs};
pub use averages::AverageArgs;
pub use checkpoints::CheckpointArgs;
pub use data::load_data;
pub use interrupt::interrupted;
pub use kvstore::KvStoreKind;
pub use optimizer::{OptimizerArgs, OptimizerKind, ScheduleKind, StateType};
pub use parse::parse;
pub use precision::Precision;
pub use run::{run, run_ranks, run_with_servers, watch_signals};
