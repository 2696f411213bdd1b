//! The calls of the MPI library: the only unsafe code of this backend.
//!
//! **Invariants** Memory that MPI works on belongs to a [`Batch`] until every request on it is
//! complete; a batch that is dropped before leaks its memory. Everything is called by the
//! communication thread, except [`abort_job`].

use std::ffi::{c_char, c_int};
use std::ops::Range;

use mpi::ffi;

use crate::comm::Buffer;
use crate::{Error, Result};

/// Bytes per MPI call, whose counts are C `int`s.
pub(super) const MAX_MESSAGE: usize = 1 << 30;

/// What a message is, so that different kinds never meet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tag {
    /// What a rank is about to do.
    Header = 1,
    /// A part of a collective.
    Data = 2,
    /// What a message of one rank to another holds.
    MessageHeader = 3,
    /// The message.
    Message = 4,
}

/// A communicator of this backend alone: nobody else's messages can get in.
#[derive(Clone, Copy)]
pub(super) struct Comm {
    raw: ffi::MPI_Comm,
    max_message: usize,
}

// SAFETY: a handle is a number or an address that means the same on every thread; who makes calls
// with it is the engine's to say (`Transport::any_thread`).
unsafe impl Send for Comm {}

impl Comm {
    /// A copy of `MPI_COMM_WORLD` whose errors are returned, not fatal.
    pub(super) fn duplicate_world() -> Result<Self> {
        let world = world();
        // SAFETY: a constant of the library.
        let errors_return = unsafe { ffi::RSMPI_ERRORS_RETURN };
        // SAFETY: both handles are the library's own constants; MPI is initialised.
        let code = unsafe { ffi::MPI_Comm_set_errhandler(world, errors_return) };
        check("MPI_Comm_set_errhandler", code)?;
        let mut raw = world;
        // SAFETY: `raw` has room for a handle.
        let code = unsafe { ffi::MPI_Comm_dup(world, &mut raw) };
        check("MPI_Comm_dup", code)?;
        Ok(Self { raw, max_message: MAX_MESSAGE })
    }

    pub(super) fn rank(self) -> Result<usize> {
        let mut rank = 0;
        // SAFETY: a valid communicator and room for an int.
        let code = unsafe { ffi::MPI_Comm_rank(self.raw, &mut rank) };
        check("MPI_Comm_rank", code)?;
        Ok(rank as usize)
    }

    pub(super) fn size(self) -> Result<usize> {
        let mut size = 0;
        // SAFETY: a valid communicator and room for an int.
        let code = unsafe { ffi::MPI_Comm_size(self.raw, &mut size) };
        check("MPI_Comm_size", code)?;
        Ok(size as usize)
    }

    /// Gives the communicator back; all ranks together, with nothing under way.
    pub(super) fn free(mut self) -> Result<()> {
        // SAFETY: a valid communicator, which nobody uses after this.
        let code = unsafe { ffi::MPI_Comm_free(&mut self.raw) };
        check("MPI_Comm_free", code)
    }
}

/// Requests under way, and the memory that they work on.
pub(super) struct Batch {
    comm: Comm,
    /// `None` once it has been given back.
    memory: Option<Vec<Buffer>>,
    /// Address and length of each buffer, taken once: nobody makes references into the buffers
    /// while requests are under way.
    parts: Vec<(*mut u8, usize)>,
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
    /// Takes the memory; requests name it by its position in `memory`.
    pub(super) fn new(comm: Comm, mut memory: Vec<Buffer>) -> Self {
        let part = |buffer: &mut Buffer| {
            let bytes = buffer.bytes_mut();
            (bytes.as_mut_ptr(), bytes.len())
        };
        let parts = memory.iter_mut().map(part).collect();
        Self { comm, memory: Some(memory), parts, requests: Vec::new(), complete: 0 }
    }

