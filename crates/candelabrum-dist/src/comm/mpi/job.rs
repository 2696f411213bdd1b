//! The state that all groups of this rank share.
//!
//! A rank that has left a group sends a goodbye to every other member. After all goodbyes, when no
//! message is under way, the group's number is free for another group, and its header messages are freed.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::failures::MpiFailures;
use super::headers::{GOODBYE, PeerHeaders};
use super::messages::{AllMessages, MessageGroup};
use super::raw::MpiGroup;
use crate::comm::failures::FirstFailure;
use crate::{Error, Result};

/// The time that messages get to arrive after their receiver has left.
pub(super) const STRAGGLER: Duration = Duration::from_millis(200);

/// The state that all groups of this rank share.
pub(super) struct MpiJob {
    /// The hash of the host's name, by rank in the world.
    hosts: Vec<u64>,
    pub(super) failures: Arc<MpiFailures>,
    pub(super) messages: Arc<AllMessages>,
    /// The numbers of the groups that this rank is in, or that other members have not left.
    numbers: Mutex<BTreeSet<usize>>,
    /// Groups that this rank has left.
    left: Mutex<Vec<FormerGroup>>,
}

impl MpiJob {
    pub(super) fn new(
        world: &MpiGroup,
        rank: usize,
        host: &str,
        failure: &FirstFailure,
    ) -> Result<Self> {
        let mut hasher = DefaultHasher::new();
        host.hash(&mut hasher);
        Ok(Self {
            hosts: world.gather_words(hasher.finish())?,
            failures: Arc::new(MpiFailures::new(world.clone(), rank, failure.clone())),
            messages: Arc::default(),
            numbers: Mutex::new(BTreeSet::from([MpiGroup::WORLD])),
            left: Mutex::default(),
        })
    }

    /// Whether these ranks are on one host.
    pub(super) fn is_on_one_host(&self, ranks: &[usize]) -> bool {
        let mut hosts = ranks.iter().map(|&rank| self.hosts.get(rank));
        let first = hosts.next();
        hosts.all(|host| Some(host) == first)
    }

    /// The first number from `from` on that no group of this rank has.
    pub(super) fn free_number(&self, from: usize) -> usize {
        let numbers = self.numbers.lock();
        (from..).find(|number| !numbers.contains(number)).unwrap_or(from)
    }

    pub(super) fn take_number(&self, number: usize) {
        self.numbers.lock().insert(number);
    }

    /// Stores a group that this rank has left, with the header messages of its members.
    pub(super) fn note_left(&self, messages: Arc<MessageGroup>, peers: Vec<PeerHeaders>) {
        self.left.lock().push(FormerGroup { messages, peers, since: None });
    }

    /// Frees the header messages and numbers of groups that all members have left. Returns whether groups
    /// remain that this rank has left and another member has not.
    pub(super) fn give_back(&self) -> Result<bool> {
        let mut left = self.left.lock();
        for mut group in std::mem::take(&mut *left) {
            if !group.by_all(&self.messages)? {
                left.push(group);
            } else if !group.messages.awaits() {
                self.numbers.lock().remove(&group.messages.group.number);
            }
        }
        Ok(!left.is_empty())
    }
}

/// A group that this rank has left. Other members may still be in it.
struct FormerGroup {
    messages: Arc<MessageGroup>,
    peers: Vec<PeerHeaders>,
    /// The time of the last goodbye. After it, messages without a receive are received and dropped.
    since: Option<Instant>,
}

impl FormerGroup {
    /// Whether all other members have left the group too, and none of their messages is under way.
    /// A receive without a message is given up after [`STRAGGLER`], and the group's number with it.
    fn by_all(&mut self, all_messages: &AllMessages) -> Result<bool> {
        let own = self.messages.rank;
        let mut all = true;
        let mut sent = vec![self.messages.sent(own); self.peers.len()];
        for (other, peer) in self.peers.iter_mut().enumerate().filter(|(other, _)| *other != own) {
            match peer.peek()? {
                Some([GOODBYE, count, ..]) => {
                    sent[other] = count;
                    all &= peer.can_be_told()?;
                }
                // The member is in an operation that will never be complete, and learns so from
                // this rank's goodbye. This rank must not wait, because `main` prints the cause
                // only afterwards.
                Some(_) => {
                    let other = self.messages.group.ranks[other];
                    let what = format!("rank {other} still needs this rank, which leaves");
                    return Err(Error::Protocol { what });
                }
                None => all = false,
            }
        }
        if !all {
            return Ok(false);
        }
        let since = *self.since.get_or_insert_with(|| {
            for (from, sent) in sent.into_iter().enumerate() {
                let count = sent.saturating_sub(self.messages.received(from));
                all_messages.forget(&self.messages, from, count);
            }
            Instant::now()
        });
        Ok(!self.messages.awaits() || since.elapsed() > STRAGGLER)
    }
}
