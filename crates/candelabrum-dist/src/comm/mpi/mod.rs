//! The MPI backend, for ranks that an MPI launcher started on one host or on several.
//!
//! The communication thread initialises and finalises MPI. [`life`] describes the end of a job. If
//! the library grants the thread level `SERIALIZED`, the thread that has the queue's turn makes
//! the calls in between. If it grants only `FUNNELED`, the communication thread makes them all.
//! Except at the start and at the end of a job, no call blocks: the backend starts an operation and
//! polls it with growing pauses ([`wait`](super::wait)). A blocking call would occupy a core that
//! the model needs, and could not end at the deadline.
//!
//! MPI only moves bytes. [`reduce`](candelabrum_memory::reduce) has the arithmetic: sums are added in rank
//! order, half precision is accumulated in f32, and NaN is kept. Every rank gets the same bits,
//! which are also the local backend's bits. `MPI_Allreduce` promises none of this: the library
//! chooses the order of additions by length and number of ranks, and it has no half precision.
//!
//! Before every operation each pair of ranks exchanges header messages ([`headers`]) with a header. A short
//! operation is one round of messages, and the header messages contain the beginning of its data. Long sums
//! and broadcasts are cut into pieces, which pass through the ranks that own them ([`pipeline`]).
//! In an all-reduce of `n` bytes each of N ranks sends and receives `2 (N-1)/N · n` bytes, the
//! minimum. A rank that fails sends the cause to the other ranks ([`failures`]).
//!
//! All groups share one MPI communicator. A message's tag names its group ([`raw::MpiGroup`]).
//!
//! Against a blocking `MPI_Allreduce` in place (C, Open MPI 4.1.4, 2 ranks on 2 Intel cores), the
//! speed of this backend is 0.6 for 4 KB, 0.9 to 1.1 from 16 KB to 2 MB, 1.0 to 1.2 from 4 to 30 MB
//! and 1.3 to 1.9 for 100 MB.
//!
//! A rank sends `N - 1` small messages for every operation: the backend is meant for tens of ranks,
//! not for thousands.

mod collectives;
mod failures;
mod headers;
mod job;
mod launcher_barrier;
mod leave;
mod life;
mod messages;
mod pace;
mod pipeline;
mod raw;

use std::fmt::Display;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::environment::Universe;

use self::failures::LOOK_AFTER;
use self::headers::{HeaderWords, PeerHeaders};
use self::job::MpiJob;
use self::messages::{MessageGroup, MpiMessages};
use self::pace::PipelineSizes;
use self::raw::{MpiGroup, RequestBatch};
use super::collective::CollectiveHeader;
use super::failures::FirstFailure;
use super::messages::Messages;
use super::threaded::{Connection, ThreadedGroup};
use super::transport::RankTransport;
use super::wait::{BackoffWait, MachineLoad};
use super::{Collective, Communicator, Payload};
use crate::{Error, Result};

/// Whether this build has the MPI backend.
pub(crate) const COMPILED: bool = true;

/// Joins the MPI job of this process, which must have `world_size` ranks. Ranks with equal `host`
/// are on one host. An operation that takes longer than `deadline` fails.
///
/// After this call a panic, or an exit before the communicator is dropped, ends all ranks.
///
/// # Errors
/// A launcher that belongs to another MPI library than this program, a library without support for
/// threads, or MPI that was initialised in this process before.
pub(crate) fn connect(
    world_size: usize,
    host: String,
    deadline: Duration,
) -> Result<Arc<dyn Communicator>> {
    // The communication thread inherits the timer slack of this thread.
    life::wake_on_time();
    Ok(Arc::new(ThreadedGroup::start(move |failure| join(world_size, &host, deadline, failure))?))
}

