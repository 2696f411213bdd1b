//! The data movement of each collective, between the barriers of [`super::exchange`].
//!
//! If all ranks' buffers are in the same region of the segment, they are read or reduced there.
//! Other numbers pass through the ranks' slots ([`super::slots`]), a piece at a time. If all ranks
//! need all of a piece, it is *shown* whole. If each rank needs a different part, the piece is
//! *dealt*: it has a room for each rank. For the all-reduce through slots see [`super::reduction`].

use std::ops::Range;

use super::LocalTransport;
use super::exchange::BufferPlacement;
use super::region::MappedRegion;
use super::slots::HALF;
use crate::comm::collective::CollectiveHeader;
use crate::comm::payload::part_ranges;
use crate::comm::{BorrowedElements, Collective, Payload, ReduceOp};
use crate::{Error, Result};
use candelabrum_memory::reduce::reduce_into;
use candelabrum_memory::{BadNumber, first_bad};

impl LocalTransport {
    pub(super) fn collective(
        &mut self,
        header: CollectiveHeader,
        mut buffer: Payload,
    ) -> Result<Payload> {
        let rank = self.member.rank;
        let region = region_of(&mut buffer, self.member.group).map_or(0, |region| region.id());
        let at = self.agree(header, region, buffer.bytes())?;
        match header.op {
            Collective::AllReduce(op) => self.all_reduce(header, op, buffer, at, true),
            Collective::Reduce { op, root } => {
                let buffer = self.all_reduce(header, op, buffer, at, rank == root)?;
                Ok(if rank == root { buffer } else { Payload::zeros(header.element, 0) })
            }
            Collective::ReduceScatter(op) => self.reduce_scatter(header, op, buffer, at),
            Collective::ReduceScatterV(op) => self.reduce_scatter_v(header, op, buffer, at),
            Collective::AllGatherInPlace => self.all_gather_in_place(buffer, at),
            Collective::Broadcast { root } => self.broadcast(root, buffer, at),
            Collective::AllGather | Collective::AllGatherV => self.gather(header, true, buffer, at),
            Collective::Gather { root } => self.gather(header, rank == root, buffer, at),
            Collective::Scatter { root } => self.scatter(header, root, buffer, at),
            Collective::AllToAll => self.all_to_all(header, buffer, at),
            Collective::AllToAllV => self.all_to_all_v(header, &buffer),
            // `agree` was the barrier. Messages between two ranks do not pass through here.
            Collective::Barrier
            | Collective::Send { .. }
            | Collective::Recv { .. }
            | Collective::RecvAny => Ok(buffer),
        }
    }

    /// An all-reduce or a broadcast of numbers in the caller's memory.
    pub(super) fn in_place(
        &mut self,
        header: CollectiveHeader,
        values: &mut BorrowedElements<'_>,
    ) -> Result<()> {
        let bytes = values.bytes_mut();
        let shown = self.agree(header, 0, bytes)?.shown;
        match header.op {
            Collective::AllReduce(op) => self.reduce_by_pieces(header, op, bytes, shown, true),
            Collective::Broadcast { root } => self.broadcast_by_pieces(root, bytes, shown),
            op => Err(Error::Unsupported { what: format!("{op} in place") }),
        }
    }

    /// Writes the first piece to this rank's slot. Returns whether ranks do so for this operation.
    fn write_first(&mut self, op: Collective, bytes: &[u8]) -> bool {
        match op {
            Collective::AllReduce(_) | Collective::Reduce { .. } => self.contribute_first(bytes),
            Collective::AllGather | Collective::AllGatherV | Collective::Gather { .. } => {
                self.write(bytes, 0);
            }
            Collective::Broadcast { root } if root == self.member.rank => self.write(bytes, 0),
            Collective::Broadcast { .. } => {}
            _ => return false,
        }
        true
    }

    /// The barrier at which the ranks agree on the operation. It also shows the first pieces of
    /// numbers outside of the segment, which saves a barrier.
    fn agree(
        &mut self,
        header: CollectiveHeader,
        region: u64,
        bytes: &[u8],
    ) -> Result<BufferLocation> {
        let is_written = region == 0 && self.write_first(header.op, bytes);
        let place = self.exchange.agree(header, region)?;
        let shown = place == BufferPlacement::Outside && is_written;
        if shown {
            self.slots.turn();
        }
        Ok(BufferLocation { place, shown })
    }

    /// A barrier, after which the hidden halves are shown.
    pub(super) fn show_written(&mut self) -> Result<()> {
        self.exchange.meet()?;
        self.slots.turn();
        Ok(())
    }

