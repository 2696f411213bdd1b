//! What a backend has to do; [`super::threaded`] makes communicators of it.

use super::collective::Header;
use super::{Collective, ElementType, Payload};
use crate::{Error, Result};

/// One group's ranks as a backend sees them: blocking, one call at a time. All transports of a rank,
/// that of its world and those of the groups split off it, take turns in one engine.
///
/// Ranks in operations and headers are numbered within the group. Ranks in errors are numbered in
/// the world.
pub(crate) trait Transport: Send + Sized + 'static {
    /// The backend's name.
    fn backend(&self) -> &'static str;

    /// Whether every thread may call it, one at a time. Where not, only the thread that made the
    /// world's transport calls it and those split off it.
    fn any_thread(&self) -> bool {
        true
    }

    /// Whether buffers may lie in a device's memory.
    fn takes_device_memory(&self) -> bool {
        false
    }

    /// Carries out the operation of `header`, having compared it with the other ranks' (see
    /// [`super::collective::check_agreement`]), and gives the result's buffer.
    fn execute(&mut self, header: Header, buffer: Payload) -> Result<Payload>;

    /// Zeroed memory that all ranks allocate together. `sequence` counts like a header's.
    fn alloc(&mut self, sequence: u64, element: ElementType, len: usize) -> Result<Payload> {
        let header = Header { sequence, op: Collective::Barrier, element, len, tag: 0 };
        self.execute(header, Payload::zeros(element, 0))?;
        Ok(Payload::zeros(element, len))
    }

    /// The transport of the group of `members`: ranks of this one's group, of which this rank is
    /// one, in the order of their numbers in the new group. `None` for a rank that joins none, which
    /// gets `None`. All ranks of this one's group call it together, those of each new group with the
    /// same members.
    fn split(&mut self, members: Option<&[usize]>) -> Result<Option<Self>> {
        let _ = members;
        Err(Error::Unsupported { what: format!("splitting ranks over {}", self.backend()) })
    }

    /// Whether its operations are work of this host's processors alone, with nothing to wait for but
    /// other ranks.
    fn is_on_processors(&self) -> bool {
        false
    }

    /// Moves on what goes on in the background after its operation was answered; whether something
    /// still does, so that this is to be called again soon.
    fn progress(&mut self) -> bool {
        false
    }

    /// This rank starts nothing more in this group: tells the others, and does not wait for them. A
    /// group's transport is dropped after that, the world's lives on until [`Self::finish`].
    fn leave(&mut self) {}

    /// Ends this rank's part in the world, when it has left it and every group. It may wait for the
    /// other ranks. Called for the world's transport alone.
    fn finish(&mut self);
}

/// How a rank tells the others that it has failed, from whichever thread notices.
pub(crate) trait Abort: Send + Sync {
    /// Tells every other rank, as far as that is possible, and may end this process: whoever calls
    /// it has said why.
    fn abort(&self, message: &str);

    /// Tells every other rank if that can be done without ending this process, which has yet to say
    /// why.
    fn fail(&self, error: &Error) {
        let _ = error;
    }

    /// The failure of another rank, if one is known: asked by whoever waits for something else than
    /// this backend.
    fn failure(&self) -> Option<Error> {
        None
    }
}
