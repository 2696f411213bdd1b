//! The mailbox of a group: messages that have arrived, and receives that wait for one.
//!
//! A message goes to the first posted receive that accepts it, and a receive gets the first arrived
//! message that it accepts. So the messages of a pair of ranks keep their order.

use std::collections::VecDeque;
use std::sync::Arc;

use candelabrum_memory::{FlatTensor, SharedMemory};

use super::{ElementType, Payload};
use crate::{Error, Result};

/// A message from another rank.
pub(super) struct ReceivedMessage {
    /// The sender's rank in the world.
    pub(super) from: usize,
    /// The code of the numbers' type.
    pub(super) element: u8,
    pub(super) bytes: MessageBytes,
}

/// The bytes of a message.
pub(super) enum MessageBytes {
    /// On the heap.
    Heap(Vec<u8>),
    /// Where the sender has put them.
    Shared(Box<dyn SharedMemory>),
}

impl MessageBytes {
    fn get(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Shared(memory) => memory.bytes(),
        }
    }
}

impl From<Vec<u8>> for MessageBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Heap(bytes)
    }
}

impl From<Box<dyn SharedMemory>> for MessageBytes {
    fn from(memory: Box<dyn SharedMemory>) -> Self {
        Self::Shared(memory)
    }
}

/// A receive that waits for a message.
pub(super) struct PostedReceive {
    /// The rank in the world whose message is received; `None` for any rank.
    pub(super) from: Option<usize>,
    /// The memory for the numbers.
    pub(super) payload: Payload,
    /// Whether it accepts a message of any length.
    pub(super) any_length: bool,
    /// The ranks of the group.
    pub(super) ranks: Arc<[usize]>,
    pub(super) answer: oneshot::Sender<Result<Payload>>,
}

/// No stored message is one that a stored receive accepts.
#[derive(Default)]
pub(super) struct Mailbox {
    arrived: VecDeque<ReceivedMessage>,
    posted: VecDeque<PostedReceive>,
}

impl Mailbox {
    /// Posts a receive. Returns the sender and the length of its message, if the message has
    /// arrived.
    pub(super) fn post(&mut self, posted: PostedReceive) -> Option<(usize, usize)> {
        let first = self.arrived.iter().position(|message| posted.accepts(message.from));
        let Some(message) = first.and_then(|first| self.arrived.remove(first)) else {
            self.posted.push_back(posted);
            return None;
        };
        let taken = (message.from, message.bytes.get().len());
        posted.fill(message);
        Some(taken)
    }

    /// Delivers a message. Returns whether a receive took it at once.
    pub(super) fn deliver(&mut self, message: ReceivedMessage) -> bool {
        let first = self.posted.iter().position(|posted| posted.accepts(message.from));
        match first.and_then(|first| self.posted.remove(first)) {
            Some(posted) => posted.fill(message),
            None => self.arrived.push_back(message),
        }
        first.is_some()
    }

    /// Whether a receive waits for a message from this rank.
    pub(super) fn awaits(&self, from: usize) -> bool {
        self.posted.iter().any(|posted| posted.accepts(from))
    }

    /// Drops the messages that no receive has asked for. Returns their senders and lengths.
    pub(super) fn forget(&mut self) -> Vec<(usize, usize)> {
        self.arrived.drain(..).map(|message| (message.from, message.bytes.get().len())).collect()
    }
}

impl PostedReceive {
    fn accepts(&self, from: usize) -> bool {
        self.from.is_none_or(|expected| expected == from)
    }

    fn fill(self, message: ReceivedMessage) {
        let source = self.ranks.iter().position(|&rank| rank == message.from).unwrap_or(0);
        let result = received(self.payload, self.any_length, message);
        // If the receive was dropped, so is its answer.
        drop(self.answer.send(result.map(|payload| payload.with_source(source))));
    }
}

/// The payload with the numbers of the message, if they have its type and length.
fn received(mut payload: Payload, any_length: bool, message: ReceivedMessage) -> Result<Payload> {
    let ReceivedMessage { from, element: code, bytes } = message;
    let element = ElementType::from_code(code)
        .ok_or_else(|| Error::Protocol { what: format!("rank {from} sent element {code}") })?;
    if element != payload.element_type() {
        return Err(Error::element_type(element, payload.element_type()));
    }
    let len = bytes.get().len() / element.size();
    if any_length {
        // Shared memory becomes the payload itself.
        match bytes {
            MessageBytes::Shared(memory) => {
                return Ok(FlatTensor::shared(element, len, memory).into());
            }
            MessageBytes::Heap(_) => payload = Payload::zeros(element, len),
        }
    }
    if len != payload.len() {
        return Err(Error::Length { op: "recv", expected: len, got: payload.len() });
    }
    let bytes = &bytes.get()[..len * element.size()];
    if payload.is_on_device() {
        let mut copy = Payload::zeros(element, len);
        copy.bytes_mut().copy_from_slice(bytes);
        payload.copy_from_host(&copy)?;
    } else {
        payload.bytes_mut().copy_from_slice(bytes);
    }
    Ok(payload)
}