fn join(
    expected: usize,
    host: &str,
    deadline: Duration,
    failure: &FirstFailure,
) -> Result<Connection<MpiTransport>> {
    let what = "MPI was initialised in this process before: only one world can use it";
    let (universe, threading) = mpi::initialize_with_threading(Threading::Serialized)
        .ok_or_else(|| Error::Launch { what: what.to_owned() })?;
    let universe = ManuallyDrop::new(universe);
    life::begin();
    if threading < Threading::Funneled {
        let what = format!("{} was built without support for threads", raw::library());
        return Err(Error::Launch { what });
    }
    let (group, rank) = MpiGroup::world()?;
    let world_size = group.ranks.len();
    if world_size != expected {
        if world_size == 1 && life::end() {
            drop(ManuallyDrop::into_inner(universe));
        }
        let what = format!(
            "the launcher started {expected} ranks, but MPI sees {world_size}: this program was \
             built with {}, and the launcher (mpiexec, srun) belongs to another MPI; start it with \
             the mpiexec of that library, or build it again with MPICC set to the launcher's mpicc, after \
             `cargo clean -p mpi-sys -p mpi` (cargo does not see that MPICC has changed)",
            raw::library()
        );
        return Err(Error::Launch { what });
    }
    let any_thread = threading >= Threading::Serialized;
    let job = Arc::new(MpiJob::new(&group, rank, host, failure)?);
    let abort = Arc::new(life::Aborter(Arc::clone(&job.failures)));
    let mut transport = MpiTransport::new(job, group, rank, any_thread, deadline)?;
    transport.universe = Some(universe);
    Ok(Connection { transport, rank, world_size, deadline, abort })
}

/// This rank's end of a group.
struct MpiTransport {
    /// Only the world's transport has one, until MPI is finalised. A drop would finalise MPI.
    universe: Option<ManuallyDrop<Universe>>,
    job: Arc<MpiJob>,
    group: MpiGroup,
    rank: usize,
    any_thread: bool,
    deadline: Duration,
    pace: PipelineSizes,
    load: MachineLoad,
    /// By rank. This rank's own entry is unused.
    peers: Vec<PeerHeaders>,
    /// The ranks' headers of an operation, by rank.
    headers: Vec<HeaderWords>,
    messages: Arc<MessageGroup>,
    /// Memory for the other ranks' numbers, which is reused.
    scratch: Payload,
    /// The end of the last operation.
    last: Instant,
}

impl RankTransport for MpiTransport {
    const DRIVES_MESSAGES: bool = true;

    fn backend(&self) -> &'static str {
        "mpi"
    }

    fn any_thread(&self) -> bool {
        self.any_thread
    }

    fn messages(&self) -> Arc<dyn Messages> {
        let (all, group) = (Arc::clone(&self.job.messages), Arc::clone(&self.messages));
        Arc::new(MpiMessages { all, group })
    }

    fn execute(&mut self, header: CollectiveHeader, payload: Payload) -> Result<Payload> {
        self.look_after_a_rest()?;
        let result = self.collective(header, payload)?;
        self.last = Instant::now();
        Ok(result)
    }

    /// The new groups get a number that none of their members uses. The tags of their messages
    /// contain it. A group has no MPI communicator of its own, because some libraries have only
    /// 2,000, and creating one blocks without a deadline.
    fn split(&mut self, members: Option<&[usize]>) -> Result<Option<Self>> {
        self.split_off(members)
    }

    fn progress(&mut self) -> bool {
        life::abort_if_asked();
        self.job.failures.tell();
        if self.messages.awaits() {
            self.note_farewells();
            // A failure is stored: the waiting thread, or the next operation, returns it.
            drop(self.job.failures.look());
        }
        self.job.messages.progress()
    }

    fn leave(&mut self) {
        if let Err(error) = self.say_goodbye() {
            tracing::error!("leaving a group: {error}");
            self.job.failures.fail();
        }
    }

    fn finish(&mut self) {
        self.end();
    }
}

impl MpiTransport {
    fn new(
        job: Arc<MpiJob>,
        group: MpiGroup,
        rank: usize,
        any_thread: bool,
        deadline: Duration,
    ) -> Result<Self> {
        let n = group.ranks.len();
        let peer = |other| PeerHeaders::new(&group, (other != rank).then_some(other));
        let peers = (0..n).map(peer).collect::<Result<_>>()?;
        let messages = Arc::new(MessageGroup::new(group.clone(), rank));
        Ok(Self {
            universe: None,
            rank,
            any_thread,
            deadline,
            pace: PipelineSizes::new(job.is_on_one_host(&group.ranks), n),
            load: MachineLoad::default(),
            job,
            peers,
            headers: vec![HeaderWords::default(); n],
            group,
            messages,
            scratch: Payload::empty(),
            last: Instant::now(),
        })
    }

