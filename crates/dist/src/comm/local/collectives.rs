//! What each collective moves, between the barriers of [`super::exchange`].
//!
//! Buffers in the same region of the segment are looked at, or reduced, where they are. Others pass
//! through the ranks' slots: *shown* whole, a piece at a time, where everybody needs everything, or
//! *dealt*, a piece for every rank at a time, where each rank needs its own part.

use std::ops::Range;

use super::exchange::Where;
use super::region::Region;
use super::{Local, SLOT};
use crate::Result;
use crate::comm::collective::Header;
use crate::comm::{Collective, Payload, ReduceOp};
use candelabrum_memory::reduce::reduce_into;

impl Local {
    pub(super) fn collective(&mut self, header: Header, mut buffer: Payload) -> Result<Payload> {
        let rank = self.member.rank;
        let region = region_of(&mut buffer, self.member.group).map_or(0, |region| region.id());
        // The first piece can be in its slot when the ranks agree: one barrier less.
        let shown = region == 0 && shows(header.op, rank);
        if shown {
            let count = buffer.bytes().len().min(SLOT);
            self.slots.own_mut()[..count].copy_from_slice(&buffer.bytes()[..count]);
        }
        let place = self.exchange.agree(header, region)?;
        let at = At { place, shown: place == Where::Outside };
        match header.op {
            Collective::AllReduce(op) => self.all_reduce(header, op, buffer, at, true),
            Collective::Reduce { op, root } => {
                let buffer = self.all_reduce(header, op, buffer, at, rank == root)?;
                Ok(if rank == root { buffer } else { Payload::zeros(header.element, 0) })
            }
            Collective::ReduceScatter(op) => self.reduce_scatter(header, op, buffer, at),
            Collective::Broadcast { root } => self.broadcast(root, buffer, at),
            Collective::AllGather | Collective::AllGatherV => self.gather(header, true, buffer, at),
            Collective::Gather { root } => self.gather(header, rank == root, buffer, at),
            Collective::Scatter { root } => self.scatter(header, root, buffer, at),
            Collective::AllToAll => self.all_to_all(header, buffer, at),
            Collective::AllToAllV => self.all_to_all_v(header, &buffer),
            // Messages are not for here.
            Collective::Barrier
            | Collective::Send { .. }
            | Collective::Recv { .. }
            | Collective::RecvAny => Ok(buffer),
        }
    }

    /// Only ranks that `keep` the result get it.
    fn all_reduce(
        &mut self,
        header: Header,
        op: ReduceOp,
        mut buffer: Payload,
        at: At,
        keep: bool,
    ) -> Result<Payload> {
        let element = header.element;
        let bytes = buffer.bytes().len();
        if let Some(region) = at.region(&mut buffer, self.member.group).filter(|_| bytes > 0) {
            self.exchange.reduce(region, bytes, element, op)?;
            return Ok(buffer);
        }
        for (i, piece) in buffer.bytes_mut().chunks_mut(SLOT).enumerate() {
            if i > 0 || !at.shown {
                self.slots.own_mut()[..piece.len()].copy_from_slice(piece);
                self.exchange.meet()?;
            }
            self.exchange.reduce(&mut self.slots, piece.len(), element, op)?;
            if keep {
                piece.copy_from_slice(&self.slots.own()[..piece.len()]);
            }
        }
        Ok(buffer)
    }

