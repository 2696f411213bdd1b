//! The state of a training at one moment, as one rank sees it: what its step pays for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::shard::SHARD;
use super::vector_set::VectorSet;
use crate::Metrics;

/// The numbers of the files that this rank writes, and what else is its own.
#[derive(Debug, Default)]
pub struct Snapshot {
    rank: usize,
    files: BTreeMap<String, VectorSet>,
    pub(super) own: OwnFacts,
}

/// What ranks may have differently, beside numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OwnFacts {
    /// The draws of noise so far, by the names of the parts.
    pub(super) noise_draws: BTreeMap<String, u64>,
    /// The counts of the epoch so far.
    pub(super) metrics: Metrics,
}

impl Snapshot {
    pub(super) fn new(rank: usize) -> Self {
        Self { rank, ..Self::default() }
    }

    /// Begins the next checkpoint in the same memory.
    pub(super) fn begin(&mut self) {
        self.files.values_mut().for_each(VectorSet::begin);
        self.own = OwnFacts::default();
    }

    /// Frees what the checkpoint has not used.
    pub(super) fn end(&mut self) {
        self.files.values_mut().for_each(VectorSet::end);
        self.files.retain(|_, numbers| !numbers.is_empty());
    }

    pub(super) fn files(&self) -> &BTreeMap<String, VectorSet> {
        &self.files
    }

    /// The file called `name` of part `part`, which is the same on all ranks: only rank 0 writes it.
    pub fn shared(&mut self, part: &str, name: &str) -> Option<&mut VectorSet> {
        (self.rank == 0).then(|| self.files.entry(shared_name(part, name)).or_default())
    }

    /// The file with this rank's shard of what all ranks have together, called `name`, of part `part`.
    pub fn shard(&mut self, part: &str, name: &str) -> &mut VectorSet {
        self.files.entry(shard_name(part, name, self.rank)).or_default()
    }

    /// The file called `name` of part `part` that each rank has of its own.
    pub fn own(&mut self, part: &str, name: &str) -> &mut VectorSet {
        self.files.entry(own_name(part, name, self.rank)).or_default()
    }
}

/// The name of a file, without its ending.
pub(super) fn shared_name(part: &str, name: &str) -> String {
    if part.is_empty() { name.to_owned() } else { format!("{part}-{name}") }
}

/// As [`shared_name`], for a rank's shard. A rank that continues reads the shards that it needs, one at a time.
pub(super) fn shard_name(part: &str, name: &str, rank: usize) -> String {
    format!("{}{SHARD}{rank}", shared_name(part, name))
}

/// As [`shared_name`], for a file of one rank.
pub(super) fn own_name(part: &str, name: &str, rank: usize) -> String {
    format!("{}-rank-{rank}", shared_name(part, name))
}
