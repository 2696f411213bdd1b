//! The pushes of one key: which of them make the next update, and which pulls wait for it.
//!
//! In dist_sync, an update needs one push of each worker. A worker that pushes twice begins the next
//! round with its second push, and does not replace another worker. (MXNet counts pushes, so in MXNet a second
//! push does replace another worker.) The sum is in the order of the workers, so it does not depend on the order of
//! arrival.
//!
//! In dist_async, each push is an update. With a staleness bound s (stale-synchronous parallel: Ho et al., NIPS
//! 2013), a push waits while it would put its worker more than s rounds ahead of the slowest worker that
//! has not left.
//!
//! **Invariant** At most [`MOST_AHEAD`] pushes of a worker wait here. A worker asks for room before the next
//! push ([`crate::client`]). The shard refuses a push that comes without room.

use std::collections::VecDeque;
use std::time::Instant;

use crate::config::StoreKind;
use crate::wire::{MOST_AHEAD, WireMessage};

pub(super) struct Rounds {
    is_sync: bool,
    bound: Option<u64>,
    /// By worker: its pushes that have arrived.
    pushed: Vec<u64>,
    /// By worker: those of them that are part of the value.
    applied: Vec<u64>,
    /// By worker: the others.
    held: Vec<VecDeque<WireMessage>>,
    /// Updates so far.
    version: u64,
    waits: Vec<WaitingRequest>,
}

/// A request that waits for its worker's own pushes.
pub(super) struct WaitingRequest {
    pub(super) worker: usize,
    pub(super) ticket: u64,
    pub(super) kind: WaitKind,
    pub(super) since: Instant,
    /// The pushes of the worker that must be part of the value.
    after: u64,
}

/// What a request waits for.
pub(super) enum WaitKind {
    /// The value after all pushes that came before.
    Pull,
    /// Rows of a table after them, by this request.
    PullRows(Box<WireMessage>),
    /// Room for another push.
    Room,
}

impl WaitingRequest {
    pub(super) fn new(worker: usize, ticket: u64, kind: WaitKind) -> Self {
        Self { worker, ticket, kind, since: Instant::now(), after: 0 }
    }
}

impl Rounds {
    pub(super) fn new(kind: StoreKind, bound: Option<u64>, workers: usize) -> Self {
        Self {
            is_sync: kind != StoreKind::DistAsync,
            bound,
            pushed: vec![0; workers],
            applied: vec![0; workers],
            held: (0..workers).map(|_| VecDeque::new()).collect(),
            version: 0,
            waits: Vec::new(),
        }
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn set_version(&mut self, version: u64) {
        self.version = version;
    }

    /// Whether pushes have arrived that are not part of the value.
    pub(super) fn is_open(&self) -> bool {
        self.held.iter().any(|held| !held.is_empty())
    }

    /// The pushes of a worker that wait here.
    pub(super) fn held(&self, worker: usize) -> u64 {
        self.held[worker].len() as u64
    }

    pub(super) fn push(&mut self, worker: usize, message: WireMessage) {
        self.pushed[worker] += 1;
        self.held[worker].push_back(message);
    }

    /// Adds a request, which is ready when the pushes that its worker has sent before it are applied, or,
    /// for room, enough of them.
    pub(super) fn wait(&mut self, wait: WaitingRequest) {
        let pushed = self.pushed[wait.worker];
        let after = match wait.kind {
            WaitKind::Room => pushed.saturating_sub(MOST_AHEAD - 1),
            WaitKind::Pull | WaitKind::PullRows(_) => pushed,
        };
        self.waits.push(WaitingRequest { after, ..wait });
    }

    /// The pushes of the next update, with their workers, if all of them have arrived.
    pub(super) fn next(&mut self, here: &[bool]) -> Option<Vec<(usize, WireMessage)>> {
        let workers = 0..self.held.len();
        if self.is_sync {
            if self.held.iter().any(VecDeque::is_empty) {
                return None;
            }
            return workers.map(|worker| Some((worker, self.held[worker].pop_front()?))).collect();
        }
        let slowest = self.slowest(here);
        let may = |worker: &usize| {
            let ahead = (self.applied[*worker] + 1).saturating_sub(slowest);
            !self.held[*worker].is_empty() && self.bound.is_none_or(|bound| ahead <= bound)
        };
        let worker = workers.into_iter().find(may)?;
        Some(vec![(worker, self.held[worker].pop_front()?)])
    }

    /// Notes that these pushes are part of the value.
    pub(super) fn applied(&mut self, pushes: &[(usize, WireMessage)]) {
        self.version += 1;
        for (worker, _) in pushes {
            self.applied[*worker] += 1;
        }
    }

    /// The requests that wait no longer.
    pub(super) fn ready(&mut self) -> Vec<WaitingRequest> {
        let applied = &self.applied;
        self.waits.extract_if(.., |wait| applied[wait.worker] >= wait.after).collect()
    }

    /// Removes the requests for which `condition` holds.
    pub(super) fn give_up(
        &mut self,
        condition: impl Fn(&WaitingRequest) -> bool,
    ) -> Vec<WaitingRequest> {
        self.waits.extract_if(.., |wait| condition(wait)).collect()
    }

    /// A worker that has left without the push that the next round of dist_sync needs.
    pub(super) fn blocker(&self, here: &[bool]) -> Option<usize> {
        let blocks = |worker: &usize| !here[*worker] && self.held[*worker].is_empty();
        (0..here.len()).find(blocks).filter(|_| self.is_sync)
    }

    /// The workers whose pushes the next update needs.
    pub(super) fn missing(&self, here: &[bool]) -> Vec<usize> {
        let slowest = self.slowest(here);
        let is_missing = |worker: &usize| {
            if self.is_sync {
                self.held[*worker].is_empty()
            } else {
                here[*worker] && self.applied[*worker] == slowest
            }
        };
        (0..self.held.len()).filter(is_missing).collect()
    }

    /// The rounds of the slowest worker that is there.
    fn slowest(&self, here: &[bool]) -> u64 {
        let rounds = self.applied.iter().zip(here).filter(|(_, here)| **here);
        rounds.map(|(applied, _)| *applied).min().unwrap_or(u64::MAX)
    }

    /// The rounds by which the fastest worker is ahead of the slowest one, of those that are there.
    pub(super) fn lead(&self, here: &[bool]) -> u64 {
        let rounds = self.applied.iter().zip(here).filter(|(_, here)| **here);
        let fastest = rounds.map(|(applied, _)| *applied).max().unwrap_or(0);
        fastest.saturating_sub(self.slowest(here).min(fastest))
    }
}
