//! What a rank has heard of its peers on the sockets: messages, the ranks that have left, the rank that
//! has failed.

use std::collections::{BTreeMap, BTreeSet};

use super::frame::{FrameHeader, FrameKind};
use crate::comm::mailbox::{Mailbox, MessageBytes, PostedReceive, ReceivedMessage};
use crate::{Error, Result};

/// The bytes of messages that a rank may send to another rank that has not asked for them.
pub(super) const WINDOW: u64 = 16 << 20;

/// The action to take when every rank has left a group.
pub(in crate::comm) type WhenLeft = Box<dyn FnOnce() + Send>;

/// What a rank has heard of its peers. Ranks in this type are numbers in the world.
pub(super) struct PeerStates {
    pub(super) rank: usize,
    /// The first failure that was reported. Later failures are its consequences.
    pub(super) failure: Option<PeerFailure>,
    /// Peers that have ended in order.
    pub(super) gone: BTreeSet<usize>,
    /// Groups that a rank has used and that not all ranks have left.
    groups: BTreeMap<u64, GroupPeers>,
    /// By sender.
    windows: Vec<ReceiveWindow>,
}

#[derive(Default)]
struct GroupPeers {
    messages: Mailbox,
    parts: Mailbox,
    /// Peers that have left the group.
    left: BTreeSet<usize>,
    /// After this rank has left: the number of its peers, and the action to take when they have
    /// left.
    own: Option<(usize, WhenLeft)>,
}

/// The failure of another rank.
#[derive(Clone)]
pub(super) struct PeerFailure {
    pub(super) peer: usize,
    /// `None` if the peer died without a message.
    pub(super) message: Option<String>,
}

impl PeerFailure {
    pub(super) fn error(self, rank: usize, during: impl FnOnce() -> String) -> Error {
        let Self { peer, message } = self;
        match message {
            Some(message) => Error::PeerFailed { peer, message },
            None => Error::PeerDied { peer, rank, during: during() },
        }
    }
}

/// A sender, and the limit to be sent to it.
pub(super) type SendLimit = (usize, u64);

impl PeerStates {
    pub(super) fn new(rank: usize, world_size: usize) -> Self {
        let windows = (0..world_size).map(|_| ReceiveWindow::default()).collect();
        let (gone, groups) = (BTreeSet::new(), BTreeMap::new());
        Self { rank, failure: None, gone, groups, windows }
    }

    /// Stores a message, or a part of a collective. Returns the sender's new limit, if there is
    /// one.
    pub(super) fn deliver(&mut self, head: FrameHeader, bytes: MessageBytes) -> Option<SendLimit> {
        let FrameHeader { kind, element, from, group, len, .. } = head;
        let group = self.groups.entry(group).or_default();
        let message = ReceivedMessage { from, element, bytes };
        if kind == FrameKind::Part || from == self.rank {
            group.mailbox(kind).deliver(message);
            return None;
        }
        self.windows[from].received += len;
        // A message for a group that this rank has left is dropped at once.
        let taken = group.own.is_some() || group.messages.deliver(message);
        self.windows[from].taken += if taken { len } else { 0 };
        self.limit(from)
    }

    /// Posts a receive for a message or for a part. Returns the new limits.
    pub(super) fn post(
        &mut self,
        kind: FrameKind,
        group: u64,
        posted: PostedReceive,
    ) -> Vec<SendLimit> {
        let from = posted.from;
        let taken = self.groups.entry(group).or_default().mailbox(kind).post(posted);
        if kind == FrameKind::Part {
            return Vec::new();
        }
        match (taken, from) {
            (Some(taken), _) => self.give_back(&[taken]),
            (None, Some(from)) => self.limit(from).into_iter().collect(),
            (None, None) => (0..self.windows.len()).filter_map(|peer| self.limit(peer)).collect(),
        }
    }

    /// Releases the room of messages of these senders and lengths.
    fn give_back(&mut self, taken: &[(usize, usize)]) -> Vec<SendLimit> {
        for &(from, len) in taken {
            self.windows[from].taken += len as u64;
        }
        taken.iter().filter_map(|&(from, _)| self.limit(from)).collect()
    }

    /// The sender's new limit, if it must be sent.
    fn limit(&mut self, from: usize) -> Option<SendLimit> {
        let groups = &self.groups;
        let awaited = || groups.values().any(|group| group.messages.awaits(from));
        let limit = self.windows[from].move_on(awaited)?;
        (from != self.rank).then_some((from, limit))
    }

