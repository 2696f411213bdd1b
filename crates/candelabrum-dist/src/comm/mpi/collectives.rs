//! The collectives, as rounds. In a round every rank sends a range of its buffer to all others.

use std::ops::Range;

use candelabrum_memory::reduce::reduce_onto;

use super::MpiTransport;
use super::headers::{GOODBYE, PeerHeaders, enclosed};
use super::pipeline::PipelineRoute;
use super::raw::{MessageTag, RequestBatch};
use crate::comm::collective::{CollectiveHeader, check_agreement};
use crate::comm::slice::slice;
use crate::comm::wait::BackoffWait;
use crate::comm::{Collective, ElementType, Payload, ReduceOp};
use crate::{Error, Result};

/// A reduction in which a rank receives at most this many bytes is one round. So is a broadcast in
/// which the root sends at most this many.
const ONE_ROUND: usize = 32 * 1024;

/// The range of a rank that sends or receives nothing.
fn nothing(_rank: usize) -> Range<usize> {
    0..0
}

impl MpiTransport {
    pub(super) fn collective(
        &mut self,
        header: CollectiveHeader,
        buffer: Payload,
    ) -> Result<Payload> {
        let bytes = buffer.bytes().len();
        match header.op {
            _ if self.world_size() == 1 => self.alone(header, buffer),
            Collective::AllReduce(op) => self.all_reduce(header, op, buffer),
            Collective::Reduce { op, root } => self.reduce(header, op, root, buffer),
            Collective::ReduceScatter(op) => self.reduce_scatter(header, op, buffer),
            Collective::ReduceScatterV(op) => self.reduce_scatter_v(header, op, buffer),
            Collective::AllGatherInPlace => self.all_gather_in_place(header, buffer),
            Collective::Broadcast { root } => self.broadcast(header, root, buffer),
            Collective::AllGather => {
                self.gather(header, buffer, |_| 0..bytes, |rank| rank * bytes..(rank + 1) * bytes)
            }
            Collective::Gather { root } if root == self.rank => {
                self.gather(header, buffer, nothing, |rank| rank * bytes..(rank + 1) * bytes)
            }
            Collective::Gather { root } => {
                self.gather(header, buffer, |to| 0..if to == root { bytes } else { 0 }, nothing)
            }
            Collective::AllGatherV => self.all_gather_v(header, buffer),
            Collective::Scatter { root } => self.scatter(header, root, buffer),
            Collective::AllToAll => {
                let part = bytes / self.world_size();
                let parts = |rank: usize| rank * part..(rank + 1) * part;
                let into = Payload::zeros(header.element, header.len);
                self.round(header, buffer, into, parts, parts).map(own_part_kept(parts(self.rank)))
            }
            Collective::AllToAllV => self.all_to_all_v(header, buffer),
            Collective::Barrier => self.meet(header).map(|()| buffer),
            Collective::Send { .. } | Collective::Recv { .. } | Collective::RecvAny => {
                Err(Error::Unsupported { what: format!("{} as a collective", header.op) })
            }
        }
    }

    fn alone(&mut self, header: CollectiveHeader, buffer: Payload) -> Result<Payload> {
        match header.op {
            Collective::AllGatherV => buffer.with_parts([header.len]),
            _ => Ok(buffer),
        }
    }

    fn all_reduce(
        &mut self,
        header: CollectiveHeader,
        op: ReduceOp,
        buffer: Payload,
    ) -> Result<Payload> {
        let bytes = buffer.bytes().len();
        if bytes * (self.world_size() - 1) <= ONE_ROUND {
            return self.reduce_at_once(header, op, buffer, |_| 0..bytes);
        }
        let route = PipelineRoute { op: Some(op), root: None, to_all: true };
        self.pipeline(header, buffer, route, self.slices(header))
    }

    /// Like an all-reduce, but only the root gets the result. With two ranks the root reduces all
    /// numbers, which moves no more bytes.
    fn reduce(
        &mut self,
        header: CollectiveHeader,
        op: ReduceOp,
        root: usize,
        buffer: Payload,
    ) -> Result<Payload> {
        let bytes = buffer.bytes().len();
        let parts = |rank: usize| if rank == root { 0..bytes } else { 0..0 };
        let route = PipelineRoute { op: Some(op), root: Some(root), to_all: false };
        let buffer = if bytes * (self.world_size() - 1) <= ONE_ROUND {
            self.reduce_at_once(header, op, buffer, parts)?
        } else if self.world_size() == 2 {
            self.pipeline(header, buffer, route, parts)?
        } else {
            self.pipeline(header, buffer, route, self.slices(header))?
        };
        Ok(if self.rank == root { buffer } else { Payload::zeros(header.element, 0) })
    }

