//! The frames on a socket. A frame is a head and the number of bytes that the head gives.

use std::sync::Arc;

use super::parcel::ParcelNote;
use crate::Result;
use crate::comm::Payload;

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::comm) enum FrameKind {
    /// A message from one rank to another.
    Message,
    /// A part of a collective.
    Part,
    /// The total number of message bytes up to which the receiver of this frame may send messages
    /// to its sender.
    Window,
    /// The sender starts no more operations in this group.
    Left,
    /// The sender starts no more operations in any group.
    Goodbye,
    /// The sender has failed. The reason follows.
    Failed,
    /// Another rank has died without a message.
    Died,
    /// A message whose bytes lie in memory that the ranks share. A note of the place follows.
    Parcel,
    /// The sender of this frame has read a parcel. The head's group is the number of its memory.
    Returned,
}

impl FrameKind {
    const ALL: [Self; 9] = [
        Self::Message,
        Self::Part,
        Self::Window,
        Self::Left,
        Self::Goodbye,
        Self::Failed,
        Self::Died,
        Self::Parcel,
        Self::Returned,
    ];
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::comm) struct FrameHeader {
    pub(in crate::comm) kind: FrameKind,
    /// In a message, the code of the numbers' type.
    pub(in crate::comm) element: u8,
    /// The rank in the world that the frame is from.
    pub(in crate::comm) from: usize,
    /// The rank in the world that the frame is for.
    pub(in crate::comm) to: usize,
    /// The group of the frame. In a window frame, the limit. In the return of a parcel, its number.
    pub(in crate::comm) group: u64,
    /// The number of bytes that follow.
    pub(in crate::comm) len: u64,
}

impl FrameHeader {
    pub(super) const BYTES: usize = 32;

    pub(super) fn encode(self) -> [u8; Self::BYTES] {
        let Self { kind, element, from, to, group, len } = self;
        let ranks = (from as u64) << 32 | to as u64;
        bytemuck::cast([u64::from(element) << 8 | kind as u64, ranks, group, len])
    }

    /// `None` if these bytes are not a head.
    pub(super) fn decode(bytes: [u8; Self::BYTES]) -> Option<Self> {
        let [what, ranks, group, len]: [u64; 4] = bytemuck::cast(bytes);
        let [kind, element, ..] = what.to_le_bytes();
        let kind = *FrameKind::ALL.get(usize::from(kind))?;
        let (from, to) = ((ranks >> 32) as usize, ranks as u32 as usize);
        Some(Self { kind, element, from, to, group, len })
    }
}

/// The bytes of a frame.
pub(in crate::comm) enum FrameBody {
    /// The bytes of one message.
    Payload(Payload),
    /// The bytes that several frames share, or none.
    Shared(Arc<Vec<u8>>),
}

impl FrameBody {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Payload(payload) => payload.bytes(),
            Self::Shared(bytes) => bytes,
        }
    }
}

impl From<Vec<u8>> for FrameBody {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Shared(Arc::new(bytes))
    }
}

/// A frame to be written.
pub(in crate::comm) struct Outgoing {
    pub(super) head: FrameHeader,
    pub(super) body: FrameBody,
    /// The channel for the result, once the frame has been written or cannot be written.
    pub(super) written: Option<oneshot::Sender<Result<Payload>>>,
}

impl Outgoing {
    /// The bytes of the message, wherever they are.
    pub(super) fn message_len(&self) -> u64 {
        self.note().map_or(self.head.len, |note| note.len)
    }

    /// The place of the parcel that the frame announces, if it is one.
    pub(super) fn note(&self) -> Option<ParcelNote> {
        let is_parcel = self.head.kind == FrameKind::Parcel;
        is_parcel.then(|| ParcelNote::decode(self.body.bytes())).flatten()
    }

    pub(super) fn tell(self, result: Result<()>) {
        if let Some(written) = self.written {
            // If no rank waits for the answer, it is dropped.
            drop(written.send(result.map(|()| Payload::empty())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_survive_the_wire_and_nonsense_is_refused() {
        for kind in FrameKind::ALL {
            let (element, group, len) = (3, u64::MAX, 1 << 40);
            let head = FrameHeader { kind, element, from: 70_000, to: 2, group, len };
            assert_eq!(FrameHeader::decode(head.encode()), Some(head));
        }
        assert_eq!(FrameHeader::decode([200; FrameHeader::BYTES]), None);
    }
}