    fn split_off(&mut self, members: Option<&[usize]>) -> Result<Option<Self>> {
        self.job.give_back()?;
        let number = self.agree_on_number(members.is_some())?;
        let Some(members) = members else { return Ok(None) };
        self.job.take_number(number);
        let rank = members.iter().position(|&member| member == self.rank).unwrap_or(0);
        let ranks = members.iter().map(|&member| self.group.ranks[member]).collect();
        let (job, group) = (Arc::clone(&self.job), self.group.other(number, ranks));
        Self::new(job, group, rank, self.any_thread, self.deadline).map(Some)
    }

    /// The first number that is free at all members of all new groups.
    fn agree_on_number(&mut self, joins: bool) -> Result<usize> {
        let mut number = MpiGroup::WORLD + 1;
        loop {
            let free = if joins { self.job.free_number(number) } else { number };
            let own = Payload::from_slice(&[free as i64]);
            let header = CollectiveHeader::new(0, Collective::AllGather, &own);
            let all = self.collective(header, own)?;
            let all = all.as_slice::<i64>()?;
            let (least, most) = (all.iter().min().copied(), all.iter().max().copied());
            number = most.map_or(number, |most| most as usize);
            if number > MpiGroup::LAST {
                let what = format!("more than {} groups of a rank at a time", MpiGroup::LAST);
                return Err(Error::Unsupported { what });
            }
            if least == most {
                return Ok(number);
            }
        }
    }

    /// Looks for failures if this rank has run no operation of this group for half of the deadline. The other ranks
    /// may have sent their header messages for the next operation, and have given up at their deadline since. Then this
    /// rank must not take these header messages for a success. Two looks cost a training step more than a tenth of a
    /// millisecond, so a forward pass is no rest.
    fn look_after_a_rest(&self) -> Result<()> {
        if self.last.elapsed() <= self.deadline / 2 {
            return Ok(());
        }
        // A probe finds what the library has taken in, and takes in more only after that.
        (0..2).try_for_each(|_| self.job.failures.look())
    }

    fn world_size(&self) -> usize {
        self.group.ranks.len()
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.group.ranks.len()).filter(move |&other| other != rank)
    }

    /// Sends a header message after the previous one to the same rank, and does not wait for its arrival.
    fn tell(
        &mut self,
        to: usize,
        words: HeaderWords,
        data: &[u8],
        during: impl Display + Copy,
    ) -> Result<()> {
        let mut wait = BackoffWait::begin();
        while !self.peers[to].can_be_told()? {
            self.pause(&mut wait, during, |_| vec![to])?;
        }
        self.peers[to].tell(&self.group, to, words, data)
    }

    /// Waits until all requests of `batch` are complete. Returns its memory.
    fn wait_for(
        &mut self,
        mut batch: RequestBatch,
        header: CollectiveHeader,
    ) -> Result<[Payload; 2]> {
        let mut wait = BackoffWait::begin();
        loop {
            if let Some(memory) = batch.poll()? {
                return Ok(memory);
            }
            self.pause(&mut wait, header, |_| batch.missing())?;
        }
    }

    /// Passes some time of a wait. Fails if another rank has failed, or if the deadline has passed;
    /// the error then names the `missing` ranks.
    fn pause(
        &mut self,
        wait: &mut BackoffWait,
        during: impl Display,
        missing: impl FnOnce(&mut Self) -> Vec<usize>,
    ) -> Result<()> {
        self.progress();
        let waited = wait.pause(&mut self.load);
        if waited > LOOK_AFTER {
            self.job.failures.look()?;
        }
        if waited <= self.deadline {
            return Ok(());
        }
        let missing: Vec<String> =
            missing(self).into_iter().map(|rank| self.group.ranks[rank].to_string()).collect();
        Err(Error::Timeout {
            rank: self.group.ranks[self.rank],
            during: during.to_string(),
            missing: missing.join(", "),
            waited,
        })
    }

    /// Stores which members have left, for the receives that wait for their messages.
    fn note_farewells(&mut self) {
        for other in self.others() {
            // An error is left to the operation that waits for this peer.
            let farewell = self.peers.get_mut(other).map(PeerHeaders::farewell);
            if let Some(Ok(Some(sent))) = farewell {
                self.messages.note_farewell(other, sent);
            }
        }
    }

    fn left(&self, peer: usize, header: CollectiveHeader) -> Error {
        let (peer, rank) = (self.group.ranks[peer], self.group.ranks[self.rank]);
        Error::PeerLeft { peer, rank, during: header.to_string() }
    }
}
