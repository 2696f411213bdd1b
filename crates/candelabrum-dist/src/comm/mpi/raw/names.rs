//! MPI's published names: short texts that the launcher keeps for all ranks.

use std::ffi::{CString, c_char};

use mpi::ffi;

use super::check;
use crate::Result;
use crate::comm::mpi::launcher_barrier::NameService;

/// The names that the launcher of this job keeps.
pub(in super::super) struct LauncherNames;

/// The port that belongs to a name. Nobody connects to it.
const PORT: &str = "none";

/// Larger than every library's `MPI_MAX_PORT_NAME`.
const LONGEST_PORT: usize = 4096;

impl NameService for LauncherNames {
    fn publish(&self, name: &str) -> Result<()> {
        let (name, port) = (text(name), text(PORT));
        // SAFETY: both texts end with a zero byte; the library writes to neither.
        let code = unsafe { ffi::MPI_Publish_name(name.as_ptr(), info(), port.as_ptr()) };
        check("MPI_Publish_name", code)
    }

    fn is_published(&self, name: &str) -> bool {
        let (name, mut port) = (text(name), [0 as c_char; LONGEST_PORT]);
        // SAFETY: the text ends with a zero byte, and `port` has room for every port.
        let code = unsafe { ffi::MPI_Lookup_name(name.as_ptr(), info(), port.as_mut_ptr()) };
        check("MPI_Lookup_name", code).is_ok()
    }
}

fn text(text: &str) -> CString {
    CString::new(text).expect("names contain no zero byte")
}

fn info() -> ffi::MPI_Info {
    // SAFETY: a constant of the library.
    unsafe { ffi::RSMPI_INFO_NULL }
}
