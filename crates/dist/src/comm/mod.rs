//! Communication between ranks: one [`Communicator`] trait, one file per backend behind it.
//!
//! A collective is *started*, which moves its [`Payload`] to the communicator, and *waited for*,
//! which gives it back. The blocking methods on `dyn Communicator` do both at once for slices.
//! Every operation is preceded by an exchange of headers, so that ranks which call different
//! things get an error that names the first one that differs.
//!
//! **Invariant** this module knows buffers and element types, not models or parameters.

mod collective;
mod engine;
mod layers;
mod local;
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
mod payload;
mod pending;
mod rendezvous;
mod single;
mod stats;
mod tcp;
mod threaded;
mod transport;

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

/// Ranks that work on buffers together: all of them, or some. A cheap handle.
pub type Group = Arc<dyn Communicator>;

/// A group of ranks that work on buffers together.
///
/// Operations are carried out in the order in which they are started or run, by whichever threads,
/// over all groups of this rank that were [split](Self::split) from one world. Of two operations that
/// share more than one rank, all these ranks must start the same one first. After an operation of any
/// of these groups has failed, every later one of all of them gives the same error.
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

    /// Starts `op` on `buffer`; [`Pending::wait`] gives the result, and the error if it fails.
    ///
    /// It is carried out in the background: by a thread that waits for nothing else, or by the one
    /// that waits for the result.
    ///
    /// Length of the result for `n` elements in the buffer and `N` ranks: `n` for all-reduce,
    /// all-to-all, broadcast, barrier and recv, and for reduce on the root (0 elsewhere); 0 for
    /// send; `N·n` for all-gather, and for gather on the root (0 elsewhere); `n / N` for
    /// reduce-scatter, and for scatter, where `n` is the root's length and the other ranks' buffers
    /// count for nothing. Where ranks send different amounts, the sum of what this rank gets.
    fn start(&self, op: Collective, buffer: Payload) -> Pending;

    /// The same for a caller that has nothing else to do meanwhile: `start` and `wait` in one,
    /// without a second thread where nothing else is under way and the backend may be called from
    /// any thread.
    ///
    /// # Errors
    /// What went wrong, here or on another rank.
    fn run(&self, op: Collective, buffer: Payload) -> Result<Payload> {
        self.start(op, buffer).wait()
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

/// The blocking form of every operation, on slices.
impl dyn Communicator + '_ {
    /// Whether this process is rank 0 of the world, which prints and writes for all.
    pub fn is_world_root(&self) -> bool {
        self.ranks().get(self.rank()) == Some(&0)
    }

    /// Replaces `values` on every rank by their reduction over all ranks.
    ///
    /// # Errors
    /// See [`Error`]: a rank that died or disagrees, a passed deadline.
    pub fn all_reduce<T: Element>(&self, values: &mut [T], op: ReduceOp) -> Result<()> {
        self.in_place(Collective::AllReduce(op), values)
    }

    /// Replaces `values` on every rank by `root`'s.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn broadcast<T: Element>(&self, values: &mut [T], root: usize) -> Result<()> {
        self.in_place(Collective::Broadcast { root }, values)
    }

    /// All ranks' `values`, in rank order. Every rank gives equally many.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_gather<T: Element>(&self, values: &[T]) -> Result<Vec<T>> {
        self.run(Collective::AllGather, Payload::from_slice(values))?.to_vec()
    }

    /// Part `rank` of the reduction of `values` over all ranks; the length must divide by the
    /// number of ranks.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn reduce_scatter<T: Element>(&self, values: &[T], op: ReduceOp) -> Result<Vec<T>> {
        self.run(Collective::ReduceScatter(op), Payload::from_slice(values))?.to_vec()
    }

    /// On `root` all ranks' `values`, in rank order; nothing elsewhere.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn gather<T: Element>(&self, values: &[T], root: usize) -> Result<Vec<T>> {
        self.run(Collective::Gather { root }, Payload::from_slice(values))?.to_vec()
    }

    /// Part `rank` of `root`'s `values`; what the other ranks pass is not looked at.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn scatter<T: Element>(&self, values: &[T], root: usize) -> Result<Vec<T>> {
        self.run(Collective::Scatter { root }, Payload::from_slice(values))?.to_vec()
    }

    /// On `root` the reduction of all ranks' `values`; nothing elsewhere.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn reduce<T: Element>(&self, values: &[T], op: ReduceOp, root: usize) -> Result<Vec<T>> {
        self.run(Collective::Reduce { op, root }, Payload::from_slice(values))?.to_vec()
    }

    /// Each rank's `values`, in rank order; they may have different lengths.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_gather_v<T: Element>(&self, values: &[T]) -> Result<Vec<Vec<T>>> {
        in_parts(&self.run(Collective::AllGatherV, Payload::from_slice(values))?)
    }

    /// Part `r` of `values`, which are cut into as many equal parts as ranks, goes to rank `r`;
    /// gives what came from the ranks, in their order.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_to_all<T: Element>(&self, values: &[T]) -> Result<Vec<T>> {
        self.run(Collective::AllToAll, Payload::from_slice(values))?.to_vec()
    }

    /// `parts[r]` goes to rank `r`; gives what came from each rank.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_to_all_v<T: Element>(&self, parts: &[Vec<T>]) -> Result<Vec<Vec<T>>> {
        let lens: Vec<usize> = parts.iter().map(Vec::len).collect();
        let buffer = Payload::from_slice(&parts.concat()).with_parts(lens)?;
        in_parts(&self.run(Collective::AllToAllV, buffer)?)
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn barrier(&self) -> Result<()> {
        self.run(Collective::Barrier, Payload::empty()).map(|_| ())
    }

    /// Sends `values` to rank `to`.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn send<T: Element>(&self, values: &[T], to: usize) -> Result<()> {
        self.run(Collective::Send { to }, Payload::from_slice(values)).map(|_| ())
    }

    /// Fills `values` with what rank `from` sends; it must send exactly as many of the same type.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn recv<T: Element>(&self, values: &mut [T], from: usize) -> Result<()> {
        self.in_place(Collective::Recv { from }, values)
    }

    /// The next message of any rank: who sent it, and what. Messages of one rank keep their order.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn recv_any<T: Element>(&self) -> Result<(usize, Vec<T>)> {
        let message = self.run(Collective::RecvAny, Payload::zeros(T::TYPE, 0))?;
        let what = || "a message without a sender".to_owned();
        let source = message.source().ok_or_else(|| Error::Protocol { what: what() })?;
        Ok((source, message.to_vec()?))
    }

    /// All ranks' texts, in rank order. They may have different lengths.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_gather_text(&self, text: &str) -> Result<Vec<String>> {
        let mut length = [i32::try_from(text.len())
            .map_err(|_| Error::Unsupported { what: format!("a text of {} bytes", text.len()) })?];
        let lengths = self.all_gather(&length)?;
        self.all_reduce(&mut length, ReduceOp::Max)?;
        let room = usize::try_from(length[0]).unwrap_or_default();
        let mut padded = text.as_bytes().to_vec();
        padded.resize(room, 0);
        let all = self.all_gather(&padded)?;
        let texts = lengths.iter().enumerate().map(|(rank, &len)| {
            let start = rank * room;
            let len = usize::try_from(len).unwrap_or_default();
            String::from_utf8_lossy(&all[start..start + len]).into_owned()
        });
        Ok(texts.collect())
    }

    /// `root`'s text, on every rank.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn broadcast_text(&self, text: &str, root: usize) -> Result<String> {
        let mut length = [i32::try_from(text.len())
            .map_err(|_| Error::Unsupported { what: format!("a text of {} bytes", text.len()) })?];
        self.broadcast(&mut length, root)?;
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(usize::try_from(length[0]).unwrap_or_default(), 0);
        self.broadcast(&mut bytes, root)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn in_place<T: Element>(&self, op: Collective, values: &mut [T]) -> Result<()> {
        let result = self.run(op, Payload::from_slice(values))?;
        let result = result.as_slice::<T>()?;
        if result.len() != values.len() {
            let (expected, got) = (result.len(), values.len());
            return Err(Error::Length { op: op.name(), expected, got });
        }
        values.copy_from_slice(result);
        Ok(())
    }
}

/// The parts of a result whose ranks send different amounts.
fn in_parts<T: Element>(buffer: &Payload) -> Result<Vec<Vec<T>>> {
    let mut rest = buffer.as_slice::<T>()?;
    let mut parts = Vec::new();
    for &len in buffer.parts().unwrap_or_default() {
        let (part, tail) = rest.split_at(len);
        parts.push(part.to_vec());
        rest = tail;
    }
    Ok(parts)
}
