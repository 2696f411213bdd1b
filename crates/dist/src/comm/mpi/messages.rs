//! Messages of one rank to another: a letter with a header and the beginning, and the rest.

use super::Mpi;
use super::mail::{HEADER_BYTES, enclosed, words};
use super::raw::{Batch, Tag};
use super::wait::Wait;
use crate::comm::collective::Header;
use crate::comm::{ElementType, Payload};
use crate::{Error, Result};

impl Mpi {
    /// Is answered at once, so that ranks which all send before they receive do not wait for each
    /// other; the message goes on its way in the background.
    pub(super) fn send(&mut self, header: Header, buffer: Payload, to: usize) -> Result<Payload> {
        self.peers[to].sent += 1;
        let all = 0..buffer.bytes().len();
        let first = enclosed(&all);
        let mut letter = Payload::zeros(ElementType::U8, HEADER_BYTES + first);
        let (head, beginning) = letter.bytes_mut().split_at_mut(HEADER_BYTES);
        head.copy_from_slice(bytemuck::cast_slice(&header.encode()));
        beginning.copy_from_slice(&buffer.bytes()[..first]);
        let mut batch = Batch::new(self.comm, [letter, buffer]);
        batch.send(0, 0..HEADER_BYTES + first, to, Tag::MessageHeader)?;
        batch.send(1, first..all.end, to, Tag::Message)?;
        if batch.poll()?.is_none() {
            self.job.outgoing.add(batch);
        }
        Ok(Payload::empty())
    }

    pub(super) fn recv(&mut self, header: Header, buffer: Payload, from: usize) -> Result<Payload> {
        self.peers[from].asked += 1;
        if from == self.rank && self.peers[from].sent < self.peers[from].asked {
            return Err(self.never_sent());
        }
        let message = self.message_header(header, from)?;
        if message.len != header.len {
            let (expected, got) = (message.len, header.len);
            return Err(Error::Length { op: header.op.name(), expected, got });
        }
        self.message(header, from, buffer)
    }

    pub(super) fn recv_any(&mut self, header: Header) -> Result<Payload> {
        let mut wait = Wait::begin();
        let from = loop {
            if let Some(from) = self.comm.probe(Tag::MessageHeader)? {
                break from;
            }
            if let Some(error) = self.nothing_will_come(header)? {
                return Err(error);
            }
            self.pause(&mut wait, header, |group| group.others().collect())?;
        };
        self.peers[from].asked += 1;
        let message = self.message_header(header, from)?;
        let buffer = Payload::zeros(message.element, message.len);
        self.message(header, from, buffer)
    }

    /// What comes next from a rank; the beginning of it is in our letter.
    fn message_header(&mut self, header: Header, from: usize) -> Result<Header> {
        self.letter.receive(self.comm, from, Tag::MessageHeader)?;
        let mut wait = Wait::begin();
        while !self.letter.poll()? {
            let peer = &mut self.peers[from];
            if from != self.rank && peer.farewell()?.is_some_and(|sent| sent < peer.asked) {
                return Err(self.left(from, header));
            }
            self.pause(&mut wait, header, |_| vec![from])?;
        }
        let Some(message) = Header::decode(words(self.letter.bytes())) else {
            let rank = self.ranks[from];
            let what = format!("rank {rank} sent a message with an unreadable header");
            return Err(Error::Protocol { what });
        };
        if message.element != header.element {
            let (expected, got) = (message.element, header.element);
            return Err(Error::element_type(expected, got));
        }
        Ok(message)
    }

    /// Fills the buffer with the message whose letter has come.
    fn message(&mut self, header: Header, from: usize, mut buffer: Payload) -> Result<Payload> {
        let all = 0..buffer.bytes().len();
        let first = enclosed(&all);
        let beginning = &self.letter.bytes()[HEADER_BYTES..HEADER_BYTES + first];
        buffer.bytes_mut()[..first].copy_from_slice(beginning);
        let mut batch = Batch::new(self.comm, [Payload::empty(), buffer]);
        batch.receive(1, first..all.end, from, Tag::Message)?;
        let [_, buffer] = self.wait_for(batch, header)?;
        Ok(buffer.with_source(from))
    }

    /// The error of a rank that waits for anybody's message when all others have left, and all that
    /// they sent has been received.
    fn nothing_will_come(&mut self, header: Header) -> Result<Option<Error>> {
        let own = &self.peers[self.rank];
        if own.sent > own.asked {
            return Ok(None);
        }
        let mut last = None;
        for other in self.others() {
            let peer = &mut self.peers[other];
            if peer.farewell()?.is_none_or(|sent| sent > peer.asked) {
                return Ok(None);
            }
            last = Some(other);
        }
        Ok(Some(last.map_or_else(|| self.never_sent(), |other| self.left(other, header))))
    }

    fn never_sent(&self) -> Error {
        Error::Unsupported { what: "receiving from oneself what was never sent".to_owned() }
    }
}
