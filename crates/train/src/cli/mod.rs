//! What every training program needs besides training: options, start-up, errors.

mod args;
mod data;
mod run;

pub use args::TrainArgs;
pub use data::{Data, load_data};
pub use run::run;
