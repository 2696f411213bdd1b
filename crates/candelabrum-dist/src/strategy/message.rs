//! The message of a strategy for a bucket.

use crate::comm::{Collective, Payload};

/// A message: some payloads with one collective each, or one collective on the bucket itself.
#[derive(Debug)]
pub enum Message {
    /// The bucket's own values, which the result replaces. They are in the memory where the backend
    /// works fastest.
    InPlace(Collective),
    /// The strategy's own payloads, each with its collective, in the same order on every rank.
    Payloads(Vec<(Collective, Payload)>),
}

impl Message {
    /// A message of one payload.
    pub fn new(op: Collective, payload: Payload) -> Self {
        Self::Payloads(vec![(op, payload)])
    }
}
