//! A short message in memory of its own, which is used again and again.

use std::ffi::c_int;

use mpi::ffi;

use super::{MpiGroup, Tag, any_source, bytes_type, check, request_null, test};
use crate::Result;
use crate::comm::{ElementType, Payload};

/// Bytes of the longest letter. Open MPI sends up to 4 KiB over shared memory without a handshake,
/// its own header included; other libraries and networks allow more.
pub(in super::super) const LETTER: usize = 3840;

/// Paper for one letter, and the request that works on it, if one does.
pub(in super::super) struct Letter {
    memory: Option<Payload>,
    request: Option<ffi::MPI_Request>,
    /// Who has sent it, once it has come.
    source: usize,
}

// SAFETY: memory and a handle, both the same on every thread; calls are made one at a time.
unsafe impl Send for Letter {}

impl Letter {
    pub(in super::super) fn new() -> Self {
        Self { memory: Some(Payload::zeros(ElementType::U8, LETTER)), request: None, source: 0 }
    }

    /// Starts to send the first `len` bytes.
    pub(in super::super) fn send(
        &mut self,
        group: &MpiGroup,
        to: usize,
        tag: Tag,
        len: usize,
    ) -> Result<()> {
        let at = self.bytes_mut()[..len].as_mut_ptr();
        let mut raw = request_null();
        let (len, (to, tag), comm) = (len as c_int, group.address(to, tag), group.world);
        // SAFETY: `len` bytes from `at` are this letter's, which are left alone until it is sent.
        let code = unsafe { ffi::MPI_Isend(at.cast(), len, bytes_type(), to, tag, comm, &mut raw) };
        check("MPI_Isend", code)?;
        self.request = Some(raw);
        Ok(())
    }

    /// Starts to receive one of any length, from this rank or from any.
    pub(in super::super) fn receive(
        &mut self,
        group: &MpiGroup,
        from: Option<usize>,
        tag: Tag,
    ) -> Result<()> {
        let at = self.bytes_mut().as_mut_ptr();
        let mut raw = request_null();
        let tag = group.tag(tag);
        let from = from.map_or_else(any_source, |from| group.ranks[from] as c_int);
        let (len, comm) = (LETTER as c_int, group.world);
        // SAFETY: `len` bytes from `at` are this letter's, which are left alone until it has come.
        let code =
            unsafe { ffi::MPI_Irecv(at.cast(), len, bytes_type(), from, tag, comm, &mut raw) };
        check("MPI_Irecv", code)?;
        self.request = Some(raw);
        Ok(())
    }

    /// Whether it has been sent or received, or nothing was started. Drives MPI's progress.
    pub(in super::super) fn poll(&mut self) -> Result<bool> {
        Ok(self.poll_source()?.is_some())
    }

    /// The rank in the world that has sent it, once it has come.
    pub(in super::super) fn poll_source(&mut self) -> Result<Option<usize>> {
        let Some(request) = &mut self.request else { return Ok(Some(self.source)) };
        let source = test(request)?;
        if let Some(source) = source {
            (self.request, self.source) = (None, source);
        }
        Ok(source)
    }

    /// What is in it, when nothing is under way.
    pub(in super::super) fn bytes(&self) -> &[u8] {
        self.idle();
        self.memory.as_ref().map_or(&[], |memory| memory.bytes())
    }

    /// What is in it, when nothing is under way.
    pub(in super::super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.idle();
        self.memory.as_mut().map_or(&mut [], |memory| memory.bytes_mut())
    }

    fn idle(&self) {
        assert!(self.request.is_none(), "a letter that is under way");
    }
}

impl Drop for Letter {
    fn drop(&mut self) {
        if self.request.is_some() {
            // MPI may still write to it: leaked, which costs nothing in a job that has failed.
            let _leaked = self.memory.take().map(std::mem::ManuallyDrop::new);
        }
    }
}
