//! Leaving the job in order.
//!
//! Every rank says goodbye in each of its groups when it has left that. When all members of a group have
//! said goodbye, and nothing that they have sent is on its way, the group's number is free for another
//! group, and its letters are given back.

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
use crate::comm::members::Failure;
use crate::comm::transport::Transport;
use crate::comm::wait::{Load, Wait};
use crate::{Error, Result};

/// How long MPI may take to see that a message has arrived when its receiver has left.
const STRAGGLER: Duration = Duration::from_millis(200);

/// What all groups of this rank have in common.
pub(super) struct Job {
    /// By rank in the world, a number for its host.
    hosts: Vec<u64>,
    failed: AtomicBool,
    pub(super) news: News,
    pub(super) messages: AllMessages,
    /// The numbers of the groups that this rank is in, or that not everybody has left.
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

    /// Something went wrong: MPI will not be finalised, see [`life`].
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// The first number from this one on that none of this rank's groups has.
    pub(super) fn free_number(&self, from: usize) -> usize {
        let numbers = self.numbers.lock();
        (from..).find(|number| !numbers.contains(number)).unwrap_or(from)
    }

    pub(super) fn take_number(&self, number: usize) {
        self.numbers.lock().insert(number);
    }

    /// Gives back what belongs to the groups that all have left; whether there are others.
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

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

/// A group that this rank has left, but others may not have.
struct Left {
    messages: Arc<MessageGroup>,
    peers: Vec<Peer>,
    /// When all had said goodbye: since then messages that nobody has asked for are received.
    since: Option<Instant>,
}

impl Left {
    /// Whether everybody else has left it too, and nothing more comes. A receive for which nobody has
    /// sent a message is given up, and the group's number with it.
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
                // It is in an operation that will never be complete, and our goodbye tells it so.
                // Why we leave, `main` can print only after this.
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
    /// Says goodbye to this group, unless something has failed: goodbyes are for those who finish.
    pub(super) fn say_goodbye(&mut self) -> Result<()> {
        if self.job.has_failed() {
            return Ok(());
        }
        // All that was to be sent is counted.
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

    /// Waits until everybody has left everything, and finalises MPI. `MPI_Finalize` would wait for
    /// all ranks too, but polls a core meanwhile.
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
