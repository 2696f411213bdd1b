//! What a strategy sends of a unit.

use crate::comm::{Buffer, Collective};

/// A message: one collective each for some buffers, or one in which the unit itself travels.
#[derive(Debug)]
pub enum Message {
    /// The unit's own values, which the result replaces. They are where the backend works fastest.
    InPlace(Collective),
    /// Buffers of the strategy's own, each with its collective; in this order on every rank.
    Buffers(Vec<(Collective, Buffer)>),
}

impl Message {
    /// A message of one buffer.
    pub fn new(op: Collective, buffer: Buffer) -> Self {
        Self::Buffers(vec![(op, buffer)])
    }
}
