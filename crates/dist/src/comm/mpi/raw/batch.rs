//! Requests that work on the buffers of an operation.

use std::ffi::c_int;
use std::ops::Range;

use mpi::ffi;

use super::{Comm, LETTER, Tag, bytes_type, check, request_null, test};
use crate::Result;
use crate::comm::Payload;

/// Bytes per MPI call, whose counts are C `int`s.
const MAX_MESSAGE: usize = 1 << 30;

/// Up to so many bytes travel in pieces of a [`LETTER`]'s length: a few of these, which are sent at
/// once, are there before a handshake for all of them has been made.
pub(in super::super) const EAGER: usize = 16 * 1024;

/// Requests under way, and the memory that they work on.
pub(in super::super) struct Batch {
    comm: Comm,
    /// `None` once it has been given back.
    memory: Option<[Payload; 2]>,
    /// Address and length of each buffer, taken once: nobody makes references into the buffers
    /// while requests are under way.
    parts: [(*mut u8, usize); 2],
    requests: Vec<Request>,
    /// So many requests, from the first, are complete.
    complete: usize,
}

// SAFETY: the addresses in `parts` point into `memory`, which goes along; handles as for `Comm`.
unsafe impl Send for Batch {}

struct Request {
    raw: ffi::MPI_Request,
    peer: usize,
}

impl Batch {
    /// Takes the memory; requests name it by its position.
    pub(in super::super) fn new(comm: Comm, mut memory: [Payload; 2]) -> Self {
        let parts = memory.each_mut().map(|buffer| {
            let bytes = buffer.bytes_mut();
            (bytes.as_mut_ptr(), bytes.len())
        });
        Self { comm, memory: Some(memory), parts, requests: Vec::new(), complete: 0 }
    }

    /// Starts to send `range` (bytes) of buffer `part`.
    pub(in super::super) fn send(
        &mut self,
        part: usize,
        range: Range<usize>,
        to: usize,
        tag: Tag,
    ) -> Result<()> {
        for piece in pieces(range) {
            let (at, count) = self.place(part, &piece);
            let (to_raw, tag, comm) = (to as c_int, tag as c_int, self.comm.raw);
            let mut raw = request_null();
            // SAFETY: `place` checked the bounds; the memory stays until the request is complete.
            let code = unsafe {
                ffi::MPI_Isend(at.cast(), count, bytes_type(), to_raw, tag, comm, &mut raw)
            };
            check("MPI_Isend", code)?;
            self.requests.push(Request { raw, peer: to });
        }
        Ok(())
    }

    /// Starts to receive `range` (bytes) of buffer `part`, which no other request may touch.
    pub(in super::super) fn receive(
        &mut self,
        part: usize,
        range: Range<usize>,
        from: usize,
        tag: Tag,
    ) -> Result<()> {
        for piece in pieces(range) {
            let (at, count) = self.place(part, &piece);
            let (from_raw, tag, comm) = (from as c_int, tag as c_int, self.comm.raw);
            let mut raw = request_null();
            // SAFETY: `place` checked the bounds; the memory stays until the request is complete.
            let code = unsafe {
                ffi::MPI_Irecv(at.cast(), count, bytes_type(), from_raw, tag, comm, &mut raw)
            };
            check("MPI_Irecv", code)?;
            self.requests.push(Request { raw, peer: from });
        }
        Ok(())
    }

    /// Starts to broadcast all of buffer `part` from `root`.
    pub(in super::super) fn broadcast(&mut self, part: usize, root: usize) -> Result<()> {
        for piece in pieces(0..self.parts[part].1) {
            let (at, count) = self.place(part, &piece);
            let (root_raw, comm) = (root as c_int, self.comm.raw);
            let mut raw = request_null();
            // SAFETY: `place` checked the bounds; the memory stays until the request is complete.
            let code = unsafe {
                ffi::MPI_Ibcast(at.cast(), count, bytes_type(), root_raw, comm, &mut raw)
            };
            check("MPI_Ibcast", code)?;
            self.requests.push(Request { raw, peer: root });
        }
        Ok(())
    }

    /// The memory, if every request is complete by now. Drives MPI's progress.
    pub(in super::super) fn poll(&mut self) -> Result<Option<[Payload; 2]>> {
        while let Some(request) = self.requests.get_mut(self.complete) {
            if test(&mut request.raw)?.is_none() {
                return Ok(None);
            }
            self.complete += 1;
        }
        Ok(self.memory.take())
    }

    /// The ranks that requests still wait for.
    pub(in super::super) fn missing(&mut self) -> Vec<usize> {
        let mut missing = Vec::new();
        for request in &mut self.requests[self.complete..] {
            // A complete request has become a null one and stays complete for `poll`.
            if !matches!(test(&mut request.raw), Ok(Some(_))) {
                missing.push(request.peer);
            }
        }
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    fn place(&self, part: usize, range: &Range<usize>) -> (*mut u8, c_int) {
        let (base, len) = self.parts[part];
        assert!(range.start <= range.end && range.end <= len, "a request outside its buffer");
        let count = c_int::try_from(range.len()).expect("pieces are at most MAX_MESSAGE");
        (base.wrapping_add(range.start), count)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if self.complete < self.requests.len() {
            // MPI may still write to it: leaked, which costs nothing in a job that has failed.
            let _leaked = self.memory.take().map(std::mem::ManuallyDrop::new);
        }
    }
}

/// `range` cut into messages; the other end of it cuts a range of its length in the same way.
fn pieces(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let (end, max) = (range.end, if range.len() <= EAGER { LETTER } else { MAX_MESSAGE });
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
        check(3..3 + LETTER + 1, 2);
        check(7..8 + EAGER, 1);
        check(0..5 * MAX_MESSAGE + 1, 6);
    }
}
