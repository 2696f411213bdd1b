//! The letters by which ranks of a group tell each other, before every operation, what they are
//! about to do. A letter holds a header and the beginning of the data that goes with it: a short
//! operation is one letter to everybody.
//!
//! The receives for these are always posted, which tells who is missing when a deadline passes, and
//! who has left.

use std::ops::Range;

use super::raw::{EAGER, LETTER, Letter, MpiGroup, Tag};
use crate::Result;
use crate::comm::collective::Header;

/// Encoded header.
pub(super) type Words = [u64; Header::WORDS];

/// Bytes of an encoded header.
pub(super) const HEADER_BYTES: usize = size_of::<Words>();

/// First word of what takes a header's place when a rank has finished.
pub(super) const GOODBYE: u64 = u64::MAX;

/// How many bytes of this range go in a letter. None of a long one, which is copied faster in one
/// piece, from where it is aligned.
pub(super) fn enclosed(range: &Range<usize>) -> usize {
    if range.len() > EAGER { 0 } else { range.len().min(LETTER - HEADER_BYTES) }
}

/// What is under way between this rank and another.
pub(super) struct Peer {
    /// What it is about to do: one header ahead at most, since it needs ours to go on.
    inbox: Letter,
    outbox: Letter,
}

impl Peer {
    /// `None` as the number stands for this rank itself.
    pub(super) fn new(group: &MpiGroup, from: Option<usize>) -> Result<Self> {
        let mut inbox = Letter::new();
        if let Some(from) = from {
            inbox.receive(group, Some(from), Tag::Header)?;
        }
        Ok(Self { inbox, outbox: Letter::new() })
    }

    /// Its next header, if that has arrived.
    pub(super) fn peek(&mut self) -> Result<Option<Words>> {
        Ok(self.inbox.poll()?.then(|| words(self.inbox.bytes())))
    }

    /// What came with the header that has arrived.
    pub(super) fn enclosed(&self) -> &[u8] {
        &self.inbox.bytes()[HEADER_BYTES..]
    }

    /// Has done with that header: the next one may come.
    pub(super) fn next(&mut self, group: &MpiGroup, from: usize) -> Result<()> {
        self.inbox.receive(group, Some(from), Tag::Header)
    }

    /// Whether the last letter to it is on its way, so that there is paper for the next.
    pub(super) fn can_be_told(&mut self) -> Result<bool> {
        self.outbox.poll()
    }

    /// Sends it a header with some data.
    pub(super) fn tell(
        &mut self,
        group: &MpiGroup,
        to: usize,
        words: Words,
        data: &[u8],
    ) -> Result<()> {
        let letter = self.outbox.bytes_mut();
        letter[..HEADER_BYTES].copy_from_slice(bytemuck::cast_slice(&words));
        letter[HEADER_BYTES..HEADER_BYTES + data.len()].copy_from_slice(data);
        self.outbox.send(group, to, Tag::Header, HEADER_BYTES + data.len())
    }

    /// How many messages it has sent us in all, if it has left.
    pub(super) fn farewell(&mut self) -> Result<Option<u64>> {
        Ok(match self.peek()? {
            Some([GOODBYE, sent, ..]) => Some(sent),
            _ => None,
        })
    }
}

/// The header in a letter.
pub(super) fn words(letter: &[u8]) -> Words {
    bytemuck::pod_read_unaligned(&letter[..HEADER_BYTES])
}
