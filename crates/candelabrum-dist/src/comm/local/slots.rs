//! The slots: one part of the segment for each rank. Numbers from outside of the segment pass
//! through them.
//!
//! A slot has two halves. A rank writes to its *hidden* half. After the next barrier that half is
//! *shown*: all ranks read the shown halves and write to the other halves, which are hidden now. So
//! each piece of a long buffer needs one barrier. The last piece needs no second barrier, because
//! the next operation writes to halves that no rank reads.
//!
//! In a reduction a half is divided into one *room* per rank. Room `r` of another rank's slot
//! contains that rank's contribution to the range that rank `r` reduces. Rank `r` writes the
//! reduced range to room `r` of its own slot.
//!
//! **Invariant (halves)**: only the owner of a slot writes to it. Between two barriers the other
//! ranks read the shown half, and the owner writes to the hidden half. In a reduction by rooms, the
//! owner's own room is the exception: the owner writes to this room of the shown half, and the
//! other ranks read this room of the hidden half.

use std::sync::Arc;

use super::region::MappedRegion;
use crate::comm::{ElementType, ReduceOp};
use candelabrum_memory::CACHE_LINE;
use candelabrum_memory::reduce::reduce_onto;

/// Bytes of a half. The halves of two ranks, and the numbers that pass through them, fit in a
/// second-level cache of 1 MiB. Half and twice the size are nearly as fast.
pub(super) const HALF: usize = 128 * 1024;

/// Bytes of a slot.
pub(super) const SLOT: usize = 2 * HALF;

/// One rank's view of all slots of a group. All ranks call [`Self::turn`] after the same barriers.
#[derive(Debug)]
pub(super) struct SlotTable {
    region: Arc<MappedRegion>,
    /// The number of the hidden half, 0 or 1.
    hidden: usize,
}

impl SlotTable {
    pub(super) fn new(region: MappedRegion) -> Self {
        Self { region: Arc::new(region), hidden: 0 }
    }

    pub(super) fn region(&self) -> &Arc<MappedRegion> {
        &self.region
    }

    /// Bytes of a room: whole cache lines, which are also aligned for every element type.
    pub(super) fn room(&self) -> usize {
        HALF / self.region.member().world_size / CACHE_LINE * CACHE_LINE
    }

    /// Shows the hidden halves, which no rank writes to any more, and hides the shown ones.
    pub(super) fn turn(&mut self) {
        self.hidden ^= 1;
    }

    /// This rank's hidden half.
    pub(super) fn own_mut(&mut self) -> &mut [u8] {
        self.bytes_mut(self.hidden, 0, HALF)
    }

    /// The place for this rank's contribution to the range of another rank, `rank`.
    pub(super) fn contribution_mut(&mut self, rank: usize) -> &mut [u8] {
        let room = self.room();
        debug_assert_ne!(rank, self.region.member().rank, "its room has a result");
        self.bytes_mut(self.hidden, rank * room, room)
    }

    /// `count` bytes of the half that `rank` shows, from byte `start` on.
    pub(super) fn shown(&self, rank: usize, start: usize, count: usize) -> &[u8] {
        self.bytes(rank, self.hidden ^ 1, start, count)
    }

    /// Reduces the other ranks' contributions into `range`, this rank's range of the shown piece.
    /// After the next barrier the other ranks read the result with [`Self::reduced`].
    pub(super) fn reduce(&mut self, element: ElementType, op: ReduceOp, range: &mut [u8]) {
        let (rank, count) = (self.region.member().rank, range.len());
        let start = rank * self.room();
        let shown = self.hidden ^ 1;
        self.with_others(start, count, |others| reduce_onto(element, op, rank, range, others));
        // SAFETY: no other rank reads the owner's own room of its shown half (halves).
        let room = unsafe { self.region.part_mut(rank, shown * HALF + start, count) };
        // The other ranks have these lines in their caches. A copy replaces whole lines without
        // reading them, which the loop of the reduction would do.
        room.copy_from_slice(range);
    }

    /// Gives `work` the other ranks' shown bytes in rank order: `count` bytes from byte `start` on.
    pub(super) fn with_others(&self, start: usize, count: usize, work: impl FnOnce(&[&[u8]])) {
        let member = self.region.member();
        let shown = |rank: usize| self.shown(rank, start, count);
        match member.world_size {
            // A list on the heap would take a noticeable part of a short reduction.
            2 => work(&[shown(1 - member.rank)]),
            _ => work(&member.others().map(shown).collect::<Vec<_>>()),
        }
    }

    /// The first `count` bytes of `rank`'s reduced range of the piece before the shown piece.
    pub(super) fn reduced(&self, rank: usize, count: usize) -> &[u8] {
        self.bytes(rank, self.hidden, rank * self.room(), count)
    }

    fn bytes(&self, rank: usize, half: usize, start: usize, count: usize) -> &[u8] {
        assert!(start + count <= HALF, "{start} + {count} bytes of {HALF}");
        // SAFETY: callers read only parts that no rank writes to until the next barrier (halves),
        // and after that barrier they call `turn`, which ends the borrow of `self`.
        unsafe { self.region.part(rank, half * HALF + start, count) }
    }

    fn bytes_mut(&mut self, half: usize, start: usize, count: usize) -> &mut [u8] {
        assert!(start + count <= HALF, "{start} + {count} bytes of {HALF}");
        // SAFETY: callers write only to parts of this rank's slot that no rank reads before `turn`
        // shows them (halves), and `&mut self` excludes other references from this process.
        unsafe { self.region.part_mut(self.region.member().rank, half * HALF + start, count) }
    }
}
