//! The world of one: every collective is done when it is started.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::stats::{Counters, Moved};
use super::{Collective, CommStats, Communicator, ElementType, Group, Payload, Pending};
use crate::{Error, Result};

/// The communicator of a program that runs alone. What it sends to itself it can receive.
#[derive(Debug, Default)]
pub(crate) struct Single {
    counters: Counters,
    mailbox: Mutex<VecDeque<Payload>>,
}

impl Single {
    fn execute(&self, op: Collective, buffer: Payload) -> Result<Payload> {
        op.check(&buffer, 0, 1)?;
        let input = buffer.byte_len();
        let result = match op {
            Collective::Send { .. } => {
                let empty = Payload::zeros(buffer.element_type(), 0);
                self.mailbox().push_back(buffer.with_source(0));
                empty
            }
            Collective::Recv { .. } | Collective::RecvAny => self.receive(op, &buffer)?,
            Collective::AllGatherV => {
                let len = buffer.len();
                buffer.with_parts([len])?
            }
            _ => buffer,
        };
        let moved = Moved { input, output: result.byte_len(), own: input };
        self.counters.count(op, moved, 0, 1, Duration::ZERO);
        Ok(result)
    }

    fn receive(&self, op: Collective, asked: &Payload) -> Result<Payload> {
        let message = self.mailbox().pop_front().ok_or_else(|| Error::Unsupported {
            what: "receiving from oneself what was never sent".to_owned(),
        })?;
        if message.element_type() != asked.element_type() {
            let (expected, got) = (message.element_type(), asked.element_type());
            return Err(Error::element_type(expected, got));
        }
        if op != Collective::RecvAny && message.len() != asked.len() {
            let (expected, got) = (message.len(), asked.len());
            return Err(Error::Length { op: op.name(), expected, got });
        }
        Ok(message)
    }

    fn mailbox(&self) -> MutexGuard<'_, VecDeque<Payload>> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Communicator for Single {
    fn backend(&self) -> &'static str {
        "single"
    }

    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn alloc(&self, element: ElementType, len: usize) -> Result<Payload> {
        Ok(Payload::zeros(element, len))
    }

    fn start(&self, op: Collective, buffer: Payload) -> Pending {
        Pending::ready(self.execute(op, buffer))
    }

    fn run(&self, op: Collective, buffer: Payload) -> Result<Payload> {
        self.execute(op, buffer)
    }

    fn ranks(&self) -> &[usize] {
        &[0]
    }

    fn split(&self, colour: Option<u64>, _key: i64) -> Result<Option<Group>> {
        Ok(colour.map(|_| Arc::new(Self::default()) as Group))
    }

    fn hierarchical(&self, hosts: &[usize]) -> Result<Group> {
        match hosts.len() {
            1 => Ok(Arc::new(Self::default())),
            got => Err(Error::Length { op: "hierarchical", expected: 1, got }),
        }
    }

    fn stats(&self) -> CommStats {
        self.counters.snapshot()
    }

    fn abort(&self, _message: &str) {}
}
