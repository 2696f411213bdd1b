//! What a backend does for an operation after the operation has been started.

use std::time::Duration;

use super::Payload;
use super::wait::poll;
use crate::Result;

/// An operation that a backend has started. The backend completes it without the caller.
pub(crate) trait BackendWork: Send {
    /// Whether `wait` would not block.
    fn is_complete(&mut self) -> bool;

    /// Blocks until the operation is complete, but at most for `limit`. Returns whether it is.
    fn wait_for(&mut self, limit: Duration) -> bool {
        poll(limit, || self.is_complete())
    }

    /// Blocks until the operation is complete on this rank.
    fn wait(self: Box<Self>) -> Result<Payload>;

    /// See [`Pending::wait_on_stream`](super::Pending::wait_on_stream).
    fn wait_on_stream(self: Box<Self>) -> Result<Payload> {
        self.wait()
    }
}

/// An operation that was complete, or had failed, when the backend returned.
impl BackendWork for Result<Payload> {
    fn is_complete(&mut self) -> bool {
        true
    }

    fn wait(self: Box<Self>) -> Result<Payload> {
        *self
    }
}
