//! Checkpoints: the whole state of a training in a directory, from which it continues with the same bits.
//!
//! A step pays for one copy of the state. Another thread writes it. A checkpoint has its name only when all of it
//! is on the disk, so a run that is killed at any moment leaves whole checkpoints and something that the next
//! run removes.
//!
//! | file of a checkpoint | content |
//! |---|---|
//! | `checkpoint.json` | what it is of, and the SHA-256 of every other file ([`Manifest`]) |
//! | `parameters.safetensors` | parameters and buffers by name: other libraries read it, and [`Params::load_weights`](candelabrum_nn::Params::load_weights) |
//! | `optimizer.safetensors` | the vectors of the optimizer |
//! | `NAME-rank-N.safetensors`, `rank-N.json` | what each rank has of its own |
//! | `servers/` | the files of a key-value store's servers |
//!
//! A training with several models has the names of these files with those of the models before them.
//!
//! [`Trainer::fit`](crate::Trainer::fit) makes them by [`FitConfig`](crate::FitConfig). A loop of your own calls
//! [`Checkpoints::resume`], [`Checkpoints::save`] and [`Checkpoints::finish`].

mod best;
mod candidates;
mod checkpoints;
mod checks;
mod config;
mod digest;
mod direct_file;
mod directory;
mod dist_opt;
mod export;
mod file_timeout;
mod manifest;
mod model;
mod newest;
#[cfg(target_os = "linux")]
mod page_cache;
#[cfg(not(target_os = "linux"))]
#[path = "no_page_cache.rs"]
mod page_cache;
mod parameters;
mod position;
mod restored;
mod saving;
mod settings;
mod shard;
mod shards;
mod snapshot;
mod stateful;
mod vector_set;
mod whole_file;

pub(crate) use best::{best_checkpoint, has_average, still_there};
pub use best::{load_best, load_best_average};
pub use checkpoints::{CheckpointOutcome, Checkpoints, Resumed, RunState, SaveOutcome};
pub use config::{CheckpointConfig, Resume};
pub use digest::FileDigest;
pub(crate) use digest::sha256;
pub use export::{export_best, export_best_average};
pub use manifest::{BestCheckpoint, Manifest, Parent, PartState, Ranked, SavedStrategy};
pub(crate) use newest::newest_checkpoint;
pub use position::Position;
pub(crate) use restored::HOOK_FILES;
pub use restored::{Restored, VectorFile};
pub(crate) use settings::ChangedSetting;
pub use settings::RunSettings;
pub use shard::OwnPart;
pub(crate) use shards::hook_vectors;
pub use snapshot::{OwnFacts, Snapshot};
pub use stateful::Stateful;
pub use vector_set::VectorSet;