    /// The result is complete only on ranks that `keep` it.
    fn all_reduce(
        &mut self,
        header: CollectiveHeader,
        op: ReduceOp,
        mut buffer: Payload,
        at: BufferLocation,
        keep: bool,
    ) -> Result<Payload> {
        let bytes = buffer.bytes().len();
        let (element, search) = (header.element, buffer.is_searched());
        let found = match at.region(&mut buffer, self.member.group).filter(|_| bytes > 0) {
            Some(region) => self.exchange.reduce(region, bytes, element, op, search)?,
            None => {
                let own = self.own_bad_number(&buffer);
                self.reduce_by_pieces(header, op, buffer.bytes_mut(), at.shown, keep)?;
                own
            }
        };
        Ok(buffer.with_bad_number(found))
    }

    fn reduce_scatter(
        &mut self,
        header: CollectiveHeader,
        op: ReduceOp,
        mut buffer: Payload,
        at: BufferLocation,
    ) -> Result<Payload> {
        let mut out = Payload::zeros(header.element, header.len / self.member.world_size);
        let part = out.bytes().len();
        let reduced = out.bytes_mut();
        self.deal_equal(&mut buffer, at, part, |offset, parts| {
            let count = parts.first().map_or(0, |part| part.len());
            reduce_into(header.element, op, parts, &mut reduced[offset..offset + count]);
        })?;
        Ok(out)
    }

    fn reduce_scatter_v(
        &mut self,
        header: CollectiveHeader,
        op: ReduceOp,
        mut buffer: Payload,
        at: BufferLocation,
    ) -> Result<Payload> {
        let (parts, search) = (PartRanges::of_payload(&buffer), buffer.is_searched());
        let own = parts.ranges[self.member.rank].clone();
        if let Some(region) = at.region(&mut buffer, self.member.group) {
            let found = self.exchange.reduce_range(region, own, header.element, op, search)?;
            return Ok(buffer.with_bad_number(found));
        }
        let found = self.own_bad_number(&buffer);
        let mut out = Payload::zeros(header.element, own.len() / header.element.size());
        let reduced = out.bytes_mut();
        self.deal(Some(buffer.bytes()), &parts.ranges, parts.longest, |offset, parts| {
            let end = reduced.len().min(offset + parts.first().map_or(0, |part| part.len()));
            let start = offset.min(end);
            let parts: Vec<&[u8]> = parts.iter().map(|part| &part[..end - start]).collect();
            reduce_into(header.element, op, &parts, &mut reduced[start..end]);
        })?;
        buffer.bytes_mut()[own].copy_from_slice(out.bytes());
        Ok(buffer.with_bad_number(found))
    }

    /// The first number of this rank's own that is not finite, if the payload asks for the search.
    fn own_bad_number(&self, buffer: &Payload) -> Option<BadNumber> {
        let position = buffer.as_slice().ok().filter(|_| buffer.is_searched()).and_then(first_bad);
        position.map(|position| BadNumber { part: self.member.rank, position })
    }

    fn all_gather_in_place(&mut self, mut buffer: Payload, at: BufferLocation) -> Result<Payload> {
        let PartRanges { ranges, longest, .. } = PartRanges::of_payload(&buffer);
        if let Some(region) = at.region(&mut buffer, self.member.group) {
            self.exchange.gather_ranges(region, &ranges)?;
            return Ok(buffer);
        }
        let own = buffer.bytes()[ranges[self.member.rank].clone()].to_vec();
        let gathered = buffer.bytes_mut();
        self.show(Some(&own), longest, false, |offset, parts| {
            for (range, part) in ranges.iter().zip(parts) {
                copy_piece(part, offset, &mut gathered[range.clone()]);
            }
        })?;
        Ok(buffer)
    }

    fn broadcast(
        &mut self,
        root: usize,
        mut buffer: Payload,
        at: BufferLocation,
    ) -> Result<Payload> {
        let len = buffer.bytes().len();
        if let Some(region) = at.region(&mut buffer, self.member.group) {
            self.exchange.copy_from(region, root, len)?;
        } else {
            self.broadcast_by_pieces(root, buffer.bytes_mut(), at.shown)?;
        }
        Ok(buffer)
    }

    fn broadcast_by_pieces(&mut self, root: usize, bytes: &mut [u8], shown: bool) -> Result<()> {
        let len = bytes.len();
        if self.member.rank == root {
            return self.show(Some(bytes), len, shown, |_, _| {});
        }
        self.show(None, len, shown, |offset, slots| {
            bytes[offset..offset + slots[root].len()].copy_from_slice(slots[root]);
        })
    }