    fn reduce_scatter(
        &mut self,
        header: CollectiveHeader,
        op: ReduceOp,
        buffer: Payload,
    ) -> Result<Payload> {
        let part = buffer.bytes().len() / self.world_size();
        let parts = |rank: usize| rank * part..(rank + 1) * part;
        let buffer = self.reduce_parts(header, op, buffer, part, parts)?;
        let mut own = Payload::zeros(header.element, header.len / self.world_size());
        own.bytes_mut().copy_from_slice(&buffer.bytes()[parts(self.rank)]);
        Ok(own)
    }

    fn reduce_scatter_v(
        &mut self,
        header: CollectiveHeader,
        op: ReduceOp,
        buffer: Payload,
    ) -> Result<Payload> {
        let ranges = buffer.part_ranges();
        let longest = ranges.iter().map(Range::len).max().unwrap_or(0);
        self.reduce_parts(header, op, buffer, longest, |rank| ranges[rank].clone())
    }

    /// Reduces the numbers of which each rank owns a part (bytes, at most `longest`), into the owner's buffer.
    fn reduce_parts(
        &mut self,
        header: CollectiveHeader,
        op: ReduceOp,
        buffer: Payload,
        longest: usize,
        parts: impl Fn(usize) -> Range<usize>,
    ) -> Result<Payload> {
        if longest * (self.world_size() - 1) <= ONE_ROUND {
            return self.reduce_at_once(header, op, buffer, parts);
        }
        let route = PipelineRoute { op: Some(op), root: None, to_all: false };
        self.pipeline(header, buffer, route, parts)
    }

    fn all_gather_in_place(
        &mut self,
        header: CollectiveHeader,
        buffer: Payload,
    ) -> Result<Payload> {
        let ranges = buffer.part_ranges();
        let own = &buffer.bytes()[ranges[self.rank].clone()];
        let (own, len) = (Payload::from_slice(own), own.len());
        let [_, all] = self.round(header, own, buffer, |_| 0..len, |from| ranges[from].clone())?;
        Ok(all)
    }

    /// The slice (bytes) of an operation's numbers that each rank owns.
    fn slices(&self, header: CollectiveHeader) -> impl Fn(usize) -> Range<usize> + use<> {
        let (bytes, n) = (header.len * header.element.size(), self.world_size());
        move |rank| slice(bytes, rank, n)
    }

    /// Memory of at least `room` bytes for the other ranks' numbers.
    pub(super) fn take_scratch(&mut self, room: usize) -> Payload {
        let scratch = std::mem::replace(&mut self.scratch, Payload::empty());
        if scratch.len() < room { Payload::zeros(ElementType::U8, room) } else { scratch }
    }

    /// In one round, sends every rank its part (bytes) and reduces this rank's own part.
    fn reduce_at_once(
        &mut self,
        header: CollectiveHeader,
        op: ReduceOp,
        buffer: Payload,
        parts: impl Fn(usize) -> Range<usize>,
    ) -> Result<Payload> {
        let (own, rank) = (parts(self.rank), self.rank);
        // Whole words, so that every contribution is aligned for every element type.
        let stride = own.len().next_multiple_of(8);
        let room = stride * (self.world_size() - 1);
        let (scratch, len) = (self.take_scratch(room), own.len());
        let slot = |from: usize| {
            let start = (from - usize::from(from > rank)) * stride;
            start..start + len
        };
        let [mut buffer, scratch] = self.round(header, buffer, scratch, parts, slot)?;
        if len > 0 {
            let others: Vec<&[u8]> =
                scratch.bytes()[..room].chunks(stride).map(|slot| &slot[..len]).collect();
            let own = &mut buffer.bytes_mut()[own];
            reduce_onto(header.element, op, rank, own, &others);
        }
        self.scratch = scratch;
        Ok(buffer)
    }

    fn broadcast(
        &mut self,
        header: CollectiveHeader,
        root: usize,
        buffer: Payload,
    ) -> Result<Payload> {
        let (bytes, n) = (buffer.bytes().len(), self.world_size());
        if n > 2 && bytes * (n - 1) > ONE_ROUND {
            let route = PipelineRoute { op: None, root: Some(root), to_all: true };
            return self.pipeline(header, buffer, route, self.slices(header));
        }
        if self.rank == root {
            return self.round(header, buffer, Payload::empty(), |_| 0..bytes, nothing).map(only);
        }
        let from_root = |from: usize| 0..if from == root { bytes } else { 0 };
        let [_, buffer] = self.round(header, Payload::empty(), buffer, nothing, from_root)?;
        Ok(buffer)
    }

