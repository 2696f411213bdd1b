//! Communication between ranks: the trait [`Communicator`], and one file or folder for each
//! backend.
//!
//! A collective is *started*, which moves its [`Payload`] to the communicator, and *waited for*,
//! which moves the payload back. The blocking methods on `dyn Communicator` do both at once for
//! slices. Before every collective the ranks exchange headers, over NCCL once for a list of announced
//! collectives. If ranks call different collectives, they get an error that names the first
//! difference.
//!
//! | idea | file |
//! |---|---|
//! | operations and headers | `collective.rs`, `announced.rs`, `blocking.rs` |
//! | the numbers of operations | `payload.rs`, `borrowed.rs`, `ready.rs` |
//! | groups and their turns | `threaded.rs`, `groups.rs`, `group_info.rs`, `queue.rs`, `layers.rs` |
//! | operations that have been started | `pending.rs`, `work.rs` |
//! | the trait of a blocking backend | `transport.rs` |
//! | failures, and who is told | `failures.rs` |
//! | messages between two ranks, deaths | `message.rs`, `messages.rs`, `network/`, `mailbox.rs` |
//! | the backends | `single.rs`, `local/`, `mpi/`, `tcp/`, `nccl/`; `local/` and `tcp/` need Linux (the cfg `local_ranks`) |
//!
//! **Invariant** This module knows payloads and element types. It knows neither models nor
//! parameters.

mod announced;
mod blocking;
mod borrowed;
mod collective;
mod failures;
mod group_info;
mod groups;
mod layers;
#[cfg(local_ranks)]
mod local;
mod mailbox;
mod member;
mod mesh;
mod message;
mod messages;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(not(feature = "mpi"))]
#[path = "no_mpi.rs"]
mod mpi;
#[cfg(feature = "cuda")]
mod nccl;
#[cfg(not(feature = "cuda"))]
#[path = "no_nccl.rs"]
mod nccl;
#[cfg(local_ranks)]
mod network;
#[cfg(not(local_ranks))]
mod no_local;
mod payload;
mod pending;
mod queue;
#[cfg(feature = "cuda")]
mod ready;
#[cfg(not(feature = "cuda"))]
#[path = "no_ready.rs"]
mod ready;
#[cfg(local_ranks)]
mod rendezvous;
mod services;
mod single;
mod slice;
mod stats;
#[cfg(local_ranks)]
mod tcp;
mod threaded;
mod transport;
mod wait;
mod work;

use std::fmt;
use std::sync::Arc;

pub use announced::Announcement;
pub use borrowed::BorrowedElements;
pub use candelabrum_memory::{Element, ElementType, ReduceOp};
pub use collective::Collective;
pub use mesh::{Mesh, Replicate};
pub use payload::{Label, Payload};
pub use pending::Pending;
pub use stats::CommStats;

#[cfg(local_ranks)]
pub(crate) use local::connect as connect_local;
pub(crate) use member::{JobMember, TcpConfig};
pub(crate) use mpi::{COMPILED as MPI_COMPILED, connect as connect_mpi};
pub(crate) use nccl::{COMPILED as NCCL_COMPILED, connect as connect_nccl};
#[cfg(not(local_ranks))]
pub(crate) use no_local::{connect_local, connect_tcp, no_ranks_here};
pub(crate) use services::Service;
#[doc(hidden)]
pub use services::Services;
pub(crate) use single::Single;
#[cfg(local_ranks)]
pub(crate) use tcp::connect as connect_tcp;
#[cfg(test)]
pub(crate) use work::BackendWork;

use crate::{Error, Result};

/// A handle of a group: all ranks, or some of them. A clone is cheap.
pub type Group = Arc<dyn Communicator>;

