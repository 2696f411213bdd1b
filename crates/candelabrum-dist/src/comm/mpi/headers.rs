//! The header messages that each rank of a group sends to all others before an operation. A header message contains
//! a header, which describes the operation, and the beginning of the data. A short operation
//! consists only of header messages.
//!
//! The receives for header messages are always posted. So a rank knows which header messages are missing when a
//! deadline passes, and which ranks have left.

use std::ops::Range;

use super::raw::{EAGER, HEADER_MESSAGE, HeaderMessage, MessageTag, MpiGroup};
use crate::Result;
use crate::comm::collective::CollectiveHeader;

pub(super) type HeaderWords = [u64; CollectiveHeader::WORDS];

/// Bytes of an encoded header.
pub(super) const HEADER_BYTES: usize = size_of::<HeaderWords>();

/// The first word of a goodbye, which a rank that leaves sends in place of a header.
pub(super) const GOODBYE: u64 = u64::MAX;

/// The number of bytes of this range that a header message contains. It is 0 for a long range, because one
/// piece from an aligned address is copied faster.
pub(super) fn enclosed(range: &Range<usize>) -> usize {
    if range.len() > EAGER { 0 } else { range.len().min(HEADER_MESSAGE - HEADER_BYTES) }
}

/// The header messages between this rank and another one.
pub(super) struct PeerHeaders {
    /// The next header message. The other rank is at most one header ahead, because it needs our header.
    inbox: HeaderMessage,
    outbox: HeaderMessage,
}

impl PeerHeaders {
    /// `from` is `None` for this rank itself.
    pub(super) fn new(group: &MpiGroup, from: Option<usize>) -> Result<Self> {
        let mut inbox = HeaderMessage::new();
        if let Some(from) = from {
            inbox.receive(group, Some(from), MessageTag::Header)?;
        }
        Ok(Self { inbox, outbox: HeaderMessage::new() })
    }

    /// The other rank's next header, if it has arrived.
    pub(super) fn peek(&mut self) -> Result<Option<HeaderWords>> {
        Ok(self.inbox.poll()?.then(|| words(self.inbox.bytes())))
    }

    /// The data that arrived with the header.
    pub(super) fn enclosed(&self) -> &[u8] {
        &self.inbox.bytes()[HEADER_BYTES..]
    }

    /// Posts the receive for the next header message, which replaces the last one.
    pub(super) fn next(&mut self, group: &MpiGroup, from: usize) -> Result<()> {
        self.inbox.receive(group, Some(from), MessageTag::Header)
    }

    /// Whether the last header message has been sent, so that its memory is free for the next one.
    pub(super) fn can_be_told(&mut self) -> Result<bool> {
        self.outbox.poll()
    }

    /// Sends a header message.
    pub(super) fn tell(
        &mut self,
        group: &MpiGroup,
        to: usize,
        words: HeaderWords,
        data: &[u8],
    ) -> Result<()> {
        let message = self.outbox.bytes_mut();
        message[..HEADER_BYTES].copy_from_slice(bytemuck::cast_slice(&words));
        message[HEADER_BYTES..HEADER_BYTES + data.len()].copy_from_slice(data);
        self.outbox.send(group, to, MessageTag::Header, HEADER_BYTES + data.len())
    }

    /// If the other rank has left: the number of all messages that it has sent to this rank.
    pub(super) fn farewell(&mut self) -> Result<Option<u64>> {
        Ok(match self.peek()? {
            Some([GOODBYE, sent, ..]) => Some(sent),
            _ => None,
        })
    }
}

/// The header in a header message.
pub(super) fn words(message: &[u8]) -> HeaderWords {
    bytemuck::pod_read_unaligned(&message[..HEADER_BYTES])
}
