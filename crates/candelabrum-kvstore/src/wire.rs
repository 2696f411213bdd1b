//! The messages between workers and servers: a header of 64 bytes, a text in JSON where there are
//! names, then numbers.

use std::borrow::Cow;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use candelabrum_dist::{ElementType, Group, Payload};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Result};

/// The first bytes of every message, so that a foreign one is recognised.
const MAGIC: u32 = 0xca4d_5702;

/// The most pushes of a worker for one key that a server keeps because other workers are behind. Further
/// ones stay with the worker.
pub(crate) const MOST_AHEAD: u64 = 32;

/// The text is followed by zeros up to a multiple of this length, so that the numbers are aligned.
const ALIGNMENT: usize = 64;

/// The meaning of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum MessageKind {
    /// A worker's settings, before all else.
    Hello = 1,
    /// A key, and its first value on the first worker.
    Init,
    /// A gradient, or a value to assign.
    Push,
    /// A push whose answer is the value.
    PushPull,
    /// Rows of a table and their gradients.
    PushRows,
    /// A request for a value.
    Pull,
    /// A request for rows of a table.
    PullRows,
    /// A request for an answer when the server keeps fewer than [`MOST_AHEAD`] pushes of this worker for a
    /// key. The answer's `elements` is their number.
    Room,
    /// A worker's optimizer.
    SetOptimizer,
    /// What all workers are about to do in training, from the first one.
    Train,
    /// A request for an answer after all earlier messages of this worker.
    Flush,
    /// A request to write the server's state to a file.
    Save,
    /// A request to read it and to keep it beside.
    Load,
    /// A request to put what was read in the place of the state.
    Adopt,
    /// A request to forget what was read.
    Discard,
    /// A request for the server's counts.
    Stats,
    /// The last message of a worker. The text is the error after which it leaves, or nothing.
    Goodbye,
    /// A server's answer: values, a text, or nothing.
    Answer,
    /// A server's answer: it refuses, and the text says why.
    Refusal,
}

impl MessageKind {
    const ALL: [Self; 19] = [
        Self::Hello,
        Self::Init,
        Self::Push,
        Self::PushPull,
        Self::PushRows,
        Self::Pull,
        Self::PullRows,
        Self::Room,
        Self::SetOptimizer,
        Self::Train,
        Self::Flush,
        Self::Save,
        Self::Load,
        Self::Adopt,
        Self::Discard,
        Self::Stats,
        Self::Goodbye,
        Self::Answer,
        Self::Refusal,
    ];
}

/// The header of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct MessageHeader {
    pub(crate) magic: u32,
    pub(crate) op: u32,
    /// The worker's number of a request. The answer has the same.
    pub(crate) ticket: u64,
    /// The key's number.
    pub(crate) key: u32,
    /// The form of the numbers, see [`crate::codec`].
    pub(crate) codec: u32,
    /// The version of the value: updates before it. In a push, the version that the worker had.
    pub(crate) version: u64,
    /// Elements of the value that the numbers stand for.
    pub(crate) elements: u64,
    /// A setting of the codec.
    pub(crate) setting: f32,
    /// In a request: 1 if its sender wants to know when it has arrived. In an answer: 1 if it says only
    /// that.
    pub(crate) receipt: u32,
    /// Bytes of the text. The makers of a [`WireMessage`] set both lengths.
    pub(crate) text_len: u64,
    /// Bytes of the numbers.
    pub(crate) data_len: u64,
}

const HEADER: usize = size_of::<MessageHeader>();

impl MessageHeader {
    pub(crate) fn new(op: MessageKind) -> Self {
        Self { magic: MAGIC, op: op as u32, ..Self::default() }
    }
}

/// The bytes of a message, sent or received.
#[derive(Debug)]
pub(crate) struct WireMessage {
    payload: Payload,
    header: MessageHeader,
    op: MessageKind,
}

/// The memory in which long messages are written: that of a group, so that a send need not copy them, or
/// the heap.
#[derive(Clone, Debug, Default)]
pub(crate) struct MessageMemory(Option<Group>);

impl MessageMemory {
    pub(crate) fn new(group: &Group) -> Self {
        Self(Some(Arc::clone(group)))
    }

    /// A message with `data_len` bytes of numbers, which are arbitrary.
    pub(crate) fn message(&self, header: MessageHeader, data_len: usize) -> WireMessage {
        let payload = match &self.0 {
            Some(group) => group.alloc_message(HEADER + data_len),
            None => Payload::zeros(ElementType::U8, HEADER + data_len),
        };
        WireMessage::written(payload, MessageHeader { data_len: data_len as u64, ..header }, "")
    }
}

impl WireMessage {
    /// A message with `data_len` bytes of numbers, which are zeros.
    pub(crate) fn new(header: MessageHeader, text: &str, data_len: usize) -> Self {
        let header =
            MessageHeader { text_len: text.len() as u64, data_len: data_len as u64, ..header };
        let len = HEADER + padded(text.len()) + data_len;
        Self::written(Payload::zeros(ElementType::U8, len), header, text)
    }

    fn written(mut payload: Payload, header: MessageHeader, text: &str) -> Self {
        let op = MessageKind::ALL[(header.op as usize).clamp(1, MessageKind::ALL.len()) - 1];
        let bytes = payload.bytes_mut();
        bytes[..HEADER].copy_from_slice(bytemuck::bytes_of(&header));
        bytes[HEADER..HEADER + text.len()].copy_from_slice(text.as_bytes());
        Self { payload, header, op }
    }