    /// A gather of equal lengths. A rank that receives the others' numbers also copies its own.
    fn gather(
        &mut self,
        header: CollectiveHeader,
        buffer: Payload,
        send: impl Fn(usize) -> Range<usize>,
        receive: impl Fn(usize) -> Range<usize>,
    ) -> Result<Payload> {
        let own = receive(self.rank);
        let len = if own.is_empty() { 0 } else { header.len * self.world_size() };
        let mut all = Payload::zeros(header.element, len);
        let count = own.len();
        all.bytes_mut()[own].copy_from_slice(&buffer.bytes()[..count]);
        let [_, all] = self.round(header, buffer, all, send, receive)?;
        Ok(all)
    }

    fn all_gather_v(&mut self, header: CollectiveHeader, buffer: Payload) -> Result<Payload> {
        let bytes = buffer.bytes().len();
        let send = |_| 0..bytes;
        self.call(header, buffer.bytes(), send)?;
        self.hear(header)?;
        let lens: Box<[usize]> = self.headers.iter().map(|words| words[2] as usize).collect();
        let ranges = ranges(&lens, header.element)?;
        let receive = |from: usize| ranges[from].clone();
        let mut all = Payload::zeros(header.element, lens.iter().sum());
        all.bytes_mut()[receive(self.rank)].copy_from_slice(buffer.bytes());
        let batch = self.rest(buffer, all, send, receive)?;
        let [_, all] = self.take(header, batch, receive)?;
        all.with_parts(lens)
    }

    fn scatter(
        &mut self,
        header: CollectiveHeader,
        root: usize,
        buffer: Payload,
    ) -> Result<Payload> {
        let n = self.world_size();
        let whole = if self.rank == root { buffer.bytes().len() } else { 0 };
        let send = |to: usize| to * (whole / n)..(to + 1) * (whole / n);
        self.call(header, buffer.bytes(), send)?;
        self.hear(header)?;
        let mut own = Payload::zeros(header.element, self.headers[root][2] as usize / n);
        let len = own.bytes().len();
        if self.rank == root {
            own.bytes_mut().copy_from_slice(&buffer.bytes()[send(root)]);
        }
        let receive = |from: usize| 0..if from == root { len } else { 0 };
        let batch = self.rest(buffer, own, send, receive)?;
        let [_, own] = self.take(header, batch, receive)?;
        Ok(own)
    }

    /// A round of lengths, and a round of parts.
    fn all_to_all_v(&mut self, header: CollectiveHeader, buffer: Payload) -> Result<Payload> {
        let word = |rank: usize| rank * 8..(rank + 1) * 8;
        let lens: Vec<usize> = buffer.parts().map_or_else(Vec::new, <[usize]>::to_vec);
        let told: Vec<i64> = lens.iter().map(|&len| len as i64).collect();
        let heard = Payload::zeros(ElementType::I64, self.world_size());
        let [_, heard] = self.round(header, Payload::from_slice(&told), heard, word, word)?;
        let mut coming: Box<[usize]> =
            heard.as_slice::<i64>()?.iter().map(|&n| n as usize).collect();
        coming[self.rank] = lens[self.rank];
        let (send, receive) = (ranges(&lens, header.element)?, ranges(&coming, header.element)?);
        let mut all = Payload::zeros(header.element, coming.iter().sum());
        let own = &buffer.bytes()[send[self.rank].clone()];
        all.bytes_mut()[receive[self.rank].clone()].copy_from_slice(own);
        let (send, receive) = (|to: usize| send[to].clone(), |from: usize| receive[from].clone());
        let [_, all] = self.exchange(header, buffer, all, send, receive)?;
        all.with_parts(coming)
    }

    /// Waits until all ranks are in this operation.
    fn meet(&mut self, header: CollectiveHeader) -> Result<()> {
        let (from, into) = (Payload::empty(), Payload::empty());
        self.round(header, from, into, nothing, nothing).map(|_| ())
    }

    /// An operation's first round: header messages with headers and the beginnings of the ranges, and the
    /// rest. It does not wait for the headers, because ranks that disagree fail before they use it.
    fn round(
        &mut self,
        header: CollectiveHeader,
        from: Payload,
        into: Payload,
        send: impl Fn(usize) -> Range<usize>,
        receive: impl Fn(usize) -> Range<usize>,
    ) -> Result<[Payload; 2]> {
        self.call(header, from.bytes(), &send)?;
        let batch = self.rest(from, into, send, &receive)?;
        self.hear(header)?;
        self.take(header, batch, receive)
    }

    /// A round after the first.
    fn exchange(
        &mut self,
        header: CollectiveHeader,
        from: Payload,
        into: Payload,
        send: impl Fn(usize) -> Range<usize>,
        receive: impl Fn(usize) -> Range<usize>,
    ) -> Result<[Payload; 2]> {
        let batch = self.start(from, into, send, receive)?;
        self.wait_for(batch, header)
    }