/// A group of ranks that run collectives on payloads together.
///
/// All groups of this rank that were [split](Self::split) from one world run their collectives in
/// one order, the order in which the collectives are started or run, on any thread. If two
/// collectives share more than one rank, all these ranks must start the same one first. After an
/// operation of any of these groups has failed, every later operation of all of them returns the
/// same error. The other ranks of the world are told, and get that error from the operation in which they
/// are or from their next one, whatever it is.
///
/// Messages between two ranks are independent of collectives: neither waits for the other. The
/// messages of a pair of ranks in a group keep their order, and they go to the receives in the
/// order in which the receives were started. A rank stores up to 16 MiB of another rank's messages
/// that it has not asked for, and one message more. A send beyond that is complete only when the
/// receiver has asked for earlier messages. (Over MPI the library decides how much it stores.)
///
/// If a rank refuses the arguments of a collective, for instance a length that does not divide, the
/// collective is an error on all ranks. If all ranks refuse it, the group remains usable.
///
/// Ranks in operations are numbers within the group. Ranks in errors are numbers in the world. When
/// the last of a world's groups is dropped, it finishes the started operations and leaves the job
/// in order.
pub trait Communicator: fmt::Debug + Send + Sync {
    /// The backend's name: `single`, `local`, `mpi`, `tcp`, `nccl`.
    fn backend(&self) -> &'static str;

    /// This process's number in the group, counted from 0.
    fn rank(&self) -> usize;

    /// The number of processes in the group.
    fn world_size(&self) -> usize;

    /// Allocates zeroed memory for `len` elements, at the place where this backend reduces fastest.
    /// All ranks must call it together.
    ///
    /// # Errors
    /// Not enough memory, or ranks whose requests differ.
    fn alloc(&self, element: ElementType, len: usize) -> Result<Payload>;

    /// A payload of `len` bytes for a message to be written. Its content is arbitrary. Over the local
    /// backend a long one lies in memory that the receiver reads, so that a send copies nothing. No
    /// other rank takes part in this call.
    fn alloc_message(&self, len: usize) -> Payload {
        Payload::zeros(ElementType::U8, len)
    }

    /// Starts `op` on `payload`. [`Pending::wait`] returns the result or the error.
    ///
    /// The operation runs in the background, on a communication thread or on the thread that waits
    /// for the result. An operation on numbers in a GPU's memory waits on the GPU for the work that
    /// the stream of this memory has now. The stream may be given more work at once.
    ///
    /// The length of the result for `n` elements in the payload and `N` ranks is: `n` for
    /// all-reduce, all-to-all, broadcast, barrier and recv, and for reduce on the root (0 on other
    /// ranks); 0 for send; `N·n` for all-gather, and for gather on the root (0 on other ranks);
    /// `n/N` for reduce-scatter, and for scatter, where `n` is the root's length and the other
    /// ranks' payloads are ignored. If ranks send different amounts, it is the sum of the amounts
    /// that this rank receives.
    fn start(&self, op: Collective, payload: Payload) -> Pending;

    /// As `start` and `wait` in one, for a caller without other work meanwhile. It uses no second
    /// thread if no other operation is under way and the backend may be called from any thread.
    ///
    /// # Errors
    /// A failure of any rank, a passed deadline or a disagreement between ranks.
    fn run(&self, op: Collective, payload: Payload) -> Result<Payload> {
        self.start(op, payload).wait()
    }

    /// Runs `op` on numbers in the caller's memory and replaces them by the result, which must have
    /// the same length. The local backend carries out an all-reduce or a broadcast without a copy of
    /// the numbers. Other ranks may [run](Self::run) the same operation on a payload.
    ///
    /// # Errors
    /// A failure of this rank or of another one. The numbers may have changed by then.
    fn run_in_place(&self, op: Collective, mut values: BorrowedElements<'_>) -> Result<()> {
        values.by_copy(op, |payload| self.run(op, payload))
    }

    /// Announces the collectives that this rank will start next in this group, in this order, so that
    /// the ranks need not compare each of them. It starts nothing, and only NCCL uses it. If all
    /// ranks announce the same list, they compare headers once, before its first operation. Until
    /// the end of such a list any other collective of this group, or leaving the group, is a
    /// failure of this rank, [`Error::NotAnnounced`], which ends the operations of all ranks at once.
    /// If the ranks announce different lists, or a rank starts another operation first, the list has
    /// no effect. So has an announcement before the end of the list before it.
    fn announce(&self, next: Vec<Announcement>) {
        let _ = next;
    }

    /// Whether an all-reduce of f32 payloads can search for numbers that are not finite while it reads
    /// them, so that the ranks of a [`DistOpt`](crate::DistOpt) need not search before. The result then
    /// says which rank had such a number. The local backend does so.
    fn finds_bad_numbers(&self) -> bool {
        false
    }

