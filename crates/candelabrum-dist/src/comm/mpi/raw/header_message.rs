//! A short message in memory of its own, which is reused.

use std::ffi::c_int;

use mpi::ffi;

use super::{MessageTag, MpiGroup, any_source, bytes_type, check, request_null, test};
use crate::Result;
use crate::comm::{ElementType, Payload};

/// Bytes of the longest header message. Open MPI sends up to 4 KiB over shared memory without a handshake,
/// its own header included; other libraries and networks allow more.
pub(in super::super) const HEADER_MESSAGE: usize = 3840;

/// The memory of one header message, and the request that works on it, if there is one.
pub(in super::super) struct HeaderMessage {
    memory: Option<Payload>,
    request: Option<ffi::MPI_Request>,
    /// The sender's rank in the world, after the header message has arrived.
    source: usize,
}

// SAFETY: the memory and the handle are the same on every thread; calls are made one at a time.
unsafe impl Send for HeaderMessage {}

impl HeaderMessage {
    pub(in super::super) fn new() -> Self {
        Self {
            memory: Some(Payload::zeros(ElementType::U8, HEADER_MESSAGE)),
            request: None,
            source: 0,
        }
    }

    /// Starts to send the first `len` bytes.
    pub(in super::super) fn send(
        &mut self,
        group: &MpiGroup,
        to: usize,
        tag: MessageTag,
        len: usize,
    ) -> Result<()> {
        let at = self.bytes_mut()[..len].as_mut_ptr();
        let mut raw = request_null();
        let (len, (to, tag), comm) = (len as c_int, group.address(to, tag), group.world);
        // SAFETY: `len` bytes from `at` are this header message's, and are not touched until it is sent.
        let code = unsafe { ffi::MPI_Isend(at.cast(), len, bytes_type(), to, tag, comm, &mut raw) };
        check("MPI_Isend", code)?;
        self.request = Some(raw);
        Ok(())
    }

    /// Starts to receive a header message of any length, from the rank `from`, or from any rank.
    pub(in super::super) fn receive(
        &mut self,
        group: &MpiGroup,
        from: Option<usize>,
        tag: MessageTag,
    ) -> Result<()> {
        let at = self.bytes_mut().as_mut_ptr();
        let mut raw = request_null();
        let tag = group.tag(tag);
        let from = from.map_or_else(any_source, |from| group.ranks[from] as c_int);
        let (len, comm) = (HEADER_MESSAGE as c_int, group.world);
        // SAFETY: `len` bytes from `at` are this header message's, and are not touched until it arrives.
        let code =
            unsafe { ffi::MPI_Irecv(at.cast(), len, bytes_type(), from, tag, comm, &mut raw) };
        check("MPI_Irecv", code)?;
        self.request = Some(raw);
        Ok(())
    }

    /// Whether no send or receive is under way. Drives MPI's progress.
    pub(in super::super) fn poll(&mut self) -> Result<bool> {
        Ok(self.poll_source()?.is_some())
    }

    /// The sender's rank in the world, once the header message has arrived.
    pub(in super::super) fn poll_source(&mut self) -> Result<Option<usize>> {
        let Some(request) = &mut self.request else { return Ok(Some(self.source)) };
        let source = test(request)?;
        if let Some(source) = source {
            (self.request, self.source) = (None, source);
        }
        Ok(source)
    }

    /// Takes back a receive for which no header message comes. Otherwise it would take the first header message of a
    /// later group with the same number.
    pub(in super::super) fn withdraw(&mut self) -> Result<()> {
        let Some(request) = &mut self.request else { return Ok(()) };
        // SAFETY: a receive of ours that is under way.
        check("MPI_Cancel", unsafe { ffi::MPI_Cancel(request) })?;
        // A receive that was cancelled is complete whatever other ranks do.
        while !self.poll()? {}
        Ok(())
    }

    /// The header message's bytes. No request may be under way.
    pub(in super::super) fn bytes(&self) -> &[u8] {
        self.idle();
        self.memory.as_ref().map_or(&[], |memory| memory.bytes())
    }

    /// The header message's bytes. No request may be under way.
    pub(in super::super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.idle();
        self.memory.as_mut().map_or(&mut [], |memory| memory.bytes_mut())
    }

    fn idle(&self) {
        assert!(self.request.is_none(), "a header message that is under way");
    }
}

impl Drop for HeaderMessage {
    fn drop(&mut self) {
        if self.request.is_some() {
            // MPI may still use the memory, so it is leaked. In a failed job this is harmless.
            let _leaked = self.memory.take().map(std::mem::ManuallyDrop::new);
        }
    }
}