    /// Records that a peer has left a group. Returns the action to take if all ranks have left.
    pub(super) fn hear_left(&mut self, group: u64, peer: usize) -> Option<WhenLeft> {
        self.groups.entry(group).or_default().left.insert(peer);
        self.forget(group)
    }

    /// Records that this rank has left a group of so many other ranks. Returns the new limits, and
    /// the action to take if all ranks have left.
    pub(super) fn leave(
        &mut self,
        group: u64,
        others: usize,
        when_left: WhenLeft,
    ) -> (Vec<SendLimit>, Option<WhenLeft>) {
        let known = self.groups.entry(group).or_default();
        known.own = Some((others, when_left));
        let forgotten = known.messages.forget();
        (self.give_back(&forgotten), self.forget(group))
    }

    /// Drops a group that all ranks have left, because no more frames of it arrive.
    fn forget(&mut self, group: u64) -> Option<WhenLeft> {
        let known = self.groups.get(&group)?;
        let (others, _) = known.own.as_ref()?;
        if known.left.len() < *others {
            return None;
        }
        let (_, when_left) = self.groups.remove(&group)?.own?;
        Some(when_left)
    }

    /// The error that makes a wait for any of `peers` in `group` useless, if there is one: a rank
    /// has failed, or all peers have left.
    pub(super) fn trouble(
        &self,
        group: u64,
        peers: &[usize],
        during: impl FnOnce() -> String,
    ) -> Result<()> {
        if let Some(failure) = self.failure.clone() {
            return Err(failure.error(self.rank, during));
        }
        let group = self.groups.get(&group);
        let has_left = |peer: &usize| {
            self.gone.contains(peer) || group.is_some_and(|group| group.left.contains(peer))
        };
        match peers.last() {
            Some(&peer) if peers.iter().all(has_left) => {
                Err(Error::PeerLeft { peer, rank: self.rank, during: during() })
            }
            _ => Ok(()),
        }
    }
}

impl GroupPeers {
    fn mailbox(&mut self, kind: FrameKind) -> &mut Mailbox {
        if kind == FrameKind::Part { &mut self.parts } else { &mut self.messages }
    }
}

/// The room of this rank for one sender's messages. All numbers count bytes from the start.
struct ReceiveWindow {
    received: u64,
    /// The bytes of received messages that a receive has taken.
    taken: u64,
    /// The last limit that the sender was told.
    limit: u64,
}

impl Default for ReceiveWindow {
    fn default() -> Self {
        Self { received: 0, taken: 0, limit: WINDOW }
    }
}

impl ReceiveWindow {
    /// The new limit, if it is so much higher that the sender must learn it. An awaited message may
    /// be behind others that fill the window. Then the limit includes room for those too.
    fn move_on(&mut self, awaited: impl FnOnce() -> bool) -> Option<u64> {
        let mut limit = self.taken + WINDOW;
        if self.received >= self.limit && awaited() {
            limit = self.received + WINDOW;
        }
        (limit >= self.limit + WINDOW / 2).then(|| {
            self.limit = limit;
            limit
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_gets_room_for_what_was_taken_and_for_what_is_awaited() {
        let mut window = ReceiveWindow::default();
        let no = || false;
        window.received = WINDOW / 2;
        assert_eq!(window.move_on(no), None, "nothing was taken");
        window.taken = WINDOW / 4;
        assert_eq!(window.move_on(no), None, "too little to be worth a frame");
        window.taken = WINDOW / 2;
        assert_eq!(window.move_on(no), Some(WINDOW + WINDOW / 2));
        window.received = 5 * WINDOW;
        assert_eq!(window.move_on(no), None, "the window is full");
        assert_eq!(window.move_on(|| true), Some(6 * WINDOW), "what is awaited may be behind");
        assert_eq!(window.move_on(|| true), None, "it has been told");
        window.taken = 5 * WINDOW;
        assert_eq!(window.move_on(no), None, "there has been room for all of it");
    }

    #[test]
    fn a_group_that_all_have_left_is_forgotten() {
        let mut peers = PeerStates::new(0, 3);
        let when_left = || Box::new(|| ()) as WhenLeft;
        assert!(peers.hear_left(9, 1).is_none());
        let (limits, left) = peers.leave(9, 2, when_left());
        assert!(limits.is_empty() && left.is_none(), "rank 2 may still use it");
        assert!(peers.trouble(9, &[1, 2], String::new).is_ok());
        assert!(peers.trouble(9, &[1], String::new).is_err());
        assert!(peers.hear_left(9, 2).is_some() && peers.groups.is_empty());
        assert!(peers.leave(10, 0, when_left()).1.is_some(), "a group of one");
    }
}
