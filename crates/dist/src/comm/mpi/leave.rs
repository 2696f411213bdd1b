//! The orderly end of a rank's part in the job.
//!
//! A rank that has left a group sends a goodbye to every other member. After all goodbyes, when no
//! message is under way, the group's number is free for another group, and its letters are freed.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::mail::{GOODBYE, Peer};
use super::messages::{AllMessages, MessageGroup};
use super::news::{LOOK_AFTER, News};
use super::raw::MpiGroup;
use super::{Mpi, life};
use crate::comm::membership::Failure;
use crate::comm::transport::Transport;
use crate::comm::wait::{Load, Wait};
use crate::{Error, Result};

/// The time that messages get to arrive after their receiver has left.
const STRAGGLER: Duration = Duration::from_millis(200);

/// The state that all groups of this rank share.
pub(super) struct Job {
    /// The hash of the host's name, by rank in the world.
    hosts: Vec<u64>,
    failed: AtomicBool,
    pub(super) news: News,
    pub(super) messages: AllMessages,
    /// The numbers of the groups that this rank is in, or that other members have not left.
    numbers: Mutex<BTreeSet<usize>>,
    /// Groups that this rank has left.
    left: Mutex<Vec<Left>>,
}

impl Job {
    pub(super) fn new(
        world: &MpiGroup,
        rank: usize,
        host: &str,
        failure: &Failure,
    ) -> Result<Self> {
        let mut hasher = DefaultHasher::new();
        host.hash(&mut hasher);
        Ok(Self {
            hosts: world.gather_words(hasher.finish())?,
            failed: AtomicBool::new(false),
            news: News::new(world.clone(), rank, failure.clone()),
            messages: AllMessages::default(),
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

    /// Notes a failure. MPI will then not be finalised, see [`life`].
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// The first number from `from` on that no group of this rank has.
    pub(super) fn free_number(&self, from: usize) -> usize {
        let numbers = self.numbers.lock();
        (from..).find(|number| !numbers.contains(number)).unwrap_or(from)
    }

    pub(super) fn take_number(&self, number: usize) {
        self.numbers.lock().insert(number);
    }

    /// Frees the letters and numbers of groups that all members have left. Returns whether groups
    /// remain that this rank has left and another member has not.
    pub(super) fn give_back(&self) -> Result<bool> {
        let mut left = self.left.lock();
        for mut group in std::mem::take(&mut *left) {
            if !group.by_all(self)? {
                left.push(group);
            } else if !group.messages.awaits() {
                self.numbers.lock().remove(&group.messages.group.number);
            }
        }
        Ok(!left.is_empty())
    }

    /// Whether this rank or another one has failed. A rank that knows of a failure says no goodbye:
    /// one that does not know of it yet would take the goodbye for the cause.
    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || self.news.has_heard()
    }
}

/// A group that this rank has left. Other members may still be in it.
struct Left {
    messages: Arc<MessageGroup>,
    peers: Vec<Peer>,
    /// The time of the last goodbye. After it, messages without a receive are received and dropped.
    since: Option<Instant>,
}

impl Left {
    /// Whether all other members have left the group too, and none of their messages is under way.
    /// A receive without a message is given up after [`STRAGGLER`], and the group's number with it.
    fn by_all(&mut self, job: &Job) -> Result<bool> {
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
                job.messages.forget(&self.messages, from, count);
            }
            Instant::now()
        });
        Ok(!self.messages.awaits() || since.elapsed() > STRAGGLER)
    }
}

impl Mpi {
    /// Sends a goodbye to this group's members, except after a failure, which aborts the job.
    pub(super) fn say_goodbye(&mut self) -> Result<()> {
        if self.job.has_failed() {
            return Ok(());
        }
        // Starts all requested sends, because a goodbye contains their number.
        self.job.messages.progress(&self.job);
        for other in self.others() {
            let sent = self.messages.sent(other);
            self.tell(other, [GOODBYE, sent, 0, 0], &[], "leaving")?;
        }
        let peers = std::mem::take(&mut self.peers);
        let messages = Arc::clone(&self.messages);
        self.job.left.lock().push(Left { messages, peers, since: None });
        Ok(())
    }

    /// Waits until the members of all this rank's groups have left them, and finalises MPI.
    /// `MPI_Finalize` alone would also wait for all ranks, but it would occupy a core meanwhile.
    ///
    /// After a failure MPI is not finalised, because that would hang; see [`life`].
    pub(super) fn end(&mut self) {
        if self.job.has_failed() {
            return life::failed();
        }
        if let Err(error) = self.end_in_order() {
            tracing::error!("leaving the MPI job: {error}");
            life::failed();
        }
    }

    fn end_in_order(&mut self) -> Result<()> {
        let (mut load, mut wait) = (Load::default(), Wait::begin());
        while self.job.give_back()? {
            self.progress();
            if wait.pause(&mut load) > LOOK_AFTER {
                self.job.news.look()?;
            }
        }
        let mut drained = Wait::begin();
        while self.job.messages.are_sending(&self.job) {
            if drained.pause(&mut load) > STRAGGLER {
                let what = "a message that was sent has never been received".to_owned();
                return Err(Error::Protocol { what });
            }
        }
        self.group.clone().free()?;
        if let (Some(universe), true) = (self.universe.take(), life::end()) {
            drop(ManuallyDrop::into_inner(universe));
        }
        Ok(())
    }
}