    /// Gathers equal or different lengths. A rank that does not `keep` the result gets nothing.
    fn gather(
        &mut self,
        header: CollectiveHeader,
        keep: bool,
        mut buffer: Payload,
        at: BufferLocation,
    ) -> Result<Payload> {
        let lens: Vec<usize> =
            (0..self.member.world_size).map(|rank| self.exchange.len_of(rank)).collect();
        let starts = PartRanges::new(&lens, header.element.size());
        let mut out = Payload::zeros(header.element, if keep { starts.total } else { 0 });
        let gathered = out.bytes_mut();
        let take = |offset: usize, parts: &[&[u8]]| {
            for (range, part) in starts.ranges.iter().zip(parts).filter(|_| keep) {
                copy_piece(part, offset, &mut gathered[range.clone()]);
            }
        };
        if let Some(region) = at.region(&mut buffer, self.member.group) {
            self.exchange.look(region, 0, starts.longest, |parts| {
                let mut take = take;
                take(0, parts);
            })?;
        } else {
            self.show(Some(buffer.bytes()), starts.longest, at.shown, take)?;
        }
        match header.op {
            Collective::AllGatherV => out.with_parts(lens),
            _ => Ok(out),
        }
    }

    fn scatter(
        &mut self,
        header: CollectiveHeader,
        root: usize,
        mut buffer: Payload,
        at: BufferLocation,
    ) -> Result<Payload> {
        let n = self.member.world_size;
        let mut out = Payload::zeros(header.element, self.exchange.len_of(root) / n);
        let part = out.bytes().len();
        let scattered = out.bytes_mut();
        let take = |offset: usize, parts: &[&[u8]]| {
            copy_piece(parts[root], offset, scattered);
        };
        if at.place == BufferPlacement::Region {
            self.deal_equal(&mut buffer, at, part, take)?;
        } else {
            let input = (self.member.rank == root).then(|| buffer.bytes());
            let ranges: Vec<_> = (0..n).map(|to| to * part..(to + 1) * part).collect();
            self.deal(input, &ranges, part, take)?;
        }
        Ok(out)
    }

    fn all_to_all(
        &mut self,
        header: CollectiveHeader,
        mut buffer: Payload,
        at: BufferLocation,
    ) -> Result<Payload> {
        let mut out = Payload::zeros(header.element, header.len);
        let part = out.bytes().len() / self.member.world_size;
        let received = out.bytes_mut();
        self.deal_equal(&mut buffer, at, part, |offset, parts| {
            for (from, piece) in parts.iter().enumerate() {
                copy_piece(piece, offset, &mut received[from * part..(from + 1) * part]);
            }
        })?;
        Ok(out)
    }

    fn all_to_all_v(&mut self, header: CollectiveHeader, buffer: &Payload) -> Result<Payload> {
        let (rank, n, size) = (self.member.rank, self.member.world_size, header.element.size());
        // Row `from`, column `to`: the number of elements that rank `from` sends to rank `to`.
        let own: Vec<u64> =
            buffer.parts().unwrap_or_default().iter().map(|&len| len as u64).collect();
        let mut all = vec![0_u64; n * n];
        let input: &[u8] = bytemuck::cast_slice(&own);
        let table: &mut [u8] = bytemuck::cast_slice_mut(&mut all);
        self.show(Some(input), input.len(), false, |offset, slots| {
            for (from, slot) in slots.iter().enumerate() {
                let row = from * n * 8;
                copy_piece(slot, offset, &mut table[row..row + n * 8]);
            }
        })?;
        let sent: Vec<usize> = own.iter().map(|&len| len as usize).collect();
        let got: Vec<usize> = (0..n).map(|from| all[from * n + rank] as usize).collect();
        let longest = all.iter().copied().max().unwrap_or(0) as usize * size;
        let from = PartRanges::new(&got, size);
        let mut out = Payload::zeros(header.element, from.total);
        let received = out.bytes_mut();
        self.deal(
            Some(buffer.bytes()),
            &PartRanges::new(&sent, size).ranges,
            longest,
            |offset, parts| {
                for (range, piece) in from.ranges.iter().zip(parts) {
                    copy_piece(piece, offset, &mut received[range.clone()]);
                }
            },
        )?;
        out.with_parts(got)
    }

    /// Shows the first `len` bytes of each rank's `input` to all ranks, a piece at a time.
    /// `take(offset, slots)` gets the ranks' pieces that start at byte `offset`. If a rank's input
    /// is shorter or missing, the rest of its pieces is arbitrary. `shown`: whether the slots
    /// already show the first piece.
    pub(super) fn show(
        &mut self,
        input: Option<&[u8]>,
        len: usize,
        shown: bool,
        mut take: impl FnMut(usize, &[&[u8]]),
    ) -> Result<()> {
        for offset in (0..len).step_by(HALF) {
            if offset > 0 || !shown {
                self.write(input.unwrap_or_default(), offset);
                self.show_written()?;
            }
            take(offset, &self.all_shown(0, HALF.min(len - offset)));
        }
        Ok(())
    }

