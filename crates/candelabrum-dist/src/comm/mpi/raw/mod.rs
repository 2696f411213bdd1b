//! The calls of the MPI library. Only this folder of the backend has `unsafe` code.
//!
//! **Invariants** Memory that MPI works on belongs to a [`RequestBatch`] or a [`HeaderMessage`] until every
//! request on it is complete. If the owner is dropped before, the memory is leaked. Calls are made
//! one at a time, by the thread that has the queue's turn, except [`abort_job`].

mod batch;
mod header_message;
mod names;

use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::sync::Arc;

use mpi::ffi;

use crate::{Error, Result};

pub(super) use batch::{EAGER, RequestBatch, RequestKind};
pub(super) use header_message::{HEADER_MESSAGE, HeaderMessage};
pub(super) use names::LauncherNames;

/// The number of tags of a group, which is larger than every [`MessageTag`].
const KINDS: usize = 8;

/// The kind of a message. A receive of one kind never gets a message of another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageTag {
    /// The header of an operation, and the beginning of the data.
    Header = 1,
    /// A part of a collective.
    Data = 2,
    /// The header of a message of one rank to another, and the beginning of its data.
    MessageHeader = 3,
    /// The rest of the message.
    Message = 4,
    /// A piece of a long collective, on its way to its owner.
    Up = 5,
    /// A piece of a long collective, on its way from its owner.
    Down = 6,
    /// The cause of a rank's failure.
    Failure = 7,
}

/// A group of ranks. The messages of all groups use one communicator, a private copy of the
/// world's. Tags say to which group a message belongs.
#[derive(Clone)]
pub(super) struct MpiGroup {
    world: ffi::MPI_Comm,
    /// No member is in another group with this number.
    pub(super) number: usize,
    /// The members' ranks in the world.
    pub(super) ranks: Arc<[usize]>,
}

// SAFETY: a handle is a number or an address that means the same on every thread; the queue
// decides which thread makes calls with it (`RankTransport::any_thread`).
unsafe impl Send for MpiGroup {}

// SAFETY: as above; nothing is changed through a reference to a handle.
unsafe impl Sync for MpiGroup {}

impl MpiGroup {
    /// The number of the world.
    pub(super) const WORLD: usize = 0;

    /// The largest number. MPI guarantees tags up to 32767.
    pub(super) const LAST: usize = 32_767 / KINDS - 1;

    /// All ranks, and this process's rank. The communicator is a copy of `MPI_COMM_WORLD` that
    /// returns errors instead of ending the job.
    pub(super) fn world() -> Result<(Self, usize)> {
        let world = world();
        // SAFETY: a constant of the library.
        let errors_return = unsafe { ffi::RSMPI_ERRORS_RETURN };
        // SAFETY: a constant of the library. Errors of calls without a communicator go to it.
        let own = unsafe { ffi::RSMPI_COMM_SELF };
        for comm in [world, own] {
            // SAFETY: the handles are the library's own constants; MPI is initialised.
            let code = unsafe { ffi::MPI_Comm_set_errhandler(comm, errors_return) };
            check("MPI_Comm_set_errhandler", code)?;
        }
        let (mut copy, mut rank, mut size) = (world, 0, 0);
        // SAFETY: `copy` has room for a handle.
        check("MPI_Comm_dup", unsafe { ffi::MPI_Comm_dup(world, &mut copy) })?;
        // SAFETY: a valid communicator and room for an int.
        check("MPI_Comm_rank", unsafe { ffi::MPI_Comm_rank(copy, &mut rank) })?;
        // SAFETY: a valid communicator and room for an int.
        check("MPI_Comm_size", unsafe { ffi::MPI_Comm_size(copy, &mut size) })?;
        let ranks = (0..size as usize).collect();
        Ok((Self { world: copy, number: Self::WORLD, ranks }, rank as usize))
    }

    /// A group of these ranks of the world.
    pub(super) fn other(&self, number: usize, ranks: Arc<[usize]>) -> Self {
        Self { world: self.world, number, ranks }
    }

    /// The words of all ranks of the world, by rank. All of them call this together, and it blocks.
    pub(super) fn gather_words(&self, own: u64) -> Result<Vec<u64>> {
        let (own, mut words) = (own.to_ne_bytes(), vec![0_u64; self.ranks.len()]);
        let (from, count) = (own.as_ptr().cast(), own.len() as c_int);
        let (to, bytes) = (words.as_mut_ptr().cast(), bytes_type());
        // SAFETY: every rank sends 8 bytes, and `words` has room for 8 bytes of every rank.
        let code = unsafe { ffi::MPI_Allgather(from, count, bytes, to, count, bytes, self.world) };
        check("MPI_Allgather", code)?;
        Ok(words)
    }

