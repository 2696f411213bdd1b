//! Barriers with a deadline, and the ways in which ranks touch each other's parts of a region between
//! them. Slots have their own file ([`super::slots`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cell::Shown;
use super::cells::Cells;
use super::region::Region;
use super::segment::Segment;
use crate::comm::ReduceOp;
use crate::comm::collective::{Collective, Header, check_agreement};
use crate::comm::network::Network;
use crate::comm::{ElementType, Payload};
use crate::{Error, Result};
use candelabrum_memory::reduce::reduce_into_all;

/// Where the ranks' buffers of an operation are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// All in the same region.
    Region,
    /// All outside of regions.
    Outside,
    /// Neither: to be treated as if all were outside.
    Mixed,
}

/// This rank's side of every barrier of a group.
pub(super) struct Exchange {
    cells: Cells,
    pub(super) network: Arc<Network>,
    pub(super) segment: Arc<Segment>,
    /// The members' ranks in the world.
    pub(super) ranks: Arc<[usize]>,
    pub(super) deadline: Duration,
    /// What the current operation is, for error messages.
    current: Header,
}

impl Exchange {
    pub(super) fn new(
        cells: Cells,
        network: Arc<Network>,
        segment: Arc<Segment>,
        ranks: Arc<[usize]>,
        deadline: Duration,
    ) -> Self {
        let current = Header::of(0, Collective::Barrier, &Payload::empty());
        Self { cells, network, segment, ranks, deadline, current }
    }

    /// The region of the cells.
    pub(super) fn cells(&self) -> &Arc<Region> {
        self.cells.region()
    }

    /// The number of the group.
    pub(super) fn group(&self) -> u64 {
        self.cells().member().group
    }

    /// A barrier after which every rank knows that all do the same, and where their buffers are.
    /// `region` is the number of the one that this rank's buffer is in, or 0.
    pub(super) fn agree(&mut self, header: Header, region: u64) -> Result<Where> {
        self.current = header;
        // Ranks that never wait long would not hear of a death in another group.
        if self.network.has_failure() {
            let (own, during) = (self.ranks[self.cells.rank()], || header.to_string());
            let trouble = self.network.trouble(self.group(), &[own], during);
            trouble.map_err(|error| self.fails(error))?;
        }
        let [sequence, what, len, tag] = header.encode();
        let own = [sequence, what, len, tag, region];
        self.cells.show(own);
        self.meet()?;
        let mut place = if region == 0 { Where::Outside } else { Where::Region };
        let mut same = true;
        for rank in 0..self.cells.world_size() {
            let shown = self.cells.shown(rank);
            same &= header_words(shown) == header_words(own);
            if shown[Header::WORDS] != region {
                place = Where::Mixed;
            }
        }
        if !same {
            let headers: Vec<_> = (0..self.cells.world_size())
                .map(|rank| header_words(self.cells.shown(rank)))
                .collect();
            check_agreement(&headers, &self.ranks)?;
        }
        Ok(place)
    }

    /// The header that the ranks last agreed on.
    pub(super) fn current(&self) -> Header {
        self.current
    }

    /// The number that `rank` showed beside its header when the ranks last agreed.
    pub(super) fn number_of(&self, rank: usize) -> u64 {
        self.cells.shown(rank)[Header::WORDS]
    }

    /// The length of `rank`'s buffer in the operation last agreed on.
    pub(super) fn len_of(&self, rank: usize) -> usize {
        self.cells.shown(rank)[2] as usize
    }

    /// A barrier.
    pub(super) fn meet(&mut self) -> Result<()> {
        self.cells.arrive();
        let mut start = None;
        let own = self.cells.rank();
        for rank in (0..self.cells.world_size()).filter(|&rank| rank != own) {
            while !self.cells.wait_a_while(rank) {
                let start = *start.get_or_insert_with(Instant::now);
                self.check(rank, start)?;
            }
        }
        Ok(())
    }

    /// Says why waiting for `rank`, which is not here yet, makes no sense any more.
    fn check(&self, rank: usize, start: Instant) -> Result<()> {
        let during = || self.current.to_string();
        if let Err(error) = self.network.trouble(self.group(), &[self.ranks[rank]], during) {
            // It may have arrived and left in order since the last look.
            return if self.cells.has_arrived(rank) { Ok(()) } else { Err(self.fails(error)) };
        }
        let waited = start.elapsed();
        if waited < self.deadline {
            return Ok(());
        }
        let missing = (0..self.cells.world_size()).filter(|&rank| !self.cells.has_arrived(rank));
        let missing = missing.map(|rank| self.ranks[rank].to_string()).collect::<Vec<_>>();
        let (rank, missing) = (self.ranks[self.cells.rank()], missing.join(", "));
        Err(self.fails(Error::Timeout { rank, during: during(), missing, waited }))
    }

    /// Another rank may still write to memory that this one is about to drop: it stays.
    fn fails(&self, error: Error) -> Error {
        self.segment.keep_everything();
        error
    }

    /// Reduces the first `bytes` of all ranks' parts of `region` into each of them. Every rank has
    /// passed a barrier since it wrote its part.
    pub(super) fn reduce(
        &mut self,
        region: &mut Region,
        bytes: usize,
        element: ElementType,
        op: ReduceOp,
    ) -> Result<()> {
        let member = region.member();
        let slice = member.slice(bytes);
        let part = |rank: usize| {
            // SAFETY: until the barrier below, this range of every part is this rank's turn: ranks
            // take ranges that do not overlap, and no rank looks at its own part before it passed
            // that barrier (`region` is borrowed until then).
            unsafe { region.part_mut(rank, slice.start, slice.len()) }
        };
        match member.world_size {
            2 => reduce_into_all(element, op, &mut [part(0), part(1)]),
            n => reduce_into_all(element, op, &mut (0..n).map(part).collect::<Vec<_>>()),
        }
        self.meet()
    }

    /// Lets this rank look at `count` bytes of all parts of `region` from `start` on, then waits
    /// until all have looked. Every rank has passed a barrier since it wrote its part.
    pub(super) fn look(
        &mut self,
        region: &Region,
        start: usize,
        count: usize,
        look: impl FnOnce(&[&[u8]]),
    ) -> Result<()> {
        let part = |rank: usize| {
            // SAFETY: between these two barriers all ranks only read (`region` is borrowed).
            unsafe { region.part(rank, start, count) }
        };
        let parts: Vec<&[u8]> = (0..region.member().world_size).map(part).collect();
        look(&parts);
        self.meet()
    }

    /// Copies the first `bytes` of `root`'s part of `region` into this rank's, then waits until all
    /// have. Every rank has passed a barrier since it wrote its part.
    pub(super) fn copy_from(
        &mut self,
        region: &mut Region,
        root: usize,
        bytes: usize,
    ) -> Result<()> {
        let rank = region.member().rank;
        if rank != root {
            // SAFETY: between these two barriers nobody writes the root's part.
            let from = unsafe { region.part(root, 0, bytes) };
            // SAFETY: nobody but this rank looks at its part in this operation.
            let to = unsafe { region.part_mut(rank, 0, bytes) };
            to.copy_from_slice(from);
        }
        self.meet()
    }
}

fn header_words([sequence, what, len, tag, _]: Shown) -> [u64; Header::WORDS] {
    [sequence, what, len, tag]
}