    /// Sends every other rank the header and the beginning of its range of `from`.
    pub(super) fn call(
        &mut self,
        header: CollectiveHeader,
        from: &[u8],
        send: impl Fn(usize) -> Range<usize>,
    ) -> Result<()> {
        for other in self.others() {
            let range = send(other);
            let beginning = &from[range.start..range.start + enclosed(&range)];
            self.tell(other, header.encode(), beginning, header)?;
        }
        Ok(())
    }

    /// Starts to send and receive the bytes that are not in header messages.
    fn rest(
        &mut self,
        from: Payload,
        into: Payload,
        send: impl Fn(usize) -> Range<usize>,
        receive: impl Fn(usize) -> Range<usize>,
    ) -> Result<RequestBatch> {
        let rest = |range: Range<usize>| range.start + enclosed(&range)..range.end;
        self.start(from, into, |to| rest(send(to)), |from| rest(receive(from)))
    }

    /// Starts to send ranges of `from` to the other ranks, and to receive theirs into `into`.
    fn start(
        &self,
        from: Payload,
        into: Payload,
        send: impl Fn(usize) -> Range<usize>,
        receive: impl Fn(usize) -> Range<usize>,
    ) -> Result<RequestBatch> {
        let mut batch = RequestBatch::new(&self.group, [from, into]);
        for other in self.others() {
            batch.receive(1, receive(other), other, MessageTag::Data)?;
        }
        for other in self.others() {
            batch.send(0, send(other), other, MessageTag::Data)?;
        }
        Ok(batch)
    }

    /// Waits for all ranks' headers, and compares them. This is also a barrier.
    fn hear(&mut self, header: CollectiveHeader) -> Result<()> {
        let mut wait = BackoffWait::begin();
        while !self.have_all_spoken(header)? {
            self.pause(&mut wait, header, Self::silent)?;
        }
        self.agree(header)
    }

    /// Compares the headers of all ranks, which have arrived.
    pub(super) fn agree(&mut self, header: CollectiveHeader) -> Result<()> {
        self.headers[self.rank] = header.encode();
        check_agreement(&self.headers, &self.group.ranks)
    }

    pub(super) fn have_all_spoken(&mut self, header: CollectiveHeader) -> Result<bool> {
        let mut all = true;
        for other in self.others() {
            match self.peers[other].peek()? {
                Some([GOODBYE, ..]) => return Err(self.left(other, header)),
                Some(words) => self.headers[other] = words,
                None => all = false,
            }
        }
        Ok(all)
    }

    /// The ranks whose headers have not arrived.
    pub(super) fn silent(&mut self) -> Vec<usize> {
        let speaks = |peer: &mut PeerHeaders| matches!(peer.peek(), Ok(Some(_)));
        self.others().filter(|&other| !speaks(&mut self.peers[other])).collect()
    }

    /// Waits for the rest, and copies the beginnings from the header messages.
    fn take(
        &mut self,
        header: CollectiveHeader,
        batch: RequestBatch,
        receive: impl Fn(usize) -> Range<usize>,
    ) -> Result<[Payload; 2]> {
        let mut memory = self.wait_for(batch, header)?;
        let into = memory[1].bytes_mut();
        for other in self.others() {
            let range = receive(other);
            let first = enclosed(&range);
            let peer = &mut self.peers[other];
            into[range.start..range.start + first].copy_from_slice(&peer.enclosed()[..first]);
            peer.next(&self.group, other)?;
        }
        Ok(memory)
    }
}

/// The first buffer of a batch.
fn only([buffer, _]: [Payload; 2]) -> Payload {
    buffer
}

/// Copies the part that a rank sends to itself into the buffer of the received parts.
fn own_part_kept(own: Range<usize>) -> impl FnOnce([Payload; 2]) -> Payload {
    move |[from, mut into]| {
        into.bytes_mut()[own.clone()].copy_from_slice(&from.bytes()[own]);
        into
    }
}

/// The ranges (bytes) of parts of these lengths, one after the other.
fn ranges(lens: &[usize], element: ElementType) -> Result<Vec<Range<usize>>> {
    let mut end = 0_usize;
    let range = |&len: &usize| {
        let start = end;
        end = len.checked_mul(element.size())?.checked_add(start)?;
        Some(start..end)
    };
    let what = || "ranks announce more data than memory can hold".to_owned();
    let ranges: Option<Vec<_>> = lens.iter().map(range).collect();
    ranges.ok_or_else(|| Error::Protocol { what: what() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_each_other_and_impossible_ones_are_refused() {
        let ranges = ranges(&[2, 0, 3], ElementType::F32).expect("small lengths");
        assert_eq!(ranges, [0..8, 8..8, 8..20]);
        assert!(super::ranges(&[usize::MAX, 1], ElementType::U8).is_err());
        assert!(super::ranges(&[usize::MAX / 2], ElementType::F32).is_err());
    }
}
