//! The traits of a blocking backend. [`super::threaded`] makes communicators of a [`RankTransport`].

use std::io::ErrorKind;
use std::sync::Arc;

use super::collective::CollectiveHeader;
use super::group_info::OpContext;
use super::messages::Messages;
use super::work::BackendWork;
use super::{BorrowedElements, ElementType, Payload};
use crate::{Error, Result};

/// The blocking operations of this rank in one group. One queue runs the operations of the transports of all groups
/// of a rank, one call at a time. Messages between two ranks are independent of these calls
/// ([`Messages`]).
///
/// Ranks in operations and headers are numbered within the group. Ranks in errors are numbered in
/// the world.
pub(crate) trait RankTransport: Send + Sized + 'static {
    /// Whether messages move only while a thread that has the turn calls [`Self::progress`].
    const DRIVES_MESSAGES: bool = false;

    /// Whether [`Self::announce`] has an effect.
    const TAKES_ANNOUNCEMENTS: bool = false;

    /// Whether an all-reduce carries out the search that a payload asks for.
    const FINDS_BAD_NUMBERS: bool = false;

    fn backend(&self) -> &'static str;

    /// Whether every thread may call the transport, one at a time. If not, only the thread that
    /// made the world's transport calls that transport and the transports split off it.
    fn any_thread(&self) -> bool {
        true
    }

    /// Whether payloads may lie in a device's memory.
    fn takes_device_memory(&self) -> bool {
        false
    }

    /// Whether an operation on `bytes` bytes, in a world of `ranks` ranks, is left to the thread that waits
    /// for it, because another thread would take the time from a thread that computes.
    fn is_left_to_a_wait(bytes: usize, ranks: usize) -> bool {
        let _ = (bytes, ranks);
        false
    }

    fn messages(&self) -> Arc<dyn Messages>;

    /// Gets the headers of the operations that this rank starts next, in their order.
    fn announce(&mut self, headers: Vec<CollectiveHeader>) {
        let _ = headers;
    }

    /// Compares `header` with the headers of the other ranks (see
    /// [`super::collective::check_agreement`]), carries out its collective and returns the result.
    fn execute(&mut self, header: CollectiveHeader, payload: Payload) -> Result<Payload>;

    /// As [`Self::execute`], for numbers in a device's memory. It may return while the device works,
    /// so that the next operation can begin. `context` is for a failure after that.
    fn begin(
        &mut self,
        header: CollectiveHeader,
        payload: Payload,
        context: &Arc<OpContext>,
    ) -> Result<Box<dyn BackendWork>> {
        let _ = context;
        Ok(Box::new(self.execute(header, payload)))
    }

    /// Carries out the collective of `header`, an all-reduce or a broadcast, on numbers in the
    /// caller's memory and replaces them by the result. Other ranks may call [`Self::execute`] for
    /// the same collective.
    fn execute_in_place(
        &mut self,
        header: CollectiveHeader,
        values: &mut BorrowedElements<'_>,
    ) -> Result<()> {
        values.by_copy(header.op, |payload| self.execute(header, payload))
    }

    /// Allocates zeroed memory for the `len` elements of `header`, a [`CollectiveHeader::of_allocation`]. All
    /// ranks call it together.
    fn alloc(&mut self, header: CollectiveHeader) -> Result<Payload> {
        self.execute(header, Payload::zeros(header.element, 0))?;
        zeros(header.element, header.len)
    }

    /// Makes the transport of a new group. `members` are its ranks, as numbers in this group and in
    /// the order of the new group; this rank is one of them. A rank that joins no group passes
    /// `None` and gets `None`. All ranks of this group call it together. All ranks of a new group
    /// pass the same `members`.
    fn split(&mut self, members: Option<&[usize]>) -> Result<Option<Self>> {
        let _ = members;
        Err(Error::Unsupported { what: format!("splitting ranks over {}", self.backend()) })
    }

    /// Advances the work in the background: the rest of operations that have returned, and messages
    /// if the transport drives them. Returns whether work is left, so that the queue calls it
    /// again soon.
    fn progress(&mut self) -> bool {
        false
    }

    /// Reports to the other ranks that this rank starts no more operations in this group, and does
    /// not wait for them. The transport of a group is dropped afterwards. The world's transport
    /// lives on until [`Self::finish`].
    fn leave(&mut self) {}

    /// Ends this rank's part in the job, after the rank has left every group. May wait for the
    /// other ranks. It is called only on the world's transport.
    fn finish(&mut self);
}

/// Zeros on the heap, or an error if the allocator has no room for them. [`Payload::zeros`] ends the
/// process in that case.
pub(super) fn zeros(element: ElementType, len: usize) -> Result<Payload> {
    let bytes = len.checked_mul(element.size()).ok_or_else(|| no_room(element, len))?;
    Vec::<u8>::new().try_reserve_exact(bytes).map_err(|_| no_room(element, len))?;
    Ok(Payload::zeros(element, len))
}

/// The error of a rank that has no memory for `len` elements.
pub(super) fn no_room(element: ElementType, len: usize) -> Error {
    let bytes = len as u128 * element.size() as u128;
    Error::io(format!("allocate {bytes} bytes of memory"), ErrorKind::OutOfMemory)
}
