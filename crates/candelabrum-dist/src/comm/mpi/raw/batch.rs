//! MPI requests that work on the buffers of an operation.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ops::Range;

use mpi::ffi;

use super::{HEADER_MESSAGE, MessageTag, MpiGroup, bytes_type, check, request_null, test};
use crate::Result;
use crate::comm::Payload;

/// The most bytes of one call. MPI's counts are C `int`s.
const MAX_MESSAGE: usize = 1 << 30;

/// A range of at most this many bytes is sent in messages of a [`HEADER_MESSAGE`]'s length. MPI sends these
/// without a handshake, so a few of them arrive sooner than one long message.
pub(in super::super) const EAGER: usize = 32 * 1024;

/// Requests under way, and the memory that they work on.
pub(in super::super) struct RequestBatch {
    group: MpiGroup,
    /// `None` after it has been returned.
    memory: Option<[Payload; 2]>,
    /// The address and length of each buffer, taken once. While requests are under way, only
    /// [`Self::idle`] makes references into the buffers.
    parts: [(*mut u8, usize); 2],
    /// The requests that are not known to be complete, for each kind in the order of their start.
    requests: Vec<(RequestKind, VecDeque<RawRequest>)>,
}

// SAFETY: the addresses in `parts` point into `memory`, which moves with them; the argument of
// `MpiGroup` holds for the handles.
unsafe impl Send for RequestBatch {}

/// The kind of a request. [`RequestBatch`] completes requests of one kind in the order of their start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct RequestKind {
    pub(in super::super) tag: MessageTag,
    pub(in super::super) peer: usize,
    pub(in super::super) receives: bool,
}

struct RawRequest {
    raw: ffi::MPI_Request,
    part: usize,
    range: Range<usize>,
}

impl RequestBatch {
    /// Takes the buffers. Requests name a buffer by its position.
    pub(in super::super) fn new(group: &MpiGroup, mut memory: [Payload; 2]) -> Self {
        let parts = memory.each_mut().map(|buffer| {
            let bytes = buffer.bytes_mut();
            (bytes.as_mut_ptr(), bytes.len())
        });
        Self { group: group.clone(), memory: Some(memory), parts, requests: Vec::new() }
    }

    /// Starts to send `range` (bytes) of buffer `part`, as the messages of `pieces`.
    pub(in super::super) fn send(
        &mut self,
        part: usize,
        range: Range<usize>,
        to: usize,
        tag: MessageTag,
    ) -> Result<()> {
        let kind = RequestKind { tag, peer: to, receives: false };
        pieces(range).try_for_each(|piece| self.start(kind, part, piece))
    }

    /// Starts to receive `range` (bytes) of buffer `part`, which no other request may touch.
    pub(in super::super) fn receive(
        &mut self,
        part: usize,
        range: Range<usize>,
        from: usize,
        tag: MessageTag,
    ) -> Result<()> {
        let kind = RequestKind { tag, peer: from, receives: true };
        pieces(range).try_for_each(|piece| self.start(kind, part, piece))
    }

    /// Starts to send or to receive `range` (bytes) of buffer `part` as one message, which may be
    /// empty.
    pub(in super::super) fn start(
        &mut self,
        kind: RequestKind,
        part: usize,
        range: Range<usize>,
    ) -> Result<()> {
        let (base, len) = self.parts[part];
        assert!(range.start <= range.end && range.end <= len, "a request outside its buffer");
        let count = c_int::try_from(range.len()).expect("pieces are at most MAX_MESSAGE");
        let at = base.wrapping_add(range.start).cast();
        let ((peer, tag), comm) = (self.group.address(kind.peer, kind.tag), self.group.world);
        let mut raw = request_null();
        if kind.receives {
            // SAFETY: the range is in its buffer, which stays until the request is complete.
            let code =
                unsafe { ffi::MPI_Irecv(at, count, bytes_type(), peer, tag, comm, &mut raw) };
            check("MPI_Irecv", code)?;
        } else {
            // SAFETY: the range is in its buffer, which stays until the request is complete.
            let code =
                unsafe { ffi::MPI_Isend(at, count, bytes_type(), peer, tag, comm, &mut raw) };
            check("MPI_Isend", code)?;
        }
        self.queue(kind).push_back(RawRequest { raw, part, range });
        Ok(())
    }