    /// Writes the piece of `input` that starts at byte `offset` to the slot.
    pub(super) fn write(&mut self, input: &[u8], offset: usize) {
        let piece = piece_of(input, offset, HALF);
        self.slots.own_mut()[..piece.len()].copy_from_slice(piece);
    }

    /// `count` bytes of every rank's shown half, from byte `start` on.
    fn all_shown(&self, start: usize, count: usize) -> Vec<&[u8]> {
        (0..self.member.world_size).map(|rank| self.slots.shown(rank, start, count)).collect()
    }

    /// [`Self::deal`] for parts of `part` bytes each, of a buffer inside or outside of the segment.
    fn deal_equal(
        &mut self,
        buffer: &mut Payload,
        at: BufferLocation,
        part: usize,
        mut take: impl FnMut(usize, &[&[u8]]),
    ) -> Result<()> {
        let (rank, n) = (self.member.rank, self.member.world_size);
        if let Some(region) = at.region(buffer, self.member.group) {
            return self.exchange.look(region, rank * part, part, |parts| take(0, parts));
        }
        let ranges: Vec<_> = (0..n).map(|to| to * part..(to + 1) * part).collect();
        self.deal(Some(buffer.bytes()), &ranges, part, take)
    }

    /// Sends every rank its part of each rank's input, a piece at a time. Part `r` of `input` is
    /// `ranges[r]`. `take(offset, parts)` gets the pieces that start at byte `offset` of the parts
    /// for this rank. `longest` is the length of the longest part of any rank.
    fn deal(
        &mut self,
        input: Option<&[u8]>,
        ranges: &[Range<usize>],
        longest: usize,
        mut take: impl FnMut(usize, &[&[u8]]),
    ) -> Result<()> {
        let rank = self.member.rank;
        let room = self.slots.room();
        for offset in (0..longest).step_by(room) {
            if let Some(input) = input {
                let slot = self.slots.own_mut();
                for (to, range) in ranges.iter().enumerate() {
                    let piece = piece_of(&input[range.clone()], offset, room);
                    slot[to * room..to * room + piece.len()].copy_from_slice(piece);
                }
            }
            self.show_written()?;
            take(offset, &self.all_shown(rank * room, room.min(longest - offset)));
        }
        Ok(())
    }
}

/// The place of the ranks' buffers of an operation.
#[derive(Clone, Copy)]
struct BufferLocation {
    place: BufferPlacement,
    /// Whether the slots already show the first pieces.
    shown: bool,
}

impl BufferLocation {
    /// The region of `buffer`, if all ranks' buffers are in the same region.
    fn region(self, buffer: &mut Payload, group: u64) -> Option<&mut MappedRegion> {
        region_of(buffer, group).filter(|_| self.place == BufferPlacement::Region)
    }
}

/// The region of `buffer`, if this group allocated the buffer.
fn region_of(buffer: &mut Payload, group: u64) -> Option<&mut MappedRegion> {
    buffer.shared_memory::<MappedRegion>().filter(|region| region.member().group == group)
}

/// The layout of consecutive parts.
struct PartRanges {
    /// The range of each part, in bytes.
    ranges: Vec<Range<usize>>,
    /// The number of elements of all parts.
    total: usize,
    /// The bytes of the longest part.
    longest: usize,
}

impl PartRanges {
    /// The layout of a payload's parts.
    fn of_payload(payload: &Payload) -> Self {
        Self::new(payload.parts().unwrap_or_default(), payload.element_type().size())
    }

    /// The layout of parts with `lens` elements of `size` bytes each.
    fn new(lens: &[usize], size: usize) -> Self {
        let (ranges, total) = (part_ranges(lens, size), lens.iter().sum());
        let longest = lens.iter().copied().max().unwrap_or(0) * size;
        Self { ranges, total, longest }
    }
}

/// At most `room` bytes of `bytes` from `offset` on.
fn piece_of(bytes: &[u8], offset: usize, room: usize) -> &[u8] {
    let start = offset.min(bytes.len());
    &bytes[start..bytes.len().min(start + room)]
}

/// Copies `piece` to byte `offset` of `to`, as far as there is room.
fn copy_piece(piece: &[u8], offset: usize, to: &mut [u8]) {
    let start = offset.min(to.len());
    let count = piece.len().min(to.len() - start);
    to[start..start + count].copy_from_slice(&piece[..count]);
}
