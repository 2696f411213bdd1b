//! A message between two ranks that is under way: a send, or a receive.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Payload;
use super::membership::Context;
use super::stats::Moved;
use super::wait::poll;
use super::work::Work;
use crate::{Error, Result};

/// The communicator of a message. A message that is under way keeps it alive.
pub(super) trait MessageOwner: Send + Sync {
    /// Moves messages on, if no other thread does so at the moment.
    fn progress(&self);

    /// Gives the communication thread a turn, in which the transport can tell the others of a failure, if
    /// only a thread with the turn can.
    fn wake(&self);
}

/// A message under way.
pub(super) struct Message {
    pub(super) owner: Arc<dyn MessageOwner>,
    pub(super) context: Context,
    pub(super) moved: Moved,
    pub(super) work: Box<dyn Work>,
    /// If the transport has no thread for messages, the deadline, and the waiting thread moves them.
    pub(super) driven: Option<Duration>,
}

impl Message {
    pub(super) fn is_complete(&mut self) -> bool {
        if self.driven.is_some() {
            self.owner.progress();
        }
        self.work.is_complete()
    }

    pub(super) fn wait_for(&mut self, limit: Duration) -> bool {
        if self.driven.is_none() {
            return self.work.wait_for(limit);
        }
        // After a failure no message can arrive any more, and `wait` returns the failure.
        poll(limit, || self.is_complete() || self.context.failures.first.get().is_some())
    }

    pub(super) fn wait(mut self) -> Result<Payload> {
        let start = Instant::now();
        let blocks = !self.is_complete();
        let driven = self.driven.map_or(Ok(()), |deadline| self.drive(deadline));
        let Self { owner, context, moved, work, .. } = self;
        let result = driven.and_then(|()| work.wait());
        let (waited, membership) = (start.elapsed(), &context.membership);
        if blocks {
            membership.counters.count_exposed(waited);
        }
        match result {
            Ok(result) => {
                membership.count(context.header.op, moved.to(&result), waited);
                Ok(result)
            }
            Err(error) => {
                let error = context.explain(error);
                if context.failures.add(&error) {
                    owner.wake();
                }
                Err(error)
            }
        }
    }

    /// Moves messages from here until this one is complete.
    fn drive(&mut self, deadline: Duration) -> Result<()> {
        let (start, mut failure) = (Instant::now(), None);
        let is_over = poll(deadline, || {
            let is_complete = self.is_complete();
            if !is_complete {
                failure = self.context.failures.first.get();
            }
            is_complete || failure.is_some()
        });
        if is_over {
            return failure.map_or(Ok(()), Err);
        }
        let Context { membership, header, .. } = &self.context;
        let named = header.op.rank_named().map(|peer| vec![membership.ranks[peer]]);
        let missing = named.unwrap_or_else(|| membership.ranks.to_vec());
        let missing: Vec<String> = missing.iter().map(usize::to_string).collect();
        let (rank, during, missing) = (membership.own(), header.to_string(), missing.join(", "));
        Err(Error::Timeout { rank, during, missing, waited: start.elapsed() })
    }
}
