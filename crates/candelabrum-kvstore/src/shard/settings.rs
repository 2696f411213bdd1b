//! What workers tell a shard before they push: the settings of the store, keys, the optimizer.

use std::fmt;
use std::ops::Range;

use candelabrum_memory::{ElementType, FlatTensor};
use candelabrum_optim::Recipe;
use serde::{Deserialize, Serialize};

use crate::config::StoreKind;
use crate::{Error, Key, Result};

/// The settings of a store, the same on every worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoreSettings {
    pub(crate) kind: StoreKind,
    /// The most rounds that a worker may be ahead of the slowest one.
    pub(crate) staleness_bound: Option<u64>,
    /// The elements from which on a value is divided.
    pub(crate) big_array_bound: usize,
    pub(crate) version: String,
}

impl fmt::Display for StoreSettings {
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
pub(crate) struct KeyInit {
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

impl KeyInit {
    /// Refuses a part that its value does not have, and says why.
    pub(super) fn check(&self) -> std::result::Result<(), String> {
        let Self { key, dims, part, rows } = self;
        let elements = dims.iter().try_fold(1_usize, |all, dim| all.checked_mul(*dim));
        let len = match rows {
            None => elements,
            Some(_) => dims.first().copied().filter(|rows| u32::try_from(*rows).is_ok()),
        };
        let is_whole = rows.is_none() || (dims.len() == 2 && elements.is_some_and(|all| all > 0));
        if is_whole && part.start <= part.end && len.is_some_and(|len| part.end <= len) {
            return Ok(());
        }
        Err(format!("`{key}` has no part {part:?} of the shape {dims:?}"))
    }

    /// Elements of the whole value. The part has been checked.
    pub(super) fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Zeros for the part.
    pub(super) fn zeros(&self) -> Result<FlatTensor> {
        let row: usize = self.rows.map_or(1, |_| self.dims.iter().skip(1).product());
        let len = self.part.len() * row;
        let room = len.checked_mul(size_of::<f32>());
        // The allocator would end the process. No memory is touched by this.
        let is_there = |bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok();
        if room.is_some_and(is_there) {
            return Ok(FlatTensor::zeros(ElementType::F32, len));
        }
        Err(Error::Room { key: self.key.clone(), elements: len })
    }
}

impl OptimizerSettings {
    /// Returns an error if the optimizer needs the whole value, and a server has only a part or updates
    /// rows alone.
    pub(super) fn check_for(&self, init: &KeyInit) -> Result<()> {
        let is_whole = init.rows.is_none() && init.part.len() == init.elements();
        if is_whole || self.recipe.is_elementwise() {
            return Ok(());
        }
        let (key, name) = (&init.key, self.recipe.build().describe());
        let (value, range) = match init.rows {
            None => (
                format!("{name}, and `{key}` is divided among servers"),
                "a divided value needs an optimizer that treats each element alone: raise the \
                 store's `big_array_bound`",
            ),
            Some(_) => (
                format!("{name}, and `{key}` is a table of rows"),
                "a table needs an optimizer that treats each element alone",
            ),
        };
        Err(Error::Setting { setting: "the optimizer", value, range })
    }

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
