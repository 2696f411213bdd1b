//! Barriers with a deadline, and the operations on all ranks' parts of a region between two
//! barriers. Operations on slots are in [`super::slots`].

use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::cell::AnnouncedWords;
use super::cells::BarrierCells;
use super::region::MappedRegion;
use super::segment::Segment;
use crate::comm::ReduceOp;
use crate::comm::collective::{Collective, CollectiveHeader, check_agreement};
use crate::comm::network::NetworkLines;
use crate::comm::{ElementType, Payload};
use crate::{Error, Result};
use candelabrum_memory::BadNumber;
use candelabrum_memory::reduce::{
    reduce_into_all, reduce_onto, search_and_reduce_into_all, search_and_reduce_onto,
};

/// How often a rank asks for an error that is on its way.
const POLL: Duration = Duration::from_millis(1);

/// The place of the ranks' buffers of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BufferPlacement {
    /// All in the same region.
    Region,
    /// All outside of regions.
    Outside,
    /// Neither. All buffers are then treated as if they were outside.
    Mixed,
}

/// This rank's side of every barrier of a group.
pub(super) struct CellExchange {
    cells: BarrierCells,
    pub(super) network: Arc<NetworkLines>,
    pub(super) segment: Arc<Segment>,
    /// The members' ranks in the world.
    pub(super) ranks: Arc<[usize]>,
    pub(super) deadline: Duration,
    /// The header of the current operation, for error messages.
    current: CollectiveHeader,
}

impl CellExchange {
    pub(super) fn new(
        cells: BarrierCells,
        network: Arc<NetworkLines>,
        segment: Arc<Segment>,
        ranks: Arc<[usize]>,
        deadline: Duration,
    ) -> Self {
        let current = CollectiveHeader::new(0, Collective::Barrier, &Payload::empty());
        Self { cells, network, segment, ranks, deadline, current }
    }

    pub(super) fn cells(&self) -> &Arc<MappedRegion> {
        self.cells.region()
    }

    pub(super) fn group(&self) -> u64 {
        self.cells().member().group
    }

