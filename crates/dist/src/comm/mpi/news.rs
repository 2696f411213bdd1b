//! News of ranks that have failed by themselves: a letter with the cause, from the rank that has failed
//! to every other rank of the world.
//!
//! Only the thread that has the engine's turn makes calls of MPI. So a rank that fails leaves the cause
//! here, and the next thread that has the turn sends it. A rank that waits looks for such letters,
//! whatever it waits for and in whichever group.

use std::time::Duration;

use parking_lot::Mutex;

use super::raw::{LETTER, Letter, MpiGroup, Tag};
use crate::comm::members::Failure;
use crate::{Error, Result};

/// A wait that has lasted so long looks for news.
pub(super) const LOOK_AFTER: Duration = Duration::from_millis(1);

/// What one rank of the world knows.
pub(super) struct News {
    world: MpiGroup,
    rank: usize,
    /// The first failure that this rank knows of, its own or another's.
    failure: Failure,
    /// Why this rank has failed, until the others have been told.
    untold: Mutex<Option<String>>,
}

impl News {
    pub(super) fn new(world: MpiGroup, rank: usize, failure: Failure) -> Self {
        Self { world, rank, failure, untold: Mutex::default() }
    }

    /// This rank has failed; the next call of [`Self::tell`] tells the others.
    pub(super) fn leave(&self, cause: String) {
        *self.untold.lock() = Some(cause);
    }

    /// Tells the other ranks if this one has failed. For the thread that has the turn.
    pub(super) fn tell(&self) {
        let Some(cause) = self.untold.lock().take() else { return };
        for other in (0..self.world.ranks.len()).filter(|&other| other != self.rank) {
            if let Err(error) = self.tell_rank(other, cause.as_bytes()) {
                tracing::error!("telling rank {other} of a failure: {error}");
            }
        }
    }

    fn tell_rank(&self, other: usize, cause: &[u8]) -> Result<()> {
        let (mut letter, len) = (Letter::new(), cause.len().min(LETTER));
        letter.bytes_mut()[..len].copy_from_slice(&cause[..len]);
        // Its memory stays where the message is not gone when the letter is dropped.
        letter.send(&self.world, other, Tag::Failure, len)
    }

    /// Looks for letters of ranks that have failed. For the thread that has the turn.
    ///
    /// # Errors
    /// The first failure that this rank knows of.
    pub(super) fn look(&self) -> Result<()> {
        if let Some(peer) = self.world.has_sent(Tag::Failure)? {
            let mut letter = Letter::new();
            letter.receive(&self.world, Some(peer), Tag::Failure)?;
            // It is there: this takes a moment.
            while !letter.poll()? {}
            let text = String::from_utf8_lossy(letter.bytes());
            let message = text.trim_end_matches('\0').to_owned();
            self.failure.set(&Error::PeerFailed { peer, message });
        }
        self.failure.get().map_or(Ok(()), Err)
    }
}
