//! A rank's place in a group: the data that the group's handle, its queue and its operations under
//! way share.

use std::sync::Arc;
use std::time::Duration;

use super::collective::CollectiveHeader;
use super::failures::Failures;
use super::messages::Messages;
use super::stats::{Counters, PayloadBytes};
use super::{Collective, Label};
use crate::Error;

/// The number of the world among a rank's groups. It is the first group.
pub(super) const WORLD: usize = 0;

/// The data that both a group's handle and its queue have.
#[derive(Clone)]
pub(super) struct GroupInfo {
    pub(super) id: usize,
    pub(super) rank: usize,
    /// The members' ranks in the world.
    pub(super) ranks: Arc<[usize]>,
    pub(super) counters: Arc<Counters>,
    /// The messages between two members.
    pub(super) messages: Arc<dyn Messages>,
}

impl GroupInfo {
    /// This rank's number in the world.
    pub(super) fn own(&self) -> usize {
        self.ranks[self.rank]
    }

    /// Counts an operation that is complete.
    pub(super) fn count(&self, op: Collective, moved: PayloadBytes, busy: Duration) {
        self.counters.count(op, moved, self.rank, self.ranks.len(), busy);
    }

    /// Adds the content of the payload, and the group, to the message of an error.
    pub(super) fn explain(
        &self,
        error: Error,
        header: CollectiveHeader,
        label: Option<&Label>,
    ) -> Error {
        let label = label.map_or(String::new(), |label| format!(" ({})", label.text()));
        let group = if self.id == WORLD {
            String::new()
        } else {
            let ranks: Vec<String> = self.ranks.iter().map(usize::to_string).collect();
            format!(" in the group of ranks {}", ranks.join(", "))
        };
        error.with_context(self.own(), &header.to_string(), &label, &group)
    }
}

/// The groups of a reduction over several hosts, by their numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupLayers {
    /// All ranks.
    pub(super) flat: usize,
    /// The ranks of this host.
    pub(super) host: usize,
    /// The ranks with this rank's place on each host, if this rank exchanges data with other hosts.
    pub(super) across: Option<usize>,
    /// Whether all hosts have equally many ranks.
    pub(super) even: bool,
}

impl GroupLayers {
    /// Whether an operation of group `id` runs in the groups of the layers.
    pub(super) fn divide(&self, id: usize, op: Collective) -> bool {
        match op {
            Collective::AllReduce(_) => id == self.flat,
            Collective::ReduceScatterV(_) => id == self.host,
            _ => false,
        }
    }
}

/// The data by which an operation is named in an error, and the place where the error is stored.
pub(crate) struct OpContext {
    pub(super) group_info: GroupInfo,
    pub(super) header: CollectiveHeader,
    pub(super) label: Option<Label>,
    pub(super) failures: Arc<Failures>,
}

impl OpContext {
    /// Adds the content of the payload, and the group, to the message of an error.
    pub(super) fn explain(&self, error: Error) -> Error {
        self.group_info.explain(error, self.header, self.label.as_ref())
    }

    /// Stores and reports an error that the program gets.
    pub(super) fn fail(&self, error: Error) -> Error {
        self.failures.add(&error);
        error
    }
}