    /// A barrier at which the ranks compare their headers. Returns the place of their buffers.
    /// `region` is the number of the region that contains this rank's buffer, or 0.
    pub(super) fn agree(
        &mut self,
        header: CollectiveHeader,
        region: u64,
    ) -> Result<BufferPlacement> {
        self.current = header;
        // Short waits do not check for failures. So a failure in another group is noticed here.
        if self.network.has_failure() {
            let (own, during) = (self.ranks[self.cells.rank()], || header.to_string());
            let trouble = self.network.trouble(self.group(), &[own], during);
            trouble.map_err(|error| self.fails(error))?;
        }
        let [sequence, what, len, tag] = header.encode();
        let own = [sequence, what, len, tag, region];
        self.cells.show(own);
        self.meet()?;
        let mut place =
            if region == 0 { BufferPlacement::Outside } else { BufferPlacement::Region };
        let mut same = true;
        for rank in 0..self.cells.world_size() {
            let shown = self.cells.shown(rank);
            same &= header_words(shown) == header_words(own);
            if shown[CollectiveHeader::WORDS] != region {
                place = BufferPlacement::Mixed;
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
    pub(super) fn current(&self) -> CollectiveHeader {
        self.current
    }

    /// The number that `rank` showed beside its header when the ranks last agreed.
    pub(super) fn number_of(&self, rank: usize) -> u64 {
        self.cells.shown(rank)[CollectiveHeader::WORDS]
    }

    /// The number of elements of `rank`'s buffer in the operation that the ranks last agreed on.
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
            // The rank's error is still on its way to this late one.
            while self.cells.has_given_up(rank) {
                let start = *start.get_or_insert_with(Instant::now);
                self.hear_why(rank, start)?;
            }
        }
        Ok(())
    }

    /// Returns an error if a rank has failed or the deadline has passed before `rank` arrived.
    fn check(&self, rank: usize, start: Instant) -> Result<()> {
        let during = || self.current.to_string();
        if let Err(error) = self.network.trouble(self.group(), &[self.ranks[rank]], during) {
            // The rank may have arrived and then left in order since the last poll.
            return if self.cells.has_arrived(rank) { Ok(()) } else { Err(self.fails(error)) };
        }
        if start.elapsed() < self.deadline {
            return Ok(());
        }
        self.cells.give_up();
        // A rank that arrives from now on sees that this one has given up. One that came before may have passed.
        let is_missing = |rank: &usize| !self.cells.has_arrived(*rank);
        let missing: Vec<usize> = (0..self.cells.world_size()).filter(is_missing).collect();
        if missing.is_empty() {
            self.cells.wait_after_all();
            return Ok(());
        }
        Err(self.late(start, &missing))
    }

    /// Waits for the error of a rank that has given up at this barrier, for a limited time.
    fn hear_why(&self, rank: usize, start: Instant) -> Result<()> {
        let during = || self.current.to_string();
        if let Err(error) = self.network.trouble(self.group(), &[self.ranks[rank]], during) {
            // The rank may have gone on and then left in order since the last look.
            return if self.cells.has_given_up(rank) { Err(self.fails(error)) } else { Ok(()) };
        }
        thread::sleep(POLL);
        if start.elapsed() < self.deadline { Ok(()) } else { Err(self.late(start, &[rank])) }
    }

    /// The error of a passed deadline.
    fn late(&self, start: Instant, missing: &[usize]) -> Error {
        let missing: Vec<_> = missing.iter().map(|&rank| self.ranks[rank].to_string()).collect();
        let (rank, missing) = (self.ranks[self.cells.rank()], missing.join(", "));
        let (during, waited) = (self.current.to_string(), start.elapsed());
        self.fails(Error::Timeout { rank, during, missing, waited })
    }

    /// Keeps the memory that this rank is about to drop, because other ranks may still write to it.
    fn fails(&self, error: Error) -> Error {
        self.segment.keep_everything();
        error
    }

    /// Reduces the first `bytes` bytes of all ranks' parts of `region` and writes the result to
    /// every part. Every rank must have passed a barrier since it wrote its part. If `search`, returns
    /// the first f32 number of the lowest rank in this rank's slice that was not finite.
    pub(super) fn reduce(
        &mut self,
        region: &mut MappedRegion,
        bytes: usize,
        element: ElementType,
        op: ReduceOp,
        search: bool,
    ) -> Result<Option<BadNumber>> {
        let member = region.member();
        let slice = member.slice(bytes);
        let part = |rank: usize| {
            // SAFETY: until the barrier below, only this rank accesses this range of every part:
            // the ranks' ranges do not overlap, and no rank reads its own part before it has passed
            // that barrier (`region` is borrowed until then).
            unsafe { region.part_mut(rank, slice.start, slice.len()) }
        };
        let parts = || (0..member.world_size).map(part).collect::<Vec<_>>();
        let mut found = None;
        match member.world_size {
            _ if search => found = search_and_reduce_into_all(element, op, parts()),
            2 => reduce_into_all(element, op, &mut [part(0), part(1)]),
            _ => reduce_into_all(element, op, &mut parts()),
        }
        self.meet()?;
        let start = slice.start / element.size();
        Ok(found.map(|bad| BadNumber { position: start + bad.position, ..bad }))
    }

    /// Reduces the bytes `range` of all ranks' parts of `region` into this rank's part. The ranges of the ranks do
    /// not overlap. Every rank must have passed a barrier since it wrote its part. `search` is that of
    /// [`Self::reduce`].
    pub(super) fn reduce_range(
        &mut self,
        region: &mut MappedRegion,
        range: Range<usize>,
        element: ElementType,
        op: ReduceOp,
        search: bool,
    ) -> Result<Option<BadNumber>> {
        let member = region.member();
        let other = |rank: usize| {
            // SAFETY: until the barrier below, no rank writes this range of a part but its own: the ranks' ranges
            // do not overlap.
            unsafe { region.part(rank, range.start, range.len()) }
        };
        let others: Vec<&[u8]> = member.others().map(other).collect();
        // SAFETY: until the barrier below, only this rank accesses this range of its own part.
        let own = unsafe { region.part_mut(member.rank, range.start, range.len()) };
        let found = if search {
            search_and_reduce_onto(element, op, member.rank, own, &others)
        } else {
            reduce_onto(element, op, member.rank, own, &others);
            None
        };
        self.meet()?;
        let start = range.start / element.size();
        Ok(found.map(|bad| BadNumber { position: start + bad.position, ..bad }))
    }

    /// Copies the bytes `ranges[r]` of each other rank `r`'s part of `region` into the same place of this rank's
    /// part. The ranges do not overlap. Every rank must have passed a barrier since it wrote its part.
    pub(super) fn gather_ranges(
        &mut self,
        region: &mut MappedRegion,
        ranges: &[Range<usize>],
    ) -> Result<()> {
        let member = region.member();
        for rank in member.others() {
            let Range { start, end } = ranges[rank];
            // SAFETY: between these two barriers no rank writes its own range of its own part.
            let from = unsafe { region.part(rank, start, end - start) };
            // SAFETY: no other rank accesses the range of `rank` in this rank's part.
            let to = unsafe { region.part_mut(member.rank, start, end - start) };
            to.copy_from_slice(from);
        }
        self.meet()
    }

    /// Gives `look` the `count` bytes from byte `start` on of all parts of `region`, then waits
    /// until all ranks have read. Every rank must have passed a barrier since it wrote its part.
    pub(super) fn look(
        &mut self,
        region: &MappedRegion,
        start: usize,
        count: usize,
        look: impl FnOnce(&[&[u8]]),
    ) -> Result<()> {
        let part = |rank: usize| {
            // SAFETY: between these barriers all ranks only read the parts (`region` is borrowed).
            unsafe { region.part(rank, start, count) }
        };
        let parts: Vec<&[u8]> = (0..region.member().world_size).map(part).collect();
        look(&parts);
        self.meet()
    }

    /// Copies the first `bytes` bytes of `root`'s part of `region` into this rank's part, then
    /// waits for all ranks. Every rank must have passed a barrier since it wrote its part.
    pub(super) fn copy_from(
        &mut self,
        region: &mut MappedRegion,
        root: usize,
        bytes: usize,
    ) -> Result<()> {
        let rank = region.member().rank;
        if rank != root {
            // SAFETY: between these two barriers no rank writes the root's part.
            let from = unsafe { region.part(root, 0, bytes) };
            // SAFETY: no other rank accesses this rank's part in this operation.
            let to = unsafe { region.part_mut(rank, 0, bytes) };
            to.copy_from_slice(from);
        }
        self.meet()
    }
}

fn header_words([sequence, what, len, tag, _]: AnnouncedWords) -> [u64; CollectiveHeader::WORDS] {
    [sequence, what, len, tag]
}
