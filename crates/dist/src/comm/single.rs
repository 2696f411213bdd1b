//! The world of one: every collective is done when it is started.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::stats::{Counters, Moved};
use super::{Buffer, Collective, CommStats, Communicator, ElementType, Group, Pending};
use crate::{Error, Result};

/// The communicator of a program that runs alone. What it sends to itself it can receive.
#[derive(Debug, Default)]
pub(crate) struct Single {
    counters: Counters,
    mailbox: Mutex<VecDeque<Buffer>>,
}

impl Single {
    fn execute(&self, op: Collective, buffer: Buffer) -> Result<Buffer> {
        op.check(&buffer, 0, 1)?;
        let bytes = buffer.bytes().len();
        let mut mailbox = self.mailbox.lock().unwrap_or_else(PoisonError::into_inner);
        let result = match op {
            Collective::Send { .. } => {
                mailbox.push_back(buffer);
                Buffer::empty()
            }
            Collective::Recv { .. } => {
                let message = mailbox.pop_front().ok_or_else(|| Error::Unsupported {
                    what: "receiving from oneself what was never sent".to_owned(),
                })?;
                if message.element_type() != buffer.element_type() {
                    let (expected, got) = (message.element_type(), buffer.element_type());
                    return Err(Error::ElementType { expected, got });
                }
                if message.len() != buffer.len() {
                    let (expected, got) = (message.len(), buffer.len());
                    return Err(Error::Length { op: op.name(), expected, got });
                }
                message
            }
            _ => buffer,
        };
        let moved = Moved { input: bytes, output: result.bytes().len(), own: 0 };
        self.counters.count(op, moved, 0, 1, std::time::Duration::ZERO);
        Ok(result)
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

    fn alloc(&self, element: ElementType, len: usize) -> Result<Buffer> {
        Ok(Buffer::zeros(element, len))
    }

    fn start(&self, op: Collective, buffer: Buffer) -> Pending {
        Pending::ready(self.execute(op, buffer))
    }

    fn ranks(&self) -> &[usize] {
        &[0]
    }

    fn split(&self, colour: Option<u64>, _key: i64) -> Result<Option<Group>> {
        Ok(colour.map(|_| Arc::new(Self::default()) as Group))
    }

    fn stats(&self) -> CommStats {
        self.counters.snapshot()
    }

    fn abort(&self, _message: &str) {}
}
