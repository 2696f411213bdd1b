//! What is called while a training runs: to watch it, to stop it, to save it, to change its learning rate, to average
//! or export its weights.

mod averaged_weights;
mod best_model;
mod direction;
mod early_stopping;
mod export_best;
mod hook;
mod rate_finder;
mod reduce_on_plateau;
mod weight_average;

pub use best_model::BestModel;
pub use direction::{Direction, Monitor};
pub use early_stopping::EarlyStopping;
pub use export_best::ExportBest;
pub(crate) use hook::read_state;
pub use hook::{Action, Hook, NamedVector, Run};
pub use rate_finder::LearningRateFinder;
pub use reduce_on_plateau::ReduceOnPlateau;
pub use weight_average::WeightAverage;
