//! How much has travelled, and how long that took.

use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Collective;

/// Payload and time of a communicator since it was made; subtract two to get what lies between.
///
/// Bytes are payload that this rank handed to, or took from, the transport, for `n` bytes in its
/// buffer and `N` ranks: an all-reduce sends and receives `n`; an all-gather sends `n` and receives
/// `(N-1)·n`; a reduce-scatter sends `n` and receives `n/N`; broadcast, gather and scatter count
/// on each side what that side gives or takes. A world of one sends nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommStats {
    /// Payload bytes handed to the transport.
    pub bytes_sent: u64,
    /// Payload bytes taken from the transport.
    pub bytes_received: u64,
    /// Time that operations took, from the start of their execution, waiting for others included.
    pub busy: Duration,
    /// Time that callers stood still in `wait`.
    pub exposed: Duration,
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
    /// Counts a finished operation on a buffer of `bytes` that took `busy`.
    pub(crate) fn count(
        &self,
        op: Collective,
        bytes: usize,
        rank: usize,
        world_size: usize,
        busy: Duration,
    ) {
        let (sent, received) = payload(op, bytes as u64, rank, world_size as u64);
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

/// Bytes that a rank sends and receives.
fn payload(op: Collective, n: u64, rank: usize, world_size: u64) -> (u64, u64) {
    let others = world_size - 1;
    let if_root =
        |root: usize, yes: (u64, u64), no: (u64, u64)| if rank == root { yes } else { no };
    match op {
        Collective::Send { .. } => (n, 0),
        Collective::Recv { .. } | Collective::RecvAny => (0, n),
        _ if others == 0 => (0, 0),
        Collective::AllReduce(_) => (n, n),
        Collective::Broadcast { root } => if_root(root, (n, 0), (0, n)),
        Collective::AllGather => (n, others * n),
        Collective::ReduceScatter(_) => (n, n / world_size),
        Collective::Gather { root } => if_root(root, (0, others * n), (n, 0)),
        // `n` is the length of the result here: one part.
        Collective::Scatter { root } => if_root(root, (others * n, 0), (0, n)),
        Collective::Reduce { root, .. } => if_root(root, (n, n), (n, 0)),
        Collective::AllToAll => (n / world_size * others, n / world_size * others),
        // `n` is the length of the result here, less what the rank gave itself.
        Collective::AllGatherV | Collective::AllToAllV => (0, n),
        Collective::Barrier => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::ReduceOp;

    #[test]
    fn payload_by_hand() {
        let sum = Collective::AllReduce(ReduceOp::Sum);
        assert_eq!(payload(sum, 100, 0, 4), (100, 100));
        assert_eq!(payload(sum, 100, 0, 1), (0, 0));
        assert_eq!(payload(Collective::AllGather, 100, 2, 4), (100, 300));
        assert_eq!(payload(Collective::ReduceScatter(ReduceOp::Sum), 100, 2, 4), (100, 25));
        assert_eq!(payload(Collective::Gather { root: 2 }, 100, 2, 4), (0, 300));
        assert_eq!(payload(Collective::Scatter { root: 2 }, 100, 0, 4), (0, 100));
        assert_eq!(payload(Collective::Broadcast { root: 0 }, 100, 0, 4), (100, 0));
    }
}
