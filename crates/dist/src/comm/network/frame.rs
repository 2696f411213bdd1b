//! What goes over a socket: frames, each a head and as many bytes as the head says.

use std::sync::Arc;

use crate::Result;
use crate::comm::Payload;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::comm) enum Kind {
    /// A message of one rank to another.
    Message,
    /// A part of a collective.
    Part,
    /// So many bytes of messages may have been sent to the sender of this frame in all.
    Window,
    /// The sender starts nothing more in this group.
    Left,
    /// The sender starts nothing more at all.
    Goodbye,
    /// The sender has failed, and says why.
    Failed,
    /// Another rank has died without a word.
    Died,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Message,
        Self::Part,
        Self::Window,
        Self::Left,
        Self::Goodbye,
        Self::Failed,
        Self::Died,
    ];
}

/// The start of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::comm) struct Head {
    pub(in crate::comm) kind: Kind,
    /// The code of the numbers' type, in a message.
    pub(in crate::comm) element: u8,
    /// Rank in the world that the frame is of.
    pub(in crate::comm) from: usize,
    /// Rank in the world that the frame is for.
    pub(in crate::comm) to: usize,
    /// The group that it belongs to; the limit of a window.
    pub(in crate::comm) group: u64,
    /// How many bytes follow.
    pub(in crate::comm) len: u64,
}

impl Head {
    pub(super) const BYTES: usize = 32;

    pub(super) fn encode(self) -> [u8; Self::BYTES] {
        let Self { kind, element, from, to, group, len } = self;
        let ranks = (from as u64) << 32 | to as u64;
        bytemuck::cast([u64::from(element) << 8 | kind as u64, ranks, group, len])
    }

    /// `None` where these bytes make no sense.
    pub(super) fn decode(bytes: [u8; Self::BYTES]) -> Option<Self> {
        let [what, ranks, group, len]: [u64; 4] = bytemuck::cast(bytes);
        let [kind, element, ..] = what.to_le_bytes();
        let kind = *Kind::ALL.get(usize::from(kind))?;
        let (from, to) = ((ranks >> 32) as usize, ranks as u32 as usize);
        Some(Self { kind, element, from, to, group, len })
    }
}

/// The bytes of a frame.
pub(in crate::comm) enum Body {
    /// A message's own.
    Payload(Payload),
    /// Those of several frames, or of none.
    Shared(Arc<Vec<u8>>),
}

impl Body {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Payload(payload) => payload.bytes(),
            Self::Shared(bytes) => bytes,
        }
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Shared(Arc::new(bytes))
    }
}

/// A frame that is to be written.
pub(in crate::comm) struct Outgoing {
    pub(super) head: Head,
    pub(super) body: Body,
    /// Told when the frame has been written, or will never be.
    pub(super) written: Option<oneshot::Sender<Result<Payload>>>,
}

impl Outgoing {
    pub(super) fn tell(self, result: Result<()>) {
        if let Some(written) = self.written {
            // The answer to a rank that does not wait for it is dropped.
            drop(written.send(result.map(|()| Payload::empty())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_survive_the_wire_and_nonsense_is_refused() {
        for kind in Kind::ALL {
            let (element, group, len) = (3, u64::MAX, 1 << 40);
            let head = Head { kind, element, from: 70_000, to: 2, group, len };
            assert_eq!(Head::decode(head.encode()), Some(head));
        }
        assert_eq!(Head::decode([200; Head::BYTES]), None);
    }
}
