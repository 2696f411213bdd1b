//! What workers tell a shard before they push: the settings of the store, keys, the optimizer.

use std::fmt;
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
    /// The elements from which on a value is divided.
    pub(crate) big_array_bound: usize,
    pub(crate) version: String,
}

impl fmt::Display for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, staleness_bound, big_array_bound, version } = self;
        write!(f, "{kind}, ")?;
        match staleness_bound {
            Some(bound) => write!(f, "a staleness of at most {bound}, ")?,
            None => write!(f, "no bound for staleness, ")?,
        }
        write!(f, "division from {big_array_bound} elements on, version {version}")
    }
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

impl OptimizerSettings {
    pub(super) fn describe(&self) -> String {
        format!("{} / {}", self.recipe.build().describe(), self.divide_by)
    }
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