    fn reduce_scatter(
        &mut self,
        header: Header,
        op: ReduceOp,
        mut buffer: Payload,
        at: At,
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

    fn broadcast(&mut self, root: usize, mut buffer: Payload, at: At) -> Result<Payload> {
        let len = buffer.bytes().len();
        if let Some(region) = at.region(&mut buffer, self.member.group) {
            self.exchange.copy_from(region, root, len)?;
        } else if self.member.rank == root {
            self.show(Some(buffer.bytes()), len, at.shown, |_, _| {})?;
        } else {
            let out = buffer.bytes_mut();
            self.show(None, len, at.shown, |offset, slots| {
                out[offset..offset + slots[root].len()].copy_from_slice(slots[root]);
            })?;
        }
        Ok(buffer)
    }

    /// The gathers: of equal lengths or not, for all or for those that `keep` the result.
    fn gather(
        &mut self,
        header: Header,
        keep: bool,
        mut buffer: Payload,
        at: At,
    ) -> Result<Payload> {
        let lens: Vec<usize> =
            (0..self.member.world_size).map(|rank| self.exchange.len_of(rank)).collect();
        let starts = Layout::of(&lens, header.element.size());
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
        header: Header,
        root: usize,
        mut buffer: Payload,
        at: At,
    ) -> Result<Payload> {
        let n = self.member.world_size;
        let mut out = Payload::zeros(header.element, self.exchange.len_of(root) / n);
        let part = out.bytes().len();
        let scattered = out.bytes_mut();
        let take = |offset: usize, parts: &[&[u8]]| {
            copy_piece(parts[root], offset, scattered);
        };
        if at.place == Where::Region {
            self.deal_equal(&mut buffer, at, part, take)?;
        } else {
            let input = (self.member.rank == root).then(|| buffer.bytes());
            let ranges: Vec<_> = (0..n).map(|to| to * part..(to + 1) * part).collect();
            self.deal(input, &ranges, part, take)?;
        }
        Ok(out)
    }

    fn all_to_all(&mut self, header: Header, mut buffer: Payload, at: At) -> Result<Payload> {
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

    fn all_to_all_v(&mut self, header: Header, buffer: &Payload) -> Result<Payload> {
        let (rank, n, size) = (self.member.rank, self.member.world_size, header.element.size());
        // Everybody tells how much goes to whom.
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
        let from = Layout::of(&got, size);
        let mut out = Payload::zeros(header.element, from.total);
        let received = out.bytes_mut();
        self.deal(
            Some(buffer.bytes()),
            &Layout::of(&sent, size).ranges,
            longest,
            |offset, parts| {
                for (range, piece) in from.ranges.iter().zip(parts) {
                    copy_piece(piece, offset, &mut received[range.clone()]);
                }
            },
        )?;
        out.with_parts(got)
    }

    /// Puts `len` bytes of `input` (on the ranks that have one) in front of everybody, a piece at a
    /// time: `take(offset, slots)` sees the pieces that start at byte `offset`. Of an input that is
    /// shorter only as much counts. The first piece may have been `shown` already.
    pub(super) fn show(
        &mut self,
        input: Option<&[u8]>,
        len: usize,
        shown: bool,
        mut take: impl FnMut(usize, &[&[u8]]),
    ) -> Result<()> {
        for offset in (0..len).step_by(SLOT) {
            if offset > 0 || !shown {
                let piece = piece_of(input.unwrap_or_default(), offset, SLOT);
                self.slots.own_mut()[..piece.len()].copy_from_slice(piece);
                self.exchange.meet()?;
            }
            let count = SLOT.min(len - offset);
            self.exchange.look(&self.slots, 0, count, |slots| take(offset, slots))?;
        }
        Ok(())
    }

    /// [`Self::deal`] for a buffer that is cut into parts of `part` bytes, wherever it is.
    fn deal_equal(
        &mut self,
        buffer: &mut Payload,
        at: At,
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

    /// Gives every rank its part of all ranks' inputs, a piece at a time: `take(offset, parts)` sees
    /// what starts at byte `offset` of this rank's part. Parts may be shorter than the `longest`.
    fn deal(
        &mut self,
        input: Option<&[u8]>,
        ranges: &[Range<usize>],
        longest: usize,
        mut take: impl FnMut(usize, &[&[u8]]),
    ) -> Result<()> {
        let (rank, n) = (self.member.rank, self.member.world_size);
        // Whole cache lines, which are aligned for every element too.
        let room = SLOT / n / 64 * 64;
        for offset in (0..longest).step_by(room) {
            if let Some(input) = input {
                for (to, range) in ranges.iter().enumerate() {
                    let piece = piece_of(&input[range.clone()], offset, room);
                    self.slots.own_mut()[to * room..to * room + piece.len()].copy_from_slice(piece);
                }
            }
            self.exchange.meet()?;
            let count = room.min(longest - offset);
            self.exchange.look(&self.slots, rank * room, count, |parts| take(offset, parts))?;
        }
        Ok(())
    }
}

/// Where the buffers of an operation are.
#[derive(Clone, Copy)]
struct At {
    place: Where,
    /// Whether first pieces of what is shown are in their slots.
    shown: bool,
}

impl At {
    /// The region, if all buffers are in the same one.
    fn region(self, buffer: &mut Payload, group: u64) -> Option<&mut Region> {
        region_of(buffer, group).filter(|_| self.place == Where::Region)
    }
}

/// The region of a buffer that was allocated by this group.
fn region_of(buffer: &mut Payload, group: u64) -> Option<&mut Region> {
    buffer.shared_memory::<Region>().filter(|region| region.member().group == group)
}

/// Whether this rank shows its whole buffer in the operation.
fn shows(op: Collective, rank: usize) -> bool {
    match op {
        Collective::AllReduce(_)
        | Collective::Reduce { .. }
        | Collective::AllGather
        | Collective::AllGatherV
        | Collective::Gather { .. } => true,
        Collective::Broadcast { root } => rank == root,
        _ => false,
    }
}

/// Parts that follow each other.
struct Layout {
    /// In bytes.
    ranges: Vec<Range<usize>>,
    /// Elements.
    total: usize,
    /// Bytes of the longest part.
    longest: usize,
}

impl Layout {
    /// Of parts with these numbers of elements of `size` bytes.
    fn of(lens: &[usize], size: usize) -> Self {
        let mut total = 0;
        let place = |&len: &usize| {
            let start = total;
            total += len;
            start * size..total * size
        };
        let ranges = lens.iter().map(place).collect();
        let longest = lens.iter().copied().max().unwrap_or(0) * size;
        Self { ranges, total, longest }
    }
}

/// At most `room` bytes of `bytes` from `offset` on.
fn piece_of(bytes: &[u8], offset: usize, room: usize) -> &[u8] {
    let start = offset.min(bytes.len());
    &bytes[start..bytes.len().min(start + room)]
}

/// Copies to `offset` of `to` what there is room for.
fn copy_piece(piece: &[u8], offset: usize, to: &mut [u8]) {
    let start = offset.min(to.len());
    let count = piece.len().min(to.len() - start);
    to[start..start + count].copy_from_slice(&piece[..count]);
}