    /// Says that this rank may run collectives of this group in the middle of a step of a
    /// [`DistOpt`](crate::DistOpt), which announces the exchange of the step's buckets. From now on
    /// [`Self::announce`] has no effect in this group. [`ops`](crate::ops) and
    /// [`synchronize_batch_norm`](crate::synchronize_batch_norm) call it. A program whose own
    /// operations use the optimizer's group in their backward pass must call it, too.
    fn interleave(&self) {}

    /// The members' ranks in the world, in the order of their ranks in this group.
    fn ranks(&self) -> &[usize];

    /// Divides the group. Ranks with the same `colour` form a new group, in the order of their
    /// `key`s, and for equal keys in the order of their ranks here. A rank without a colour gets
    /// `None`. All ranks must call it together. A group may be split again, and may outlive the
    /// group that it was split from.
    ///
    /// # Errors
    /// A failure of another rank, a passed deadline or a disagreement between ranks.
    fn split(&self, colour: Option<u64>, key: i64) -> Result<Option<Group>>;

    /// The same ranks with another all-reduce, for ranks of several hosts: it first reduces along each row of
    /// `mesh`, then across the rows. Usually a row is a host. The mesh is the same on every rank. All ranks must call it
    /// together.
    ///
    /// Values are combined in rank order within each row, then row by row in the order of the
    /// rows' lowest ranks. Each of these sums is rounded to the element type. A mean is the sum
    /// divided once by the number of ranks. All other operations are the same as in this group.
    ///
    /// The ranks of a row together keep all [shards](crate::Shard) of a [`DistOpt`](crate::DistOpt) over it, if all rows
    /// have equally many ranks: [`Self::replica`].
    ///
    /// # Errors
    /// [`Error::Length`] if `mesh` does not have one place per rank. A failure of another rank, a
    /// passed deadline or a disagreement between ranks.
    fn hierarchical(&self, mesh: &Mesh) -> Result<Group>;

    /// The ranks of this rank's row, if this group is [hierarchical](Self::hierarchical) and all rows have equally
    /// many ranks. These ranks together keep one copy of what the ranks of a [`DistOpt`](crate::DistOpt) divide
    /// ([`Shard`](crate::Shard)), and each row has a copy.
    ///
    /// A [`Collective::ReduceScatterV`] of this group reduces over the ranks of *all* rows: each rank gets its part,
    /// one of as many as its row has ranks, with the bits that the all-reduce of the hierarchical group has there. All
    /// ranks of all rows must start it together. All other operations are those of the ranks of the row alone.
    ///
    /// `None` for any other group, for rows with different numbers of ranks, and over NCCL, where the reductions by
    /// layers take no numbers in a GPU's memory.
    fn replica(&self) -> Option<Group> {
        None
    }

    /// Bytes and time of all operations so far.
    fn stats(&self) -> CommStats;

    /// Reports to the other ranks that this one has failed, so that they stop with `message`. Over
    /// MPI it ends the job, so print the message here first.
    fn abort(&self, message: &str);

    /// The failure that every operation would return, if there is one: the failure of another rank,
    /// or of an earlier operation.
    fn failure(&self) -> Option<Error> {
        None
    }

    /// Reports a failure of this rank itself to the other ranks. Every later operation of this rank
    /// and of theirs returns an error. Does nothing if the communicator has failed already, or in a
    /// world of one.
    fn fail(&self, error: &Error) {
        let _ = error;
    }

    /// Says that the operations of this communicator are parts of other operations. From now on it does not
    /// report their failures to the other ranks by itself: the caller reports each by [`Self::fail`], under
    /// the name of its own operation.
    #[doc(hidden)]
    fn leave_reports_to_the_caller(&self) {}

    /// A group of the same ranks, for messages, which this rank does not leave when it [retires](Self::retire). All ranks
    /// call it together.
    ///
    /// # Errors
    /// A failure of another rank, a passed deadline or a disagreement between ranks.
    #[doc(hidden)]
    fn channel(&self) -> Result<Group> {
        self.split(Some(0), 0)?.ok_or_else(Error::no_member)
    }

    /// Says that this rank starts no collective any more, in any group, whoever has a handle of the group.
    #[doc(hidden)]
    fn retire(&self) {}

    /// The threads of this rank that answer messages of other ranks.
    #[doc(hidden)]
    fn services(&self) -> Option<&Arc<Services>> {
        None
    }
}
