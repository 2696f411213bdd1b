//! A collective that has been started.

use std::fmt;
use std::time::Duration;

use super::Payload;
use super::wait::{Load, Wait};
use crate::Result;

/// An operation under way. [`wait`](Self::wait) returns its payload.
#[must_use = "a collective is finished, and its errors are seen, only when it is waited for"]
pub struct Pending(Box<dyn Started>);

/// A backend's view of an operation that it has started.
pub(crate) trait Started: Send {
    /// Whether `wait` would not block.
    fn is_complete(&mut self) -> bool;
    /// See [`Pending::needs_a_wait`].
    fn needs_a_wait(&self) -> bool {
        false
    }
    /// See [`Pending::wait_for`].
    fn wait_for(&mut self, limit: Duration) -> bool {
        let (mut load, mut wait) = (Load::default(), Wait::begin());
        while !self.is_complete() {
            if wait.pause(&mut load) >= limit {
                return false;
            }
        }
        true
    }
    /// Blocks until the operation is complete on this rank.
    fn wait(self: Box<Self>) -> Result<Payload>;
    /// See [`Pending::wait_on_stream`].
    fn wait_on_stream(self: Box<Self>) -> Result<Payload> {
        self.wait()
    }
}

impl Pending {
    /// An operation that its backend completes.
    pub(crate) fn new(started: impl Started + 'static) -> Self {
        Self(Box::new(started))
    }

    /// An operation that is already complete.
    pub(crate) fn ready(result: Result<Payload>) -> Self {
        Self::new(Ready(result))
    }

    /// Whether the operation is complete on this rank, or has failed, so that [`Self::wait`] does
    /// not block.
    pub fn is_complete(&mut self) -> bool {
        self.0.is_complete()
    }

    /// Whether the operation is carried out by the thread that waits for it, so that other work before the
    /// wait only delays it.
    pub(crate) fn needs_a_wait(&self) -> bool {
        self.0.needs_a_wait()
    }

    /// Blocks until the operation is complete on this rank or has failed, but at most for `limit`.
    /// Returns whether [`Self::wait`] does not block. A passed limit is no error, and no deadline
    /// applies, so a server can wait for requests for as long as the other ranks run.
    pub fn wait_for(&mut self, limit: Duration) -> bool {
        self.0.wait_for(limit)
    }

    /// Blocks until the operation is complete on this rank.
    ///
    /// # Errors
    /// A failure of any rank, a passed deadline or a disagreement between ranks.
    pub fn wait(self) -> Result<Payload> {
        self.0.wait()
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
        self.0.wait_on_stream()
    }
}

struct Ready(Result<Payload>);

impl Started for Ready {
    fn is_complete(&mut self) -> bool {
        true
    }

    fn wait(self: Box<Self>) -> Result<Payload> {
        self.0
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pending")
    }
}