    /// Starts to send `range` (bytes) of buffer `part`.
    pub(super) fn send(
        &mut self,
        part: usize,
        range: Range<usize>,
        to: usize,
        tag: Tag,
    ) -> Result<()> {
        for piece in pieces(range, self.comm.max_message) {
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
    pub(super) fn receive(
        &mut self,
        part: usize,
        range: Range<usize>,
        from: usize,
        tag: Tag,
    ) -> Result<()> {
        for piece in pieces(range, self.comm.max_message) {
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
    pub(super) fn broadcast(&mut self, part: usize, root: usize) -> Result<()> {
        for piece in pieces(0..self.parts[part].1, self.comm.max_message) {
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
    pub(super) fn poll(&mut self) -> Result<Option<Vec<Buffer>>> {
        while let Some(request) = self.requests.get_mut(self.complete) {
            if !test(&mut request.raw)? {
                return Ok(None);
            }
            self.complete += 1;
        }
        Ok(self.memory.take())
    }

    /// The ranks that requests still wait for.
    pub(super) fn missing(&mut self) -> Vec<usize> {
        let mut missing = Vec::new();
        for request in &mut self.requests[self.complete..] {
            // A complete request has become a null one and stays complete for `poll`.
            if !matches!(test(&mut request.raw), Ok(true)) {
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

/// `range` cut into parts of at most `max`.
fn pieces(range: Range<usize>, max: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(max).map(move |start| start..end.min(start.saturating_add(max)))
}

fn test(request: &mut ffi::MPI_Request) -> Result<bool> {
    let mut flag = 0;
    // SAFETY: a constant of the library.
    let ignore = unsafe { ffi::RSMPI_STATUS_IGNORE };
    // SAFETY: a request of ours or the null request, and room for an int.
    let code = unsafe { ffi::MPI_Test(request, &mut flag, ignore) };
    check("MPI_Test", code)?;
    Ok(flag != 0)
}

/// Ends every process of the job.
///
/// The one call that may come from another thread than the communication thread: MPI permits it
/// only where it gave full thread support, but the alternative is a job that hangs.
pub(super) fn abort_job() {
    // SAFETY: MPI is initialised and not finalised, see `life`.
    unsafe { ffi::MPI_Abort(world(), 1) };
}

/// Has `function` called when the process exits, whichever way it does so in order.
pub(super) fn at_exit(function: extern "C" fn()) {
    unsafe extern "C" {
        fn atexit(function: extern "C" fn()) -> c_int;
    }
    // SAFETY: C's own function; the function that it gets exists as long as the process.
    let refused = unsafe { atexit(function) };
    if refused != 0 {
        tracing::warn!("no room for an exit handler: an early exit may leave other ranks waiting");
    }
}

fn check(call: &'static str, code: c_int) -> Result<()> {
    const SUCCESS: c_int = 0;
    if code == SUCCESS {
        return Ok(());
    }
    // Larger than every library's MPI_MAX_ERROR_STRING.
    let mut text = [0_u8; 4096];
    let mut len = 0;
    let start: *mut c_char = text.as_mut_ptr().cast();
    // SAFETY: room for the longest text, and for an int.
    let described = unsafe { ffi::MPI_Error_string(code, start, &mut len) };
    let len = usize::try_from(len).unwrap_or(0).min(text.len());
    let message = match described {
        SUCCESS => String::from_utf8_lossy(&text[..len]).into_owned(),
        _ => format!("error {code}"),
    };
    Err(Error::Mpi { call, message })
}

/// The library's name and version.
pub(super) fn library() -> String {
    let mut text = [0_u8; 16 * 1024];
    let mut len = 0;
    let start: *mut c_char = text.as_mut_ptr().cast();
    // SAFETY: room for the longest text (8192 in MPICH), and for an int.
    let code = unsafe { ffi::MPI_Get_library_version(start, &mut len) };
    let len = usize::try_from(len).unwrap_or(0).min(text.len());
    let text = String::from_utf8_lossy(&text[..len]);
    match (code, text.lines().next()) {
        (0, Some(line)) => line.trim_end_matches('\0').to_owned(),
        _ => "an unknown MPI library".to_owned(),
    }
}

fn world() -> ffi::MPI_Comm {
    // SAFETY: a constant of the library.
    unsafe { ffi::RSMPI_COMM_WORLD }
}

fn bytes_type() -> ffi::MPI_Datatype {
    // SAFETY: a constant of the library.
    unsafe { ffi::RSMPI_UINT8_T }
}

fn request_null() -> ffi::MPI_Request {
    // SAFETY: a constant of the library.
    unsafe { ffi::RSMPI_REQUEST_NULL }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_range_and_fit_a_call() {
        let cut = |range: Range<usize>, max| pieces(range, max).collect::<Vec<_>>();
        assert_eq!(cut(3..10, 3), [3..6, 6..9, 9..10]);
        assert_eq!(cut(3..9, 3), [3..6, 6..9]);
        assert!(cut(5..5, 3).is_empty());
        let big = 5 * MAX_MESSAGE + 1;
        assert_eq!(cut(0..big, MAX_MESSAGE).len(), 6);
        assert!(cut(0..big, MAX_MESSAGE).iter().all(|piece| c_int::try_from(piece.len()).is_ok()));
    }
}
