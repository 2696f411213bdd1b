//! A message between two ranks that is under way: a send, or a receive.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Payload;
use super::group_info::OpContext;
use super::stats::PayloadBytes;
use super::wait::poll;
use super::work::BackendWork;
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
pub(super) struct PairMessage {
    pub(super) owner: Arc<dyn MessageOwner>,
    pub(super) context: OpContext,
    pub(super) moved: PayloadBytes,
    pub(super) work: Box<dyn BackendWork>,
    /// If the transport has no thread for messages, the deadline, and the waiting thread moves them.
    pub(super) driven: Option<Duration>,
}

impl PairMessage {
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
        let (waited, group_info) = (start.elapsed(), &context.group_info);
        if blocks {
            group_info.counters.count_exposed(waited);
        }
        match result {
            Ok(result) => {
                group_info.count(context.header.op, moved.to(&result), waited);
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
        let OpContext { group_info, header, .. } = &self.context;
        let named = header.op.rank_named().map(|peer| vec![group_info.ranks[peer]]);
        let missing = named.unwrap_or_else(|| group_info.ranks.to_vec());
        let missing: Vec<String> = missing.iter().map(usize::to_string).collect();
        let (rank, during, missing) = (group_info.own(), header.to_string(), missing.join(", "));
        Err(Error::Timeout { rank, during, missing, waited: start.elapsed() })
    }
}
