//! A collective that has been started.

use std::fmt;

use super::Payload;
use crate::Result;

/// An operation under way; [`wait`](Self::wait) gives its payload back.
#[must_use = "a collective is finished, and its errors are seen, only when it is waited for"]
pub struct Pending(Box<dyn Started>);

/// What a backend knows of an operation that it has started.
pub(crate) trait Started: Send {
    /// Whether `wait` would not block.
    fn is_complete(&mut self) -> bool;
    /// Blocks until the operation is complete on this rank.
    fn wait(self: Box<Self>) -> Result<Payload>;
}

impl Pending {
    /// An operation that its backend looks after.
    pub(crate) fn new(started: impl Started + 'static) -> Self {
        Self(Box::new(started))
    }

    /// An operation that is complete already.
    pub(crate) fn ready(result: Result<Payload>) -> Self {
        Self::new(Ready(result))
    }

    /// Whether the operation is complete on this rank, or has failed: then [`Self::wait`] does not
    /// block.
    pub fn is_complete(&mut self) -> bool {
        self.0.is_complete()
    }

    /// Blocks until the operation is complete on this rank.
    ///
    /// # Errors
    /// What went wrong, here or on another rank.
    pub fn wait(self) -> Result<Payload> {
        self.0.wait()
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
