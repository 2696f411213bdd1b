//! The parts of a training program besides training: options, start-up, errors.

mod args;
mod data;
mod kvstore;
mod parse;
mod precision;
mod run;

pub use args::TrainArgs;
pub use data::load_data;
pub use kvstore::KvStoreKind;
pub use parse::parse;
pub use precision::Precision;
pub use run::{run, run_ranks, run_with_servers};