    /// A message of a text alone.
    pub(crate) fn text(header: MessageHeader, text: &str) -> Self {
        Self::new(header, text, 0)
    }

    /// A message whose text is `content` in JSON.
    pub(crate) fn json(header: MessageHeader, content: &impl Serialize, data_len: usize) -> Self {
        // Settings, names and counts are always JSON.
        Self::new(header, &serde_json::to_string(content).unwrap_or_default(), data_len)
    }

    /// Reads a message of rank `from`.
    pub(crate) fn read(payload: Payload, from: usize) -> Result<Self> {
        let refuse = |what: String| Err(Error::Message { from, what });
        let bytes = payload.bytes();
        if bytes.len() < HEADER {
            return refuse(format!("it has {} bytes", bytes.len()));
        }
        let header: MessageHeader = bytemuck::pod_read_unaligned(&bytes[..HEADER]);
        if header.magic != MAGIC {
            return refuse("it is not one of a key-value store of this version".to_owned());
        }
        let op =
            (header.op as usize).checked_sub(1).and_then(|op| MessageKind::ALL.get(op)).copied();
        let Some(op) = op else { return refuse(format!("it has the kind {}", header.op)) };
        let text = usize::try_from(header.text_len).ok().filter(|len| *len <= bytes.len());
        let length = text.and_then(|text| {
            (HEADER + padded(text)).checked_add(usize::try_from(header.data_len).ok()?)
        });
        if length != Some(bytes.len()) {
            return refuse(format!("its length is {} bytes", bytes.len()));
        }
        Ok(Self { payload, header, op })
    }

    pub(crate) fn op(&self) -> MessageKind {
        self.op
    }

    pub(crate) fn header(&self) -> &MessageHeader {
        &self.header
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.payload.byte_len()
    }

    pub(crate) fn into_payload(self) -> Payload {
        self.payload
    }

    pub(crate) fn text_of(&self) -> Cow<'_, str> {
        let len = self.header.text_len as usize;
        String::from_utf8_lossy(&self.payload.bytes()[HEADER..HEADER + len])
    }

    /// The text as JSON.
    pub(crate) fn content<T: DeserializeOwned>(&self, from: usize) -> Result<T> {
        let what = |error: serde_json::Error| Error::Message { from, what: error.to_string() };
        serde_json::from_str(&self.text_of()).map_err(what)
    }

    /// The bytes of the numbers.
    pub(crate) fn data(&self) -> &[u8] {
        &self.payload.bytes()[HEADER + padded(self.header.text_len as usize)..]
    }

    pub(crate) fn data_mut(&mut self) -> &mut [u8] {
        let start = HEADER + padded(self.header.text_len as usize);
        &mut self.payload.bytes_mut()[start..]
    }
}

fn padded(len: usize) -> usize {
    len.next_multiple_of(ALIGNMENT)
}

/// Bytes as numbers. They are copied only if they are not aligned.
pub(crate) fn numbers<T: Pod>(bytes: &[u8]) -> Cow<'_, [T]> {
    let whole = &bytes[..bytes.len() / size_of::<T>() * size_of::<T>()];
    match bytemuck::try_cast_slice(whole) {
        Ok(numbers) => Cow::Borrowed(numbers),
        Err(_) => Cow::Owned(
            whole.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> WireMessage {
        let mut message = WireMessage::new(
            MessageHeader { ticket: 7, key: 2, ..MessageHeader::new(MessageKind::Push) },
            "ab",
            8,
        );
        message.data_mut().copy_from_slice(bytemuck::cast_slice(&[1.0_f32, -2.0]));
        message
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let read = WireMessage::read(sample().into_payload(), 1).unwrap();
        assert_eq!((read.op(), read.header().ticket, read.header().key), (MessageKind::Push, 7, 2));
        assert_eq!(read.text_of(), "ab");
        assert_eq!(numbers::<f32>(read.data())[..], [1.0, -2.0]);
        for op in MessageKind::ALL {
            let read =
                WireMessage::read(WireMessage::text(MessageHeader::new(op), "").into_payload(), 1)
                    .unwrap();
            assert_eq!(read.op(), op);
        }
    }

    #[test]
    fn a_damaged_message_is_an_error_that_names_its_sender() {
        let bytes = sample().into_payload().bytes().to_vec();
        let read = |bytes: &[u8]| WireMessage::read(Payload::from_slice(bytes), 5);
        for len in 0..bytes.len() {
            let message = read(&bytes[..len]).unwrap_err().to_string();
            assert!(message.contains("rank 5"), "{message}");
        }
        for (place, value) in [(0, 0), (4, 200), (4, 0), (49, 255), (55, 255), (63, 255)] {
            let mut bytes = bytes.clone();
            bytes[place] = value;
            assert!(read(&bytes).is_err(), "byte {place}");
        }
    }

    #[test]
    fn numbers_may_lie_anywhere() {
        let bytes: Vec<u8> =
            std::iter::once(9).chain([1.5_f32, 2.5].iter().flat_map(|x| x.to_ne_bytes())).collect();
        assert_eq!(numbers::<f32>(&bytes[1..])[..], [1.5, 2.5]);
    }
}
