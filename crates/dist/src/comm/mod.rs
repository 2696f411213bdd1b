//! Communication between ranks: one [`Communicator`] trait, one file per backend behind it.
//!
//! A collective is *started*, which moves its [`Payload`] to the communicator, and *waited for*,
//! which gives it back. The blocking methods on `dyn Communicator` do both at once for slices.
//! Every collective is preceded by an exchange of headers, so that ranks which call different
//! things get an error that names the first one that differs.
//!
//! | idea | file |
//! |---|---|
//! | what can be asked for, and how ranks agree on it | `collective.rs`, `payload.rs`, `blocking.rs` |
//! | a rank's groups and whose turn it is | `threaded.rs`, `members.rs`, `engine.rs`, `layers.rs` |
//! | what a backend has to do | `transport.rs` |
//! | messages of one rank to another, deaths and failures | `network/`, `mailbox.rs` |
//! | the backends | `single.rs`, `local/`, `mpi/`, `tcp/`, `nccl/` |
//!
//! **Invariant** this module knows payloads and element types, not models or parameters.

mod blocking;
mod collective;
mod engine;
mod layers;
mod local;
mod mailbox;
mod members;
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
mod network;
mod payload;
mod pending;
mod rendezvous;
mod single;
mod stats;
mod tcp;
mod threaded;
mod transport;
mod wait;

use std::fmt;
use std::sync::Arc;

pub use candelabrum_memory::{Element, ElementType, ReduceOp};
pub use collective::Collective;
pub use payload::{Label, Payload};
pub use pending::Pending;
pub use stats::CommStats;

pub(crate) use local::{LocalConfig, connect as connect_local};
pub(crate) use mpi::{COMPILED as MPI_COMPILED, connect as connect_mpi};
pub(crate) use nccl::{COMPILED as NCCL_COMPILED, connect as connect_nccl};
#[cfg(test)]
pub(crate) use pending::Started;
pub(crate) use single::Single;
pub(crate) use tcp::{TcpConfig, connect as connect_tcp};

use crate::{Error, Result};

/// Ranks that work on payloads together: all of them, or some. A cheap handle.
pub type Group = Arc<dyn Communicator>;

/// A group of ranks that work on payloads together.
///
/// Collectives are carried out in the order in which they are started or run, by whichever threads,
/// over all groups of this rank that were [split](Self::split) from one world. Of two collectives that
/// share more than one rank, all these ranks must start the same one first. After an operation of any
/// of these groups has failed, every later one of all of them gives the same error.
///
/// Messages of one rank to another go beside the collectives: neither waits for the other. Messages of
/// a pair of ranks in a group keep their order, and receives get them in the order in which the
/// receives were started. A rank takes in up to 16 MiB of another's messages before it asks for them,
/// and a longer one where it has none; a send beyond that is complete when the receiver has asked for
/// earlier ones. (Over MPI the library decides what it takes in.)
///
/// A collective whose arguments a rank refuses, a length that does not divide for instance, is an
/// error on all ranks. Where all of them refuse it, the group can be used as before.
///
/// Ranks in operations are numbers within the group; ranks in errors are numbers in the world. The
/// last of a world's groups to be dropped finishes what was started and leaves the job in order.
pub trait Communicator: fmt::Debug + Send + Sync {
    /// The backend's name: `single`, `local`, `mpi`, `tcp`, `nccl`.
    fn backend(&self) -> &'static str;

    /// This process's number in the group, from 0.
    fn rank(&self) -> usize;

    /// The number of processes in the group.
    fn world_size(&self) -> usize;

    /// Zeroed memory for `len` elements where this backend reduces fastest. All ranks must call it
    /// together.
    ///
    /// # Errors
    /// Not enough memory, or ranks that ask for different things.
    fn alloc(&self, element: ElementType, len: usize) -> Result<Payload>;

    /// Starts `op` on `payload`; [`Pending::wait`] gives the result, and the error if it fails.
    ///
    /// It is carried out in the background: by a thread that waits for nothing else, or by the one
    /// that waits for the result.
    ///
    /// Length of the result for `n` elements in the payload and `N` ranks: `n` for all-reduce,
    /// all-to-all, broadcast, barrier and recv, and for reduce on the root (0 elsewhere); 0 for
    /// send; `N·n` for all-gather, and for gather on the root (0 elsewhere); `n / N` for
    /// reduce-scatter, and for scatter, where `n` is the root's length and the other ranks' payloads
    /// count for nothing. Where ranks send different amounts, the sum of what this rank gets.
    fn start(&self, op: Collective, payload: Payload) -> Pending;

    /// The same for a caller that has nothing else to do meanwhile: `start` and `wait` in one,
    /// without a second thread where nothing else is under way and the backend may be called from
    /// any thread.
    ///
    /// # Errors
    /// What went wrong, here or on another rank.
    fn run(&self, op: Collective, payload: Payload) -> Result<Payload> {
        self.start(op, payload).wait()
    }

    /// The members' ranks in the world, in the order of their ranks here.
    fn ranks(&self) -> &[usize];

    /// Groups of ranks: those that give the same `colour` are together, in the order of their
    /// `key`s, and of their ranks here where keys are equal. `None` for a rank that gives no
    /// colour. All ranks must call it together. A group may be split again, and may be used longer
    /// than the one that it was split from.
    ///
    /// # Errors
    /// What goes wrong between ranks.
    fn split(&self, colour: Option<u64>, key: i64) -> Result<Option<Group>>;

    /// The same ranks again, with an all-reduce for ranks of several hosts: within each host first,
    /// then between hosts. `hosts` has a number for each rank's host, the same on every rank. All
    /// ranks must call it together.
    ///
    /// Values are combined in rank order within each host, then host by host in the order of the
    /// hosts' lowest ranks, and every one of these sums is rounded to the element type; a mean is
    /// the sum divided once by the number of ranks. All other operations are as they are here.
    ///
    /// # Errors
    /// What goes wrong between ranks; [`Error::Length`] where `hosts` has not one number per rank.
    fn hierarchical(&self, hosts: &[usize]) -> Result<Group>;

    /// What has travelled so far.
    fn stats(&self) -> CommStats;

    /// Tells the other ranks that this one has failed, so that they stop and say why. Over MPI it
    /// ends the job, so say it here first.
    fn abort(&self, message: &str);

    /// The failure that every operation would give, if there is one: of another rank, or of an earlier
    /// operation.
    fn failure(&self) -> Option<Error> {
        None
    }

    /// Says that this rank has failed by itself: the other ranks are told, and every later operation
    /// of this rank and of theirs gives an error. Does nothing where the communicator has failed
    /// already. A world of one has nobody to tell and goes on.
    fn fail(&self, error: &Error) {
        let _ = error;
    }
}
