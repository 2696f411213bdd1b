//! What workers tell a shard before they push: the settings of the store, keys, the optimizer.

use std::ops::Range;

use candelabrum_optim::Recipe;
use serde::{Deserialize, Serialize};

use crate::Key;
use crate::config::StoreKind;

/// The settings of a store, the same on every worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) kind: StoreKind,
    /// The most rounds that a worker may be ahead of the slowest one.
    pub(crate) staleness_bound: Option<u64>,
    pub(crate) version: String,
}

/// A key, as a worker initialises it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Init {
    pub(crate) key: Key,
    /// The shape of the whole value.
    pub(crate) dims: Vec<usize>,
    /// The elements, or rows of a table, that this server holds.
    pub(crate) part: Range<usize>,
    /// The first values of a table's rows. `None` for a dense value, which the first worker sends.
    pub(crate) rows: Option<RowInit>,
}

/// An optimizer, as a worker sets it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct OptimizerSettings {
    pub(crate) recipe: Recipe,
    /// The number by which a sum of gradients is divided before the update.
    pub(crate) divide_by: f32,
}

/// The first values of a table's rows. Servers make them, so no worker has the whole table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RowInit {
    /// Zeros.
    Zeros,
    /// Normal with mean 0.
    Normal {
        /// The standard deviation: finite and not negative.
        std: f32,
        /// The seed of the run.
        seed: u64,
    },
}
