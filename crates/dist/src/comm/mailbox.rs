//! The messages of a group that have come, and the receives that wait for one.
//!
//! A message goes to the receive that was posted first among those that accept it, and a receive gets
//! the message that came first among those that it accepts. So the messages of a pair of ranks keep
//! their order.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{ElementType, Payload};
use crate::{Error, Result};

/// What a rank has sent.
pub(super) struct Arrived {
    /// The sender's rank in the world.
    pub(super) from: usize,
    /// The code of the numbers' type.
    pub(super) element: u8,
    pub(super) bytes: Vec<u8>,
}

/// A receive.
pub(super) struct Posted {
    /// The rank in the world whose message is asked for; `None` for any rank's.
    pub(super) from: Option<usize>,
    /// For the numbers.
    pub(super) payload: Payload,
    /// Whether a message of another length will do too.
    pub(super) any_length: bool,
    /// The ranks of the group.
    pub(super) ranks: Arc<[usize]>,
    pub(super) answer: oneshot::Sender<Result<Payload>>,
}

/// Of the messages and the receives at least one is empty, as far as they accept each other.
#[derive(Default)]
pub(super) struct Mailbox {
    arrived: VecDeque<Arrived>,
    posted: VecDeque<Posted>,
}

impl Mailbox {
    /// Gives sender and length of the message that the receive takes, if that has come.
    pub(super) fn post(&mut self, posted: Posted) -> Option<(usize, usize)> {
        let first = self.arrived.iter().position(|message| posted.accepts(message.from));
        let Some(message) = first.and_then(|first| self.arrived.remove(first)) else {
            self.posted.push_back(posted);
            return None;
        };
        let taken = (message.from, message.bytes.len());
        posted.fill(&message);
        Some(taken)
    }

    /// Whether a receive takes the message at once.
    pub(super) fn deliver(&mut self, message: Arrived) -> bool {
        let first = self.posted.iter().position(|posted| posted.accepts(message.from));
        match first.and_then(|first| self.posted.remove(first)) {
            Some(posted) => posted.fill(&message),
            None => self.arrived.push_back(message),
        }
        first.is_some()
    }

    /// Whether a receive waits for a message of this rank.
    pub(super) fn awaits(&self, from: usize) -> bool {
        self.posted.iter().any(|posted| posted.accepts(from))
    }

    /// Forgets the messages that nobody has asked for; gives their senders and lengths.
    pub(super) fn forget(&mut self) -> Vec<(usize, usize)> {
        self.arrived.drain(..).map(|message| (message.from, message.bytes.len())).collect()
    }
}

impl Posted {
    fn accepts(&self, from: usize) -> bool {
        self.from.is_none_or(|expected| expected == from)
    }

    fn fill(self, message: &Arrived) {
        let result = received(self.payload, self.any_length, message);
        let source = self.ranks.iter().position(|&rank| rank == message.from).unwrap_or(0);
        // The answer of a receive that nobody waits for is dropped.
        drop(self.answer.send(result.map(|payload| payload.with_source(source))));
    }
}

/// The payload with the numbers of the message, if these are what was asked for.
fn received(mut payload: Payload, any_length: bool, message: &Arrived) -> Result<Payload> {
    let Arrived { from, element: code, bytes } = message;
    let element = ElementType::from_code(*code)
        .ok_or_else(|| Error::Protocol { what: format!("rank {from} sent element {code}") })?;
    if element != payload.element_type() {
        return Err(Error::element_type(element, payload.element_type()));
    }
    let len = bytes.len() / element.size();
    if any_length {
        payload = Payload::zeros(element, len);
    }
    if len != payload.len() {
        return Err(Error::Length { op: "recv", expected: len, got: payload.len() });
    }
    let bytes = &bytes[..len * element.size()];
    if payload.is_on_device() {
        let mut copy = Payload::zeros(element, len);
        copy.bytes_mut().copy_from_slice(bytes);
        payload.copy_from_host(&copy)?;
    } else {
        payload.bytes_mut().copy_from_slice(bytes);
    }
    Ok(payload)
}
