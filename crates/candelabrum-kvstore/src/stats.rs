//! What servers count.

use candelabrum_memory::usage;
use serde::{Deserialize, Serialize};

/// The staleness of one worker's pushes: the updates between the value that the worker had pulled and
/// the update by its push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staleness {
    /// The number of pushes.
    pub count: u64,
    /// The sum of their staleness.
    pub sum: u64,
    /// The greatest of it.
    pub max: u64,
}

impl Staleness {
    pub(crate) fn add(&mut self, staleness: u64) {
        self.count += 1;
        self.sum += staleness;
        self.max = self.max.max(staleness);
    }

    /// The mean.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count.max(1) as f64
    }
}

/// The counts of one server since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStats {
    /// The server's rank.
    pub rank: usize,
    /// Requests by worker.
    pub requests: Vec<u64>,
    /// Pushes by worker.
    pub pushes: Vec<u64>,
    /// Updates of all keys together.
    pub updates: u64,
    /// Staleness by worker, of the pushes that are part of a value.
    pub staleness: Vec<Staleness>,
    /// The most rounds by which a worker was ahead of the slowest one after an update, of any key.
    pub max_lead: u64,
    /// The most requests of one worker that were served one after the other while a request of
    /// another worker was there.
    pub longest_run: u64,
    /// The rows of tables that exist: those that were pulled or pushed.
    pub rows: u64,
    /// The most memory that the server's process has had at a time, in bytes. 0 if the system does not
    /// report it.
    pub peak_memory: u64,
}

impl ServerStats {
    pub(crate) fn new(rank: usize, workers: usize) -> Self {
        let (requests, pushes) = (vec![0; workers], vec![0; workers]);
        let staleness = vec![Staleness::default(); workers];
        Self { rank, requests, pushes, staleness, ..Self::default() }
    }
}

/// See [`ServerStats::peak_memory`].
pub(crate) fn peak_memory() -> u64 {
    usage::of_process("VmHWM").unwrap_or(0)
}