    /// Removes the oldest request of this kind, if there is one and it is complete. Returns whether
    /// a request was removed. Drives MPI's progress.
    pub(in super::super) fn complete_first(&mut self, kind: RequestKind) -> Result<bool> {
        let queue = self.queue(kind);
        let Some(request) = queue.front_mut() else { return Ok(false) };
        let complete = test(&mut request.raw)?.is_some();
        if complete {
            queue.pop_front();
        }
        Ok(complete)
    }

    /// The buffers, if every request is complete. Drives MPI's progress.
    pub(in super::super) fn poll(&mut self) -> Result<Option<[Payload; 2]>> {
        for (_, queue) in &mut self.requests {
            while let Some(request) = queue.front_mut() {
                if test(&mut request.raw)?.is_none() {
                    return Ok(None);
                }
                queue.pop_front();
            }
        }
        Ok(self.memory.take())
    }

    /// The ranks that incomplete requests wait for.
    pub(in super::super) fn missing(&mut self) -> Vec<usize> {
        // A complete request becomes a null one, which is complete when it is tested again.
        let waits = |request: &mut RawRequest| !matches!(test(&mut request.raw), Ok(Some(_)));
        let mut missing: Vec<usize> = self
            .requests
            .iter_mut()
            .filter_map(|(kind, queue)| queue.iter_mut().any(waits).then_some(kind.peer))
            .collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// The bytes `own` of the first buffer and `others` of the second, all without a request.
    pub(in super::super) fn idle(
        &mut self,
        own: Range<usize>,
        others: &[Range<usize>],
    ) -> (&mut [u8], Vec<&[u8]>) {
        let under_way = self.requests.iter().flat_map(|(_, queue)| queue);
        let busy = |part: usize, range: &Range<usize>| {
            let meets = |other: &RawRequest| {
                other.part == part && other.range.start < range.end && range.start < other.range.end
            };
            range.end > self.parts[part].1 || under_way.clone().any(meets)
        };
        assert!(own.start <= own.end && !busy(0, &own), "memory of a request");
        let others = others.iter().map(|range| {
            assert!(range.start <= range.end && !busy(1, range), "memory of a request");
            let at = self.parts[1].0.wrapping_add(range.start);
            // SAFETY: the range is in the second buffer and no request works on it, as the
            // assertion has checked; the slice is borrowed with this batch.
            unsafe { std::slice::from_raw_parts(at.cast_const(), range.len()) }
        });
        let others = others.collect();
        let at = self.parts[0].0.wrapping_add(own.start);
        // SAFETY: as above, but in the first buffer, which contains none of the slices above.
        (unsafe { std::slice::from_raw_parts_mut(at, own.len()) }, others)
    }

    fn queue(&mut self, kind: RequestKind) -> &mut VecDeque<RawRequest> {
        let known = self.requests.iter().position(|(of, _)| *of == kind);
        let at = known.unwrap_or_else(|| {
            self.requests.push((kind, VecDeque::new()));
            self.requests.len() - 1
        });
        &mut self.requests[at].1
    }
}

impl Drop for RequestBatch {
    fn drop(&mut self) {
        if self.requests.iter().any(|(_, queue)| !queue.is_empty()) {
            // MPI may still use the memory, so it is leaked. In a failed job this is harmless.
            let _leaked = self.memory.take().map(std::mem::ManuallyDrop::new);
        }
    }
}

/// Cuts `range` into messages. The other rank cuts a range of the same length in the same way.
fn pieces(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let (end, max) = (range.end, if range.len() <= EAGER { HEADER_MESSAGE } else { MAX_MESSAGE });
    range.step_by(max).map(move |start| start..end.min(start.saturating_add(max)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_range_and_fit_a_call() {
        let check = |range: Range<usize>, count| {
            let cut: Vec<_> = pieces(range.clone()).collect();
            assert_eq!(cut.len(), count, "{range:?}");
            assert!(cut.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(cut.iter().all(|piece| c_int::try_from(piece.len()).is_ok()));
            let ends = cut.first().zip(cut.last()).map(|(first, last)| first.start..last.end);
            assert_eq!(ends, (!range.is_empty()).then_some(range));
        };
        check(5..5, 0);
        check(3..4, 1);
        check(3..3 + HEADER_MESSAGE + 1, 2);
        check(7..8 + EAGER, 1);
        check(0..5 * MAX_MESSAGE + 1, 6);
    }
}
