//! The traffic of a communicator: bytes and time.

use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Collective, Payload};

/// Payload bytes and time of a communicator since it was made. The difference of two values is the
/// traffic between them.
///
/// Bytes are payload bytes that this rank gave to the transport or received from it. For `n` bytes
/// in this rank's payload and `N` ranks, an all-reduce sends and receives `n`; an all-gather sends
/// `n` and receives `(N-1)·n`; a reduce-scatter sends `n` and receives the rank's part; an all-gather in
/// place sends the rank's part and receives the others. Where [hosts have copies](super::Communicator::replica), a
/// reduce-scatter also sends and receives the part between hosts. An all-to-all counts all parts except the rank's
/// own; a reduce sends `n`, and the root receives `n`; broadcast,
/// gather and scatter count on each rank the bytes that the rank sends or receives. A world of one
/// sends nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommStats {
    /// Payload bytes given to the transport.
    pub bytes_sent: u64,
    /// Payload bytes received from the transport.
    pub bytes_received: u64,
    /// Time in operations, from the start of their execution, including the wait for other ranks.
    pub busy: Duration,
    /// Time in which callers were blocked: in [`Pending::wait`](super::Pending::wait), and in
    /// operations that they [ran](super::Communicator::run) instead of starting them.
    pub exposed: Duration,
}

impl Add for CommStats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes_sent: self.bytes_sent + other.bytes_sent,
            bytes_received: self.bytes_received + other.bytes_received,
            busy: self.busy + other.busy,
            exposed: self.exposed + other.exposed,
        }
    }
}

impl Sub for CommStats {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            bytes_sent: self.bytes_sent - earlier.bytes_sent,
            bytes_received: self.bytes_received - earlier.bytes_received,
            busy: self.busy - earlier.busy,
            exposed: self.exposed - earlier.exposed,
        }
    }
}

/// The counters behind [`CommStats`], shared by the threads of one rank.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    sent: AtomicU64,
    received: AtomicU64,
    busy_ns: AtomicU64,
    exposed_ns: AtomicU64,
}

impl Counters {
    /// Counts a finished operation that took `busy`.
    pub(crate) fn count(
        &self,
        op: Collective,
        moved: PayloadBytes,
        rank: usize,
        world_size: usize,
        busy: Duration,
    ) {
        let (sent, received) = payload(op, moved, rank, world_size as u64);
        self.sent.fetch_add(sent, Ordering::Relaxed);
        self.received.fetch_add(received, Ordering::Relaxed);
        self.busy_ns.fetch_add(busy.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_exposed(&self, waited: Duration) {
        self.exposed_ns.fetch_add(waited.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> CommStats {
        CommStats {
            bytes_sent: self.sent.load(Ordering::Relaxed),
            bytes_received: self.received.load(Ordering::Relaxed),
            busy: Duration::from_nanos(self.busy_ns.load(Ordering::Relaxed)),
            exposed: Duration::from_nanos(self.exposed_ns.load(Ordering::Relaxed)),
        }
    }
}

/// Bytes in the payloads of an operation on one rank.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PayloadBytes {
    pub(crate) input: usize,
    pub(crate) output: usize,
    /// Bytes of the part that a rank sends to itself, if parts have any lengths.
    pub(crate) own: usize,
}

impl PayloadBytes {
    /// The bytes that `rank` passes to an operation.
    pub(crate) fn from_payload(payload: &Payload, rank: usize) -> Self {
        let part = payload.parts().and_then(|parts| parts.get(rank));
        let own = part.map_or(0, |len| len * payload.element_type().size());
        Self { input: payload.byte_len(), output: 0, own }
    }

    /// Adds the bytes that the rank gets.
    pub(crate) fn to(self, result: &Payload) -> Self {
        Self { output: result.byte_len(), ..self }
    }
}

/// The bytes that a rank sends and receives.
fn payload(op: Collective, moved: PayloadBytes, rank: usize, world_size: u64) -> (u64, u64) {
    let (input, output, own) = (moved.input as u64, moved.output as u64, moved.own as u64);
    // Both cases are computed on every rank. On a rank that is not the root the lengths are
    // arbitrary, so the difference may be negative.
    let less = u64::saturating_sub;
    let if_root =
        |root: usize, yes: (u64, u64), no: (u64, u64)| if rank == root { yes } else { no };
    match op {
        Collective::Send { .. } => (input, 0),
        Collective::Recv { .. } | Collective::RecvAny => (0, output),
        _ if world_size == 1 => (0, 0),
        Collective::AllReduce(_) | Collective::ReduceScatter(_) => (input, output),
        Collective::Broadcast { root } => if_root(root, (input, 0), (0, output)),
        Collective::AllGather | Collective::AllGatherV => (input, less(output, input)),
        Collective::Gather { root } => if_root(root, (0, less(output, input)), (input, 0)),
        Collective::Scatter { root } => if_root(root, (less(input, output), 0), (0, output)),
        Collective::Reduce { .. } => (input, output),
        Collective::AllToAll => (input - input / world_size, output - output / world_size),
        Collective::AllToAllV => (input - own, output - own),
        Collective::ReduceScatterV(_) => (input, own),
        Collective::AllGatherInPlace => (own, input - own),
        Collective::Barrier => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::ReduceOp;

    #[test]
    fn payload_by_hand() {
        let payload = |op, input, output, rank, world_size| {
            payload(op, PayloadBytes { input, output, own: 7 }, rank, world_size)
        };
        let sum = Collective::AllReduce(ReduceOp::Sum);
        assert_eq!(payload(sum, 100, 100, 0, 4), (100, 100));
        assert_eq!(payload(sum, 100, 100, 0, 1), (0, 0));
        assert_eq!(payload(Collective::AllGather, 100, 400, 2, 4), (100, 300));
        assert_eq!(payload(Collective::ReduceScatter(ReduceOp::Sum), 100, 25, 2, 4), (100, 25));
        assert_eq!(payload(Collective::Gather { root: 2 }, 100, 400, 2, 4), (0, 300));
        assert_eq!(payload(Collective::Scatter { root: 2 }, 9, 100, 0, 4), (0, 100));
        assert_eq!(payload(Collective::AllToAll, 100, 100, 0, 4), (75, 75));
        assert_eq!(payload(Collective::AllToAllV, 100, 50, 0, 4), (93, 43));
        assert_eq!(payload(Collective::AllGatherV, 100, 150, 0, 4), (100, 50));
        assert_eq!(payload(Collective::ReduceScatterV(ReduceOp::Sum), 100, 100, 2, 4), (100, 7));
        assert_eq!(payload(Collective::AllGatherInPlace, 100, 100, 2, 4), (7, 93));
        let reduce = Collective::Reduce { op: ReduceOp::Sum, root: 1 };
        assert_eq!(payload(reduce, 100, 0, 0, 4), (100, 0));
        assert_eq!(payload(Collective::Broadcast { root: 0 }, 100, 100, 0, 4), (100, 0));
    }
}
