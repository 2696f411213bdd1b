//! The length of the pieces of a long collective. It depends on the hosts of the ranks:
//!
//! - Between hosts, Open MPI asks the receiver before it sends more than 64 KiB over TCP. If the
//!   receiver is a little late, its answer waits in the socket behind its own long messages, so the
//!   two directions of the wire work one after the other. Shorter messages are sent at once.
//!   44.7 MB between two hosts at 1 Gbit/s take 374, 377 and 379 ms with a rank 0, 5 and 50 ms late, and
//!   pieces of 1 MiB take 560, 522 and 562. `MPI_Allreduce` in place took 381 to 585 in several runs, and
//!   PyTorch's Gloo 374. That was measured with Open MPI 4.1.4 between two network namespaces of one
//!   Intel machine, see `cargo xtask bench allreduce --ranks 2 --hosts 1000 --late-ms 5 --size 44.7MB`.
//! - On one host the receiver makes the only copy of a message, inside a call of MPI, and starts
//!   nothing else while it copies. Two ranks that are half a step apart would copy in turn, each waiting
//!   for the other. Therefore a rank sends its next piece up when it has reduced one of its own, and all
//!   ranks copy at the same time. Nothing overlaps there, so short pieces only add handshakes: with two
//!   ranks on two Intel cores and 6.8 MB, pieces of 256 KiB, 1 MiB and 4 MiB reach 0.71, 0.95 and 1.01
//!   of the speed of `MPI_Allreduce` in place. Longer pieces are no faster.

use candelabrum_memory::CACHE_LINE;

/// Bytes of a piece between hosts. With the library's header this is less than its 64 KiB.
const BETWEEN_HOSTS: usize = 60 << 10;

/// The number of pieces under way between two hosts' ranks: 1 Gbit/s for 7.9 ms.
const UNDER_WAY: usize = 16;

/// Bytes of the pieces that a rank receives at a time on one host, from all other ranks together.
const ON_ONE_HOST: usize = 4 << 20;

/// The fewest bytes of a piece on one host.
const LEAST: usize = 64 << 10;

/// The bytes of a piece, and the number of pieces sent up to an owner before the first comes down.
#[derive(Clone, Copy, Debug)]
pub(super) struct PipelineSizes {
    pub(super) piece: usize,
    pub(super) window: usize,
}

impl PipelineSizes {
    pub(super) fn new(on_one_host: bool, world_size: usize) -> Self {
        let others = world_size.saturating_sub(1).max(1);
        // Whole cache lines, so that every piece is aligned for every element type and every vector.
        let piece = (ON_ONE_HOST / others).max(LEAST).next_multiple_of(CACHE_LINE);
        match on_one_host {
            true => Self { piece, window: 1 },
            false => Self { piece: BETWEEN_HOSTS, window: UNDER_WAY },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_and_what_a_rank_gets_at_a_time_is_bounded() {
        for n in 1..100 {
            let PipelineSizes { piece, window } = PipelineSizes::new(true, n);
            assert!(piece.is_multiple_of(CACHE_LINE) && piece >= LEAST && window == 1);
            assert!(
                n > 16 || piece * n.saturating_sub(1) <= ON_ONE_HOST + CACHE_LINE * n,
                "{n} ranks"
            );
            let PipelineSizes { piece, .. } = PipelineSizes::new(false, n);
            assert!(piece.is_multiple_of(CACHE_LINE) && piece < 64 << 10);
        }
    }
}
