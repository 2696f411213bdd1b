//! The pending result of a task of the engine.

use std::sync::Arc;
use std::time::Instant;

use super::Payload;
use super::engine::{Ticket, When};
use super::members::Members;
use super::pending::Started;
use super::stats::Counters;
use super::transport::{Progress, Transport};
use crate::Result;

/// The pending result of a task of the engine.
pub(super) struct Answer<T: Transport> {
    counters: Arc<Counters>,
    state: State<T>,
}

enum State<T: Transport> {
    /// The engine has the task.
    Queued(Ticket<Members<T>, Progress>),
    /// The task has ended.
    Begun(Result<Progress>),
}

impl<T: Transport> State<T> {
    fn begun(self) -> Result<Progress> {
        match self {
            Self::Queued(ticket) => ticket.wait(),
            Self::Begun(progress) => progress,
        }
    }
}

impl<T: Transport> Answer<T> {
    pub(super) fn new(counters: Arc<Counters>, ticket: Ticket<Members<T>, Progress>) -> Self {
        Self { counters, state: State::Queued(ticket) }
    }

    /// Waits with `wait` and counts the time in which it blocks.
    fn end(mut self, wait: impl FnOnce(Progress) -> Result<Payload>) -> Result<Payload> {
        let (blocks, start) = (!self.is_complete(), Instant::now());
        let result = self.state.begun().and_then(wait);
        if blocks {
            self.counters.count_exposed(start.elapsed());
        }
        result
    }
}

impl<T: Transport> Started for Answer<T> {
    fn is_complete(&mut self) -> bool {
        if let State::Queued(ticket) = &mut self.state {
            let Some(progress) = ticket.take_if_complete() else { return false };
            self.state = State::Begun(progress);
        }
        match &mut self.state {
            State::Begun(Ok(Progress::Underway(pending))) => pending.is_complete(),
            State::Begun(_) => true,
            State::Queued(_) => false,
        }
    }

    fn needs_a_wait(&self) -> bool {
        matches!(&self.state, State::Queued(ticket) if ticket.when() == When::WaitedFor)
    }

    fn wait(self: Box<Self>) -> Result<Payload> {
        self.end(Progress::wait)
    }

    fn wait_on_stream(self: Box<Self>) -> Result<Payload> {
        self.end(Progress::wait_on_stream)
    }
}