    /// A member with a message of this kind that this rank has not received yet.
    pub(super) fn has_sent(&self, tag: MessageTag) -> Result<Option<usize>> {
        let (mut flag, mut status) = (0, MaybeUninit::<ffi::MPI_Status>::zeroed());
        let (any, tag, to) = (any_source(), self.tag(tag), status.as_mut_ptr());
        // SAFETY: a valid communicator, and room for an int and a status.
        let code = unsafe { ffi::MPI_Iprobe(any, tag, self.world, &mut flag, to) };
        check("MPI_Iprobe", code)?;
        // SAFETY: a status consists of numbers, for which zeros are valid.
        let status = unsafe { status.assume_init() };
        Ok((flag != 0).then(|| self.member(status.MPI_SOURCE as usize)))
    }

    /// Frees the communicator. All ranks call this together, with no request under way.
    pub(super) fn free(mut self) -> Result<()> {
        // SAFETY: a valid communicator, which is not used after this call.
        check("MPI_Comm_free", unsafe { ffi::MPI_Comm_free(&mut self.world) })
    }

    /// MPI's numbers of a member and of a kind of message.
    fn address(&self, member: usize, tag: MessageTag) -> (c_int, c_int) {
        (self.ranks[member] as c_int, self.tag(tag))
    }

    fn tag(&self, tag: MessageTag) -> c_int {
        (self.number * KINDS + tag as usize) as c_int
    }

    /// The member with this rank in the world.
    pub(super) fn member(&self, rank: usize) -> usize {
        self.ranks.iter().position(|&member| member == rank).unwrap_or(0)
    }
}

/// If the request is complete: the sender's rank in the world for a receive, any number for a send.
fn test(request: &mut ffi::MPI_Request) -> Result<Option<usize>> {
    let (mut flag, mut status) = (0, MaybeUninit::<ffi::MPI_Status>::zeroed());
    // SAFETY: a request of ours or the null request, and room for an int and a status.
    let code = unsafe { ffi::MPI_Test(request, &mut flag, status.as_mut_ptr()) };
    check("MPI_Test", code)?;
    // SAFETY: a status consists of numbers, for which zeros are valid.
    let status = unsafe { status.assume_init() };
    Ok((flag != 0).then_some(status.MPI_SOURCE as usize))
}

/// Ends every process of the job.
///
/// Only this call may be made while another thread is in MPI. MPI permits that only with full
/// support for threads, but otherwise the job would hang.
pub(super) fn abort_job() {
    // SAFETY: MPI is initialised and not finalised, see `life`.
    unsafe { ffi::MPI_Abort(world(), 1) };
}

/// Registers a function that is called when the process exits normally.
pub(super) fn at_exit(function: extern "C" fn()) {
    unsafe extern "C" {
        fn atexit(function: extern "C" fn()) -> c_int;
    }
    // SAFETY: `atexit` is C's own function, and `function` exists as long as the process.
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

/// The library's name and version, in one line.
pub(super) fn library() -> String {
    library_text().lines().next().unwrap_or("an unknown MPI library").to_owned()
}

/// The library's own text on its version and its parts. The text is empty if the library gives none.
pub(super) fn library_text() -> String {
    let mut text = [0_u8; 16 * 1024];
    let mut len = 0;
    let start: *mut c_char = text.as_mut_ptr().cast();
    // SAFETY: room for the longest text (8192 in MPICH), and for an int.
    let code = unsafe { ffi::MPI_Get_library_version(start, &mut len) };
    let len = if code == 0 { usize::try_from(len).unwrap_or(0).min(text.len()) } else { 0 };
    String::from_utf8_lossy(&text[..len]).trim_end_matches('\0').to_owned()
}

fn world() -> ffi::MPI_Comm {
    // SAFETY: a constant of the library.
    unsafe { ffi::RSMPI_COMM_WORLD }
}

fn any_source() -> c_int {
    // SAFETY: a constant of the library.
    unsafe { ffi::RSMPI_ANY_SOURCE }
}

fn bytes_type() -> ffi::MPI_Datatype {
    // SAFETY: a constant of the library.
    unsafe { ffi::RSMPI_UINT8_T }
}

fn request_null() -> ffi::MPI_Request {
    // SAFETY: a constant of the library.
    unsafe { ffi::RSMPI_REQUEST_NULL }
}
