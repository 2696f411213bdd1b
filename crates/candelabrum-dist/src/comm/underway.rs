//! An operation that a device carries out after the engine's task has ended.

use std::sync::Arc;
use std::time::Instant;

use super::membership::Context;
use super::pending::Started;
use super::stats::Moved;
use super::{Payload, Pending};
use crate::Result;

/// Counts the operation, and stores and reports its failure.
pub(super) struct Underway {
    pub(super) inner: Pending,
    pub(super) context: Arc<Context>,
    pub(super) moved: Moved,
    pub(super) start: Instant,
}

impl Underway {
    fn end(self, wait: impl FnOnce(Pending) -> Result<Payload>) -> Result<Payload> {
        let Self { inner, context, moved, start } = self;
        match wait(inner) {
            Ok(result) => {
                let (op, moved) = (context.header.op, moved.to(&result));
                context.membership.count(op, moved, start.elapsed());
                Ok(result)
            }
            Err(error) => Err(context.fail(error)),
        }
    }
}

impl Started for Underway {
    fn is_complete(&mut self) -> bool {
        self.inner.is_complete()
    }

    fn wait(self: Box<Self>) -> Result<Payload> {
        self.end(Pending::wait)
    }

    fn wait_on_stream(self: Box<Self>) -> Result<Payload> {
        self.end(Pending::wait_on_stream)
    }
}
