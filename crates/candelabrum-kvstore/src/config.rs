//! The settings of a store.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::server_parts::BIG_ARRAY_BOUND;
use crate::{Error, Result};

/// How the pushes of several workers become updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum StoreKind {
    /// One process with its own store.
    Local,
    /// An update for each round of pushes, one of each worker.
    DistSync,
    /// An update for each push.
    DistAsync,
}

impl StoreKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Local, Self::DistSync, Self::DistAsync];
}

impl fmt::Display for StoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
            Self::DistSync => "dist_sync",
            Self::DistAsync => "dist_async",
        })
    }
}

impl FromStr for StoreKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|kind| kind.to_string() == name);
        known.ok_or_else(|| Error::Kind { name: name.to_owned() })
    }
}

/// The settings of a store, the same on every worker.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreConfig {
    /// How pushes become updates.
    pub kind: StoreKind,
    /// In dist_async: the most rounds by which a worker may be ahead of the slowest one, for each key
    /// (stale-synchronous parallel: Ho et al., NIPS 2013). At least 1. `None`: no bound.
    pub staleness_bound: Option<u64>,
    /// A value of this many elements or more is divided among all servers. MXNet's
    /// `MXNET_KVSTORE_BIGARRAY_BOUND`, and its default.
    pub big_array_bound: usize,
}

impl StoreConfig {
    /// A store of this kind with MXNet's bound for big arrays and no bound for staleness.
    pub fn new(kind: StoreKind) -> Self {
        Self { kind, staleness_bound: None, big_array_bound: BIG_ARRAY_BOUND }
    }

    /// Refuses settings without meaning.
    ///
    /// # Errors
    /// [`Error::Setting`].
    pub fn check(&self) -> Result<()> {
        let &Self { kind, staleness_bound, big_array_bound } = self;
        if let Some(bound) = staleness_bound
            && (kind != StoreKind::DistAsync || bound == 0)
        {
            return Err(Error::Setting {
                setting: "the staleness bound",
                value: format!("{bound} in a store of the kind {kind}"),
                range: "it is at least 1, and only dist_async has one (dist_sync is never stale)",
            });
        }
        if big_array_bound == 0 {
            let (setting, value) = ("big_array_bound", "0".to_owned());
            return Err(Error::Setting { setting, value, range: "it is at least 1" });
        }
        Ok(())
    }
}
