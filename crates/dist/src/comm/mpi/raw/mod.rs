//! The calls of the MPI library: the only unsafe code of this backend.
//!
//! **Invariants** Memory that MPI works on belongs to a [`Batch`] or a [`Letter`] until every request
//! on it is complete; what is dropped before leaks its memory. Calls are made one at a time, by the
//! thread that has the engine's turn, except [`abort_job`].

mod batch;
mod letter;

use std::ffi::{c_char, c_int};
use std::hash::{DefaultHasher, Hasher};
use std::mem::MaybeUninit;

use mpi::ffi;

use crate::{Error, Result};

pub(super) use batch::{Batch, EAGER, Kind};
pub(super) use letter::{LETTER, Letter};

/// What a message is, so that different kinds never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    /// What a rank is about to do, and the beginning of its data.
    Header = 1,
    /// A part of a collective.
    Data = 2,
    /// What a message of one rank to another holds, and its beginning.
    MessageHeader = 3,
    /// The rest of the message.
    Message = 4,
    /// A piece of a long collective, on its way to its owner.
    Up = 5,
    /// A piece of a long collective, on its way from its owner.
    Down = 6,
    /// Why a rank has failed.
    Failure = 7,
}

/// A communicator of this backend alone: nobody else's messages can get in.
#[derive(Clone, Copy)]
pub(super) struct Comm {
    raw: ffi::MPI_Comm,
}

// SAFETY: a handle is a number or an address that means the same on every thread; who makes calls
// with it is the engine's to say (`Transport::any_thread`).
unsafe impl Send for Comm {}

// SAFETY: the same; nothing is changed through a reference to a handle.
unsafe impl Sync for Comm {}

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
        Ok(Self { raw })
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

    /// By rank, the host that it is on: equal numbers are one host.
    pub(super) fn hosts(self) -> Result<Vec<u64>> {
        // Larger than every library's MPI_MAX_PROCESSOR_NAME.
        let (mut name, mut len) = ([0_u8; 4096], 0);
        // SAFETY: room for the longest name, and for an int.
        let code = unsafe { ffi::MPI_Get_processor_name(name.as_mut_ptr().cast(), &mut len) };
        check("MPI_Get_processor_name", code)?;
        let mut hasher = DefaultHasher::new();
        hasher.write(&name[..usize::try_from(len).unwrap_or(0).min(name.len())]);
        let own = hasher.finish().to_ne_bytes();
        let mut hosts = vec![0_u64; self.size()?];
        let (from, count) = (own.as_ptr().cast(), own.len() as c_int);
        let (to, bytes) = (hosts.as_mut_ptr().cast(), bytes_type());
        // SAFETY: every rank sends 8 bytes, and there is room for those of all.
        let code = unsafe { ffi::MPI_Allgather(from, count, bytes, to, count, bytes, self.raw) };
        check("MPI_Allgather", code)?;
        Ok(hosts)
    }

    /// A rank that has sent a message of this kind which nobody has received.
    pub(super) fn has_sent(self, tag: Tag) -> Result<Option<usize>> {
        let (mut flag, mut status) = (0, MaybeUninit::<ffi::MPI_Status>::zeroed());
        // SAFETY: a constant of the library.
        let any = unsafe { ffi::RSMPI_ANY_SOURCE };
        let (tag, to) = (tag as c_int, status.as_mut_ptr());
        // SAFETY: a valid communicator, and room for an int and a status.
        let code = unsafe { ffi::MPI_Iprobe(any, tag, self.raw, &mut flag, to) };
        check("MPI_Iprobe", code)?;
        // SAFETY: numbers, for which zeros are valid too.
        let status = unsafe { status.assume_init() };
        Ok((flag != 0).then_some(status.MPI_SOURCE as usize))
    }

    /// The communicator of those that give the same `colour`, in the order of their `key`s. Every
    /// rank calls it; one without a colour gets none.
    ///
    /// The library waits for the others without a deadline: call it when all ranks are known to.
    pub(super) fn split(self, colour: Option<usize>, key: usize) -> Result<Option<Self>> {
        // SAFETY: a constant of the library.
        let undefined = unsafe { ffi::RSMPI_UNDEFINED };
        let mut raw = self.raw;
        let number = colour.map_or(undefined, |colour| colour as c_int);
        // SAFETY: a valid communicator and room for a handle.
        let code = unsafe { ffi::MPI_Comm_split(self.raw, number, key as c_int, &mut raw) };
        check("MPI_Comm_split", code)?;
        Ok(colour.map(|_| Self { raw }))
    }

    /// Gives the communicator back; all ranks together, with nothing under way.
    pub(super) fn free(mut self) -> Result<()> {
        // SAFETY: a valid communicator, which nobody uses after this.
        let code = unsafe { ffi::MPI_Comm_free(&mut self.raw) };
        check("MPI_Comm_free", code)
    }
}

/// The rank that a complete request is a message of, where it is a receive.
fn test(request: &mut ffi::MPI_Request) -> Result<Option<usize>> {
    let (mut flag, mut status) = (0, MaybeUninit::<ffi::MPI_Status>::zeroed());
    // SAFETY: a request of ours or the null request, and room for an int and a status.
    let code = unsafe { ffi::MPI_Test(request, &mut flag, status.as_mut_ptr()) };
    check("MPI_Test", code)?;
    // SAFETY: numbers, for which zeros are valid too.
    let status = unsafe { status.assume_init() };
    Ok((flag != 0).then_some(status.MPI_SOURCE as usize))
}

/// Ends every process of the job.
///
/// The one call that may come while another thread is in one: MPI permits it only where it gave full
/// thread support, but the alternative is a job that hangs.
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
