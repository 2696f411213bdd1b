//! An operation that has been started: the one type for whoever carries it out.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Payload;
use super::group_info::OpContext;
use super::message::PairMessage;
use super::queue::{TaskHandle, TaskTime};
use super::stats::{Counters, PayloadBytes};
use super::wait::poll;
use super::work::BackendWork;
use crate::Result;

/// An operation under way. [`wait`](Self::wait) returns its payload.
#[must_use = "a collective is finished, and its errors are seen, only when it is waited for"]
pub struct Pending(PendingState);

/// How far the operation is, and who completes it.
enum PendingState {
    /// It is complete, or was refused.
    Ready(Result<Payload>),
    /// It is a task in the queue of the rank's operations. Waits are counted.
    Queued(TaskHandle<Pending>, Arc<Counters>),
    /// It is a message between two ranks.
    PairMessage(Box<PairMessage>),
    /// A device carries it out, after its task has ended.
    Device(Device),
    /// A backend without a queue carries it out.
    Backend(Box<dyn BackendWork>),
}

/// An operation on a device, which is counted or reported at its end.
struct Device {
    work: Box<dyn BackendWork>,
    context: Arc<OpContext>,
    moved: PayloadBytes,
    start: Instant,
}

impl Pending {
    /// An operation that is already complete.
    pub(crate) fn ready(result: Result<Payload>) -> Self {
        Self(PendingState::Ready(result))
    }

    pub(super) fn queued(handle: TaskHandle<Self>, counters: &Arc<Counters>) -> Self {
        Self(PendingState::Queued(handle, Arc::clone(counters)))
    }

    pub(super) fn message(message: PairMessage) -> Self {
        Self(PendingState::PairMessage(Box::new(message)))
    }

    pub(super) fn on_device(
        work: Box<dyn BackendWork>,
        context: Arc<OpContext>,
        moved: PayloadBytes,
        start: Instant,
    ) -> Self {
        Self(PendingState::Device(Device { work, context, moved, start }))
    }

    pub(crate) fn backend(work: impl BackendWork + 'static) -> Self {
        Self(PendingState::Backend(Box::new(work)))
    }

    /// Whether the operation is complete on this rank, or has failed, so that [`Self::wait`] does
    /// not block.
    pub fn is_complete(&mut self) -> bool {
        if let PendingState::Queued(handle, _) = &mut self.0 {
            let Some(begun) = handle.take_if_complete() else { return false };
            *self = begun.unwrap_or_else(|error| Self::ready(Err(error)));
        }
        match &mut self.0 {
            PendingState::Ready(_) => true,
            PendingState::Queued(..) => false,
            PendingState::PairMessage(message) => message.is_complete(),
            PendingState::Device(Device { work, .. }) | PendingState::Backend(work) => {
                work.is_complete()
            }
        }
    }

    /// Whether the operation is carried out by the thread that waits for it, so that other work before the
    /// wait only delays it.
    pub(crate) fn needs_a_wait(&self) -> bool {
        matches!(&self.0, PendingState::Queued(handle, _) if handle.when() == TaskTime::WaitedFor)
    }

    /// Blocks until the operation is complete on this rank or has failed, but at most for `limit`.
    /// Returns whether [`Self::wait`] does not block. A passed limit is no error, and no deadline
    /// applies, so a server can wait for requests for as long as the other ranks run.
    pub fn wait_for(&mut self, limit: Duration) -> bool {
        match &mut self.0 {
            PendingState::PairMessage(message) => message.wait_for(limit),
            PendingState::Backend(work) => work.wait_for(limit),
            PendingState::Ready(_) | PendingState::Queued(..) | PendingState::Device(_) => {
                poll(limit, || self.is_complete())
            }
        }
    }

    /// Blocks until the operation is complete on this rank.
    ///
    /// # Errors
    /// A failure of any rank, a passed deadline or a disagreement between ranks.
    pub fn wait(self) -> Result<Payload> {
        self.end(|work| work.wait())
    }

    /// Leaves the wait for a result in a GPU's memory to the stream of that memory: this method
    /// returns as soon as the GPU has been given the operation, and work that is given to the stream
    /// from now on runs after it. For a result on the host it is [`wait`](Self::wait).
    ///
    /// If the operation fails after this method has returned, the numbers are arbitrary, and
    /// [`Communicator::failure`](super::Communicator::failure) returns the error at the latest when
    /// the stream has reached the end of the operation. So a caller that has waited for the stream
    /// and then finds no failure has the right numbers.
    ///
    /// # Errors
    /// A failure of any rank before this method returns, or a disagreement between ranks.
    pub fn wait_on_stream(self) -> Result<Payload> {
        self.end(|work| work.wait_on_stream())
    }

    /// Waits, for an operation of a backend by `wait`, and counts the time in which it blocks.
    fn end(mut self, wait: fn(Box<dyn BackendWork>) -> Result<Payload>) -> Result<Payload> {
        if let PendingState::PairMessage(message) = self.0 {
            return message.wait();
        }
        let (blocks, start) = (!self.is_complete(), Instant::now());
        match self.0 {
            PendingState::Ready(result) => result,
            PendingState::PairMessage(message) => message.wait(),
            PendingState::Queued(handle, counters) => {
                let begun = handle.wait();
                counters.count_exposed(start.elapsed());
                begun?.end(wait)
            }
            PendingState::Device(Device { work, context, moved, start: begun }) => {
                let result = wait(work);
                if blocks {
                    context.group_info.counters.count_exposed(start.elapsed());
                }
                let result = result.map_err(|error| context.fail(error))?;
                let moved = moved.to(&result);
                context.group_info.count(context.header.op, moved, begun.elapsed());
                Ok(result)
            }
            PendingState::Backend(work) => wait(work),
        }
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pending")
    }
}
