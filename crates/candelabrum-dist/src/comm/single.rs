//! The communicator of a single rank. Every collective is complete as soon as it is started.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::mailbox::{Mailbox, PostedReceive, ReceivedMessage};
use super::stats::{Counters, PayloadBytes};
use super::transport::zeros;
use super::work::BackendWork;
use super::{
    BorrowedElements, Collective, CommStats, Communicator, ElementType, Group, Mesh, Payload,
    Pending,
};
use crate::{Error, Result};

/// The communicator of a program that runs alone. It can receive the messages that it sends to
/// itself.
#[derive(Default)]
pub(crate) struct Single {
    counters: Arc<Counters>,
    mailbox: Mutex<Mailbox>,
}

impl Single {
    fn execute(&self, op: Collective, payload: Payload) -> Result<Payload> {
        op.check(&payload, 0, 1)?;
        let moved =
            PayloadBytes { own: payload.byte_len(), ..PayloadBytes::from_payload(&payload, 0) };
        let result = match op {
            Collective::Send { .. } => {
                let (element, bytes) =
                    (payload.element_type().code(), payload.to_host()?.bytes().to_vec());
                self.mailbox.lock().deliver(ReceivedMessage {
                    from: 0,
                    element,
                    bytes: bytes.into(),
                });
                Payload::empty()
            }
            Collective::AllGatherV => {
                let len = payload.len();
                payload.with_parts([len])?
            }
            _ => payload,
        };
        self.counters.count(op, moved.to(&result), 0, 1, Duration::ZERO);
        Ok(result)
    }

    fn receive(&self, op: Collective, payload: Payload) -> Pending {
        if let Err(error) = op.check(&payload, 0, 1) {
            return Pending::ready(Err(error));
        }
        let (reply, answer) = oneshot::channel();
        let (any_length, ranks) = (op == Collective::RecvAny, Arc::new([0]));
        self.mailbox.lock().post(PostedReceive {
            from: None,
            payload,
            any_length,
            ranks,
            answer: reply,
        });
        Pending::backend(OwnMessage { op, answer, counters: Arc::clone(&self.counters) })
    }
}

/// A receive that has been started.
struct OwnMessage {
    op: Collective,
    answer: oneshot::Receiver<Result<Payload>>,
    counters: Arc<Counters>,
}

impl BackendWork for OwnMessage {
    fn is_complete(&mut self) -> bool {
        self.answer.has_message()
    }

    /// Does not block, because the only possible sender is this caller.
    fn wait(self: Box<Self>) -> Result<Payload> {
        let what = "receiving from oneself what was never sent";
        let missing = Error::Unsupported { what: what.to_owned() };
        let result = self.answer.try_recv().unwrap_or(Err(missing))?;
        let moved = PayloadBytes::default().to(&result);
        self.counters.count(self.op, moved, 0, 1, Duration::ZERO);
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

    fn alloc(&self, element: ElementType, len: usize) -> Result<Payload> {
        zeros(element, len)
    }

    fn start(&self, op: Collective, payload: Payload) -> Pending {
        match op {
            Collective::Recv { .. } | Collective::RecvAny => self.receive(op, payload),
            _ => Pending::ready(self.execute(op, payload)),
        }
    }

    fn run_in_place(&self, op: Collective, mut values: BorrowedElements<'_>) -> Result<()> {
        match op {
            Collective::AllReduce(_) | Collective::Broadcast { .. } => {
                op.check_type(values.element_type(), 1)
            }
            _ => values.by_copy(op, |payload| self.run(op, payload)),
        }
    }

    fn ranks(&self) -> &[usize] {
        &[0]
    }

    fn split(&self, colour: Option<u64>, _key: i64) -> Result<Option<Group>> {
        Ok(colour.map(|_| Arc::new(Self::default()) as Group))
    }

    fn hierarchical(&self, mesh: &Mesh) -> Result<Group> {
        mesh.check(1)?;
        Ok(Arc::new(Self::default()))
    }

    fn stats(&self) -> CommStats {
        self.counters.snapshot()
    }

    fn abort(&self, _message: &str) {}
}

impl fmt::Debug for Single {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Communicator(single)")
    }
}
