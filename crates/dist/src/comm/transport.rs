//! What a backend has to do; [`super::threaded`] makes communicators of it.

use std::sync::Arc;

use super::collective::Header;
use super::{Borrowed, Payload, Pending};
use crate::{Error, Result};

/// One group's ranks as a backend sees them: blocking, one call at a time. All transports of a rank,
/// that of its world and those of the groups split off it, take turns in one engine. Messages of one
/// rank to another go beside that ([`Messages`]).
///
/// Ranks in operations and headers are numbered within the group. Ranks in errors are numbered in
/// the world.
pub(crate) trait Transport: Send + Sized + 'static {
    /// Whether messages move only while a thread that has the turn calls [`Self::progress`].
    const DRIVES_MESSAGES: bool = false;

    /// The backend's name.
    fn backend(&self) -> &'static str;

    /// Whether every thread may call it, one at a time. Where not, only the thread that made the
    /// world's transport calls it and those split off it.
    fn any_thread(&self) -> bool {
        true
    }

    /// Whether payloads may lie in a device's memory.
    fn takes_device_memory(&self) -> bool {
        false
    }

    /// Operations on fewer bytes take less time than waking a thread for them, and would take that
    /// time from a thread that computes.
    fn light_below(&self) -> usize {
        0
    }

    /// The messages of this group.
    fn messages(&self) -> Arc<dyn Messages>;

    /// Carries out the collective of `header`, having compared it with the other ranks' (see
    /// [`super::collective::check_agreement`]), and gives the result's payload.
    fn execute(&mut self, header: Header, payload: Payload) -> Result<Payload>;

    /// Carries out the collective of `header`, an all-reduce or a broadcast, on numbers in the caller's
    /// memory and replaces them by the result. Other ranks may call [`Self::execute`] for the same
    /// collective.
    fn execute_in_place(&mut self, header: Header, values: &mut Borrowed<'_>) -> Result<()> {
        values.by_copy(header.op, |payload| self.execute(header, payload))
    }

    /// Zeroed memory that all ranks allocate together, as [`Header::of_allocation`] says.
    fn alloc(&mut self, header: Header) -> Result<Payload> {
        self.execute(header, Payload::zeros(header.element, 0))?;
        Ok(Payload::zeros(header.element, header.len))
    }

    /// The transport of the group of `members`: ranks of this one's group, of which this rank is
    /// one, in the order of their numbers in the new group. `None` for a rank that joins none, which
    /// gets `None`. All ranks of this one's group call it together, those of each new group with the
    /// same members.
    fn split(&mut self, members: Option<&[usize]>) -> Result<Option<Self>> {
        let _ = members;
        Err(Error::Unsupported { what: format!("splitting ranks over {}", self.backend()) })
    }

    /// Moves on what goes on in the background: operations that were answered, and messages where the
    /// transport drives them. Whether something still goes on, so that this is to be called again
    /// soon.
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

/// The messages of one rank of a group to another. Any thread may use it at any time: a message waits
/// neither for the engine's turn nor for a collective.
pub(crate) trait Messages: Send + Sync {
    /// Starts a send or a receive. Receives get messages in the order in which they were started.
    /// Waiting for the result fails after the deadline, except where the transport drives messages:
    /// there the caller looks at the clock.
    fn start(&self, header: Header, payload: Payload) -> Pending;
}

/// How a rank tells the others that it has failed, from whichever thread notices.
pub(crate) trait Abort: Send + Sync {
    /// Tells every other rank, as far as that is possible, and may end this process: whoever calls
    /// it has said why.
    fn abort(&self, message: &str);

    /// Tells every other rank if that can be done without ending this process, which has yet to say
    /// why. Where only a thread that has the engine's turn can, [`Transport::progress`] does it.
    fn fail(&self, error: &Error) {
        let _ = error;
    }

    /// The failure of another rank, if one is known: asked by whoever waits for something else than
    /// this backend.
    fn failure(&self) -> Option<Error> {
        None
    }
}
