//! The all-reduce of numbers outside of the segment. They pass through the slots a piece at a time.
//!
//! Each piece is divided into one range per rank, and each rank reduces its own range. Between two
//! barriers a rank works on three pieces. It reduces its own range of one piece. It copies the
//! reduced ranges of the previous piece from the other ranks' slots. It copies its contributions to
//! the next piece to its own slot. So one barrier per piece is enough. A long buffer is read from
//! main memory once and written there once, because three pieces and the slots stay in the caches.

use std::iter::StepBy;
use std::ops::Range;

use super::LocalTransport;
use super::region::LocalMember;
use crate::Result;
use crate::comm::ReduceOp;
use crate::comm::collective::CollectiveHeader;
use candelabrum_memory::reduce::reduce_onto;

/// Up to this number of bytes, of all ranks together, each rank computes the whole result for
/// itself: the additional reading takes less time than a second barrier.
const LITTLE: usize = 64 * 1024;

impl LocalTransport {
    /// Reduces the `bytes` of all ranks in place. The result is complete only on ranks that `keep`
    /// it. `shown`: whether the slots already show the first piece.
    pub(super) fn reduce_by_pieces(
        &mut self,
        header: CollectiveHeader,
        op: ReduceOp,
        bytes: &mut [u8],
        shown: bool,
        keep: bool,
    ) -> Result<()> {
        let (element, rank, pieces) = (header.element, self.member.rank, self.pieces(bytes.len()));
        if !shown {
            self.contribute_first(bytes);
            self.show_written()?;
        }
        if pieces.are_little() {
            if keep {
                self.slots.with_others(0, bytes.len(), |others| {
                    reduce_onto(element, op, rank, bytes, others);
                });
            }
            return Ok(());
        }
        let mut before = None;
        for start in pieces.starts() {
            self.slots.reduce(element, op, &mut bytes[pieces.range(rank, start)]);
            if let Some(before) = before.replace(start).filter(|_| keep) {
                self.take_reduced(bytes, pieces, before);
            }
            self.contribute(bytes, pieces, start + pieces.piece);
            self.show_written()?;
        }
        if let Some(last) = before.filter(|_| keep) {
            self.take_reduced(bytes, pieces, last);
        }
        // The other ranks still read this rank's last reduced range.
        self.slots.turn();
        Ok(())
    }

    /// Writes this rank's contributions to the first piece to its slot.
    pub(super) fn contribute_first(&mut self, bytes: &[u8]) {
        let pieces = self.pieces(bytes.len());
        if pieces.are_little() {
            self.write(bytes, 0);
        } else {
            self.contribute(bytes, pieces, 0);
        }
    }

    /// Writes this rank's contributions to the piece that starts at byte `start`, if there is one.
    fn contribute(&mut self, bytes: &[u8], pieces: Pieces, start: usize) {
        for rank in self.member.others() {
            let range = &bytes[pieces.range(rank, start)];
            self.slots.contribution_mut(rank)[..range.len()].copy_from_slice(range);
        }
    }

    /// Copies the other ranks' reduced ranges of the piece that starts at byte `start`.
    fn take_reduced(&self, bytes: &mut [u8], pieces: Pieces, start: usize) {
        for rank in self.member.others() {
            let range = pieces.range(rank, start);
            let reduced = self.slots.reduced(rank, range.len());
            bytes[range].copy_from_slice(reduced);
        }
    }

    fn pieces(&self, bytes: usize) -> Pieces {
        Pieces { member: self.member, bytes, piece: self.slots.room() * self.member.world_size }
    }
}

/// The division of a buffer into pieces, and of a piece into a range for each rank.
#[derive(Clone, Copy, Debug)]
struct Pieces {
    member: LocalMember,
    /// Bytes of the buffer.
    bytes: usize,
    /// Bytes of a piece. The last piece may be shorter.
    piece: usize,
}

impl Pieces {
    /// Whether each rank computes the whole result for itself.
    fn are_little(self) -> bool {
        self.bytes.saturating_mul(self.member.world_size) <= LITTLE
    }

    /// Where the pieces start.
    fn starts(self) -> StepBy<Range<usize>> {
        (0..self.bytes).step_by(self.piece)
    }

    /// The range that `rank` reduces of the piece that starts at byte `start`. It is empty if no
    /// piece starts there.
    fn range(self, rank: usize, start: usize) -> Range<usize> {
        let start = start.min(self.bytes);
        let range = LocalMember { rank, ..self.member }.slice(self.piece.min(self.bytes - start));
        start + range.start..start + range.end
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_memory::CACHE_LINE;
    use proptest::prelude::*;

    use super::super::slots::HALF;
    use super::*;

    proptest! {
        #[test]
        fn the_ranges_of_all_pieces_cover_every_byte_once_and_fit_in_their_rooms(
            words in 0..200_000_usize,
            world_size in 1..70_usize,
            pieces in 0..4_usize,
        ) {
            let room = HALF / world_size / CACHE_LINE * CACHE_LINE;
            // Also lengths that are close to a number of whole pieces.
            let bytes = pieces * room * world_size + if pieces > 0 { words % 300 } else { words * 8 };
            let member = LocalMember { group: 1, rank: 0, world_size };
            let pieces = Pieces { member, bytes, piece: room * world_size };
            let mut end = 0;
            for start in pieces.starts() {
                prop_assert_eq!(start, end);
                for rank in 0..world_size {
                    let range = pieces.range(rank, start);
                    prop_assert!(range.len() <= room);
                    prop_assert!(range.is_empty() || (range.start == end && range.start.is_multiple_of(CACHE_LINE)));
                    end = end.max(range.end);
                }
            }
            prop_assert_eq!(end, bytes);
            prop_assert!(pieces.range(world_size - 1, bytes + 1).is_empty());
        }

        #[test]
        fn what_every_rank_reduces_for_itself_fits_in_a_half(
            bytes in 0..2 * HALF,
            world_size in 1..70_usize,
        ) {
            let member = LocalMember { group: 1, rank: 0, world_size };
            let pieces = Pieces { member, bytes, piece: HALF };
            prop_assert!(!pieces.are_little() || bytes <= HALF);
        }
    }
}
