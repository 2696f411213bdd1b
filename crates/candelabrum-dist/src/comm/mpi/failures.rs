//! The failures of ranks. A rank that fails sends the cause, in a header message, to all other ranks.
//!
//! Only the thread that has the queue's turn calls MPI. So a rank that fails stores the cause
//! here, and the next thread that has the turn sends it. Every wait looks for these header messages.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::raw::{HEADER_MESSAGE, HeaderMessage, MessageTag, MpiGroup};
use crate::comm::failures::FirstFailure;
use crate::{Error, Result};

/// A wait that has lasted this long looks for failures.
pub(super) const LOOK_AFTER: Duration = Duration::from_millis(1);

/// The failures that one rank of the world knows of.
pub(super) struct MpiFailures {
    world: MpiGroup,
    rank: usize,
    /// The first failure that this rank knows of, its own or another rank's.
    failure: FirstFailure,
    /// The cause of this rank's failure, until it has been sent.
    untold: Mutex<Option<String>>,
    /// Whether this rank has failed, or a header message of a rank that has failed has arrived.
    failed: AtomicBool,
}

impl MpiFailures {
    pub(super) fn new(world: MpiGroup, rank: usize, failure: FirstFailure) -> Self {
        Self { world, rank, failure, untold: Mutex::default(), failed: AtomicBool::new(false) }
    }

    /// Notes a failure. MPI will then not be finalised, see [`super::life`].
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Whether this rank or another one has failed. A rank that knows of a failure says no goodbye:
    /// one that does not know of it yet would take the goodbye for the cause.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Stores the cause of this rank's failure. The next call of [`Self::tell`] sends it.
    pub(super) fn leave(&self, cause: String) {
        *self.untold.lock() = Some(cause);
    }

    /// Sends the cause if this rank has failed. Only the thread that has the turn calls this.
    pub(super) fn tell(&self) {
        let Some(cause) = self.untold.lock().take() else { return };
        for other in (0..self.world.ranks.len()).filter(|&other| other != self.rank) {
            if let Err(error) = self.tell_rank(other, cause.as_bytes()) {
                tracing::error!("telling rank {other} of a failure: {error}");
            }
        }
    }

    fn tell_rank(&self, other: usize, cause: &[u8]) -> Result<()> {
        let (mut message, len) = (HeaderMessage::new(), cause.len().min(HEADER_MESSAGE));
        message.bytes_mut()[..len].copy_from_slice(&cause[..len]);
        // The header message is dropped before MPI reports that it has been sent, so its memory is leaked.
        message.send(&self.world, other, MessageTag::Failure, len)
    }

    /// Looks for header messages of ranks that have failed. Only the thread that has the turn calls this.
    ///
    /// # Errors
    /// The first failure that this rank knows of.
    pub(super) fn look(&self) -> Result<()> {
        if let Some(peer) = self.world.has_sent(MessageTag::Failure)? {
            let mut message = HeaderMessage::new();
            message.receive(&self.world, Some(peer), MessageTag::Failure)?;
            // The header message has arrived, so this loop is short.
            while !message.poll()? {}
            let text = String::from_utf8_lossy(message.bytes());
            let message = text.trim_end_matches('\0').to_owned();
            self.failure.set(&Error::PeerFailed { peer, message });
            self.fail();
        }
        self.failure.get().map_or(Ok(()), Err)
    }
}
