//! The cell of a rank: the words of shared memory with which the rank takes part in barriers.

use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::comm::collective::CollectiveHeader;

/// The words that a rank shows to the other ranks before an operation: the header, and the number
/// of the region that contains the payload, or 0.
pub(super) type AnnouncedWords = [u64; CollectiveHeader::WORDS + 1];

/// The state of one rank at a barrier. It has two cache lines, because processors prefetch lines in
/// pairs.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct BarrierCell {
    /// The number of barriers that this rank has reached.
    pub(super) arrived: AtomicU32,
    /// The barrier at which this rank has given up, by its number among those that the rank has reached, or 0.
    pub(super) given_up: AtomicU32,
    /// The number of ranks that sleep until `arrived` changes.
    pub(super) sleepers: AtomicU32,
    /// The core of the rank at its last arrival.
    pub(super) core: AtomicU32,
    /// The words of the rank's operation, for odd and even operations in turn: a rank that is one
    /// operation ahead must not overwrite the words that a slower rank still reads.
    pub(super) shown: [[AtomicU64; CollectiveHeader::WORDS + 1]; 2],
}
