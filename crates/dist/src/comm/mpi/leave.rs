//! Leaving the job in order.
//!
//! Every rank says goodbye in each of its groups when it has left that. MPI communicators are given
//! back when all ranks have left the world: only then nobody uses any.

use std::cmp::Reverse;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::mail::{GOODBYE, Peer};
use super::messages::AllMessages;
use super::news::{LOOK_AFTER, News};
use super::raw::Comm;
use super::{Mpi, life};
use crate::comm::members::Failure;
use crate::comm::transport::Transport;
use crate::comm::wait::{Load, Wait};
use crate::{Error, Result};

/// How long MPI may take to see that a message has arrived when its receiver has left.
const STRAGGLER: Duration = Duration::from_millis(200);

/// What all groups of this rank have in common.
pub(super) struct Job {
    /// By rank in the world.
    hosts: Vec<u64>,
    failed: AtomicBool,
    pub(super) news: News,
    pub(super) messages: AllMessages,
    /// How many groups this rank has been in.
    groups: AtomicUsize,
    /// Groups that this rank has left.
    left: Mutex<Vec<Left>>,
}

impl Job {
    pub(super) fn new(world: Comm, failure: &Failure) -> Result<Self> {
        Ok(Self {
            hosts: world.hosts()?,
            failed: AtomicBool::new(false),
            news: News::new(world, failure.clone())?,
            messages: AllMessages::default(),
            groups: AtomicUsize::new(0),
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

    /// The next group's number.
    pub(super) fn number(&self) -> usize {
        self.groups.fetch_add(1, Ordering::Relaxed)
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

/// A group that this rank has left, but others may not have.
struct Left {
    /// Counts the groups of this rank in the order in which they were made.
    number: usize,
    comm: Comm,
    rank: usize,
    ranks: Arc<[usize]>,
    peers: Vec<Peer>,
}

impl Left {
    /// Whether everybody else has left it too.
    fn by_all(&mut self) -> Result<bool> {
        let mut all = true;
        for (other, peer) in self.peers.iter_mut().enumerate() {
            if other == self.rank {
                continue;
            }
            match peer.peek()? {
                Some([GOODBYE, ..]) => all &= peer.can_be_told()?,
                // It is in an operation that will never be complete, and our goodbye tells it so.
                // Why we leave, `main` can print only after this.
                Some(_) => {
                    let other = self.ranks[other];
                    let what = format!("rank {other} still needs this rank, which leaves");
                    return Err(Error::Protocol { what });
                }
                None => all = false,
            }
        }
        Ok(all)
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
        let (number, comm, rank, ranks) =
            (self.number, self.comm, self.rank, Arc::clone(&self.ranks));
        lock(&self.job.left).push(Left { number, comm, rank, ranks, peers });
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
        let mut left = std::mem::take(&mut *lock(&self.job.left));
        let (mut load, mut wait) = (Load::default(), Wait::begin());
        while !have_been_left_by_all(&mut left)? {
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
        // In the same order on every rank.
        left.sort_by_key(|group| Reverse(group.number));
        for group in left {
            group.comm.free()?;
        }
        if let (Some(universe), true) = (self.universe.take(), life::end()) {
            drop(ManuallyDrop::into_inner(universe));
        }
        Ok(())
    }
}

fn have_been_left_by_all(groups: &mut [Left]) -> Result<bool> {
    let mut all = true;
    for group in groups {
        all &= group.by_all()?;
    }
    Ok(all)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
