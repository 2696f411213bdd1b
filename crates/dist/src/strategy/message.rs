//! What a strategy sends of a unit.

use crate::comm::{Collective, Payload};

/// A message: one collective each for some buffers, or one in which the unit itself travels.
#[derive(Debug)]
pub enum Message {
    /// The unit's own values, which the result replaces. They are where the backend works fastest.
    InPlace(Collective),
    /// Payloads of the strategy's own, each with its collective; in this order on every rank.
    Payloads(Vec<(Collective, Payload)>),
}

impl Message {
    /// A message of one payload.
    pub fn new(op: Collective, payload: Payload) -> Self {
        Self::Payloads(vec![(op, payload)])
    }
}
