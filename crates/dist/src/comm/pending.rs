//! A collective that has been started.

use std::fmt;

use super::Buffer;
use crate::Result;

/// An operation under way; [`wait`](Self::wait) gives its buffer back.
#[must_use = "a collective is finished, and its errors are seen, only when it is waited for"]
pub struct Pending(Box<dyn FnOnce() -> Result<Buffer> + Send>);

impl Pending {
    /// An operation that `wait` completes.
    pub(crate) fn new(wait: impl FnOnce() -> Result<Buffer> + Send + 'static) -> Self {
        Self(Box::new(wait))
    }

    /// Blocks until the operation is complete on this rank.
    ///
    /// # Errors
    /// What went wrong, here or on another rank.
    pub fn wait(self) -> Result<Buffer> {
        (self.0)()
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pending")
    }
}
