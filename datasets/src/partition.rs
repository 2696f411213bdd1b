//! Contiguous shares: the samples of each rank.
//!
//! SINGA's `partition` gives rank r of N the samples `[r * (n / N), (r + 1) * (n / N))` and drops
//! the remainder of n / N silently. This module computes the same ranges and counts the dropped
//! samples, and it has two ways to keep them.

use crate::error::{Error, Result};

/// The treatment of samples that cannot be divided evenly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Remainder {
    /// Drops and counts them, so every rank has the same number of samples. This is SINGA's way. It
    /// suits training: with reshuffling, other samples are dropped in each epoch.
    #[default]
    Drop,
    /// Fills up from the start, so that every rank has the same number of samples and none is
    /// dropped. Some samples are then used twice.
    Pad,
    /// Uses every sample exactly once over all ranks, and some ranks get fewer. This suits
    /// evaluation.
    Keep,
}

/// A rank's contiguous share of `len` samples. With [`Remainder::Pad`] it wraps round at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    /// The first sample of the share.
    pub start: usize,
    /// The number of samples in the share.
    pub share: usize,
    /// The number of samples that are partitioned.
    pub len: usize,
    /// The number of samples that no rank gets, over all ranks.
    pub dropped: usize,
    /// The number of samples that are used a second time to fill up, over all ranks.
    pub padded: usize,
}

impl Partition {
    /// The indices of the samples in this share, in order.
    pub fn indices(self) -> impl ExactSizeIterator<Item = usize> {
        (0..self.share).map(move |i| (self.start + i) % self.len)
    }
}

/// The share of rank `global_rank` of `world_size` in `len` samples.
///
/// Drop: `len / world_size` samples each. Pad: this number rounded up, wrapping round. Keep: the
/// first `len % world_size` ranks get one more than the other ranks.
///
/// # Errors
/// A world of 0 ranks, a rank outside the world, or a rank without samples. All ranks report the
/// last error, so that no rank trains alone.
pub fn partition(
    len: usize,
    global_rank: usize,
    world_size: usize,
    remainder: Remainder,
) -> Result<Partition> {
    check_rank(global_rank, world_size)?;
    let (even, extra) = (len / world_size, len % world_size);
    let (start, share, dropped, padded) = match remainder {
        Remainder::Drop => (global_rank * even, even, extra, 0),
        Remainder::Pad => {
            let share = len.div_ceil(world_size);
            (global_rank * share, share, 0, share * world_size - len)
        }
        Remainder::Keep => {
            let share = even + usize::from(global_rank < extra);
            (global_rank * even + global_rank.min(extra), share, 0, 0)
        }
    };
    if share == 0 || (remainder == Remainder::Keep && even == 0) {
        return Err(Error::argument(format!(
            "{len} samples over {world_size} ranks leave a rank without any: use at most {len} \
             workers"
        )));
    }
    Ok(Partition { start, share, len, dropped, padded })
}

/// Checks that the rank belongs to the world.
pub(crate) fn check_rank(global_rank: usize, world_size: usize) -> Result<()> {
    if world_size == 0 {
        return Err(Error::argument("a world of 0 ranks: world_size must be at least 1"));
    }
    if global_rank >= world_size {
        return Err(Error::argument(format!(
            "global rank {global_rank} in a world of {world_size}: ranks count from 0 and end below \
             world_size"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(len: usize, world_size: usize, remainder: Remainder) -> Vec<Vec<usize>> {
        let share = |rank| partition(len, rank, world_size, remainder).unwrap();
        (0..world_size).map(|rank| share(rank).indices().collect()).collect()
    }

    #[test]
    fn drop_gives_singas_ranges_and_counts_what_is_left_out() {
        assert_eq!(shares(10, 3, Remainder::Drop), [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7, 8]]);
        let part = partition(60_000, 2, 7, Remainder::Drop).unwrap();
        assert_eq!((part.start, part.share, part.dropped, part.padded), (17_142, 8_571, 3, 0));
        assert_eq!(partition(60_000, 1, 2, Remainder::Drop).unwrap().dropped, 0);
    }

    #[test]
    fn pad_wraps_round_and_gives_every_rank_as_many() {
        assert_eq!(
            shares(10, 3, Remainder::Pad),
            [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9, 0, 1]]
        );
        assert_eq!(partition(10, 0, 3, Remainder::Pad).unwrap().padded, 2);
        // More ranks than samples: the shares wrap round more than once.
        assert_eq!(shares(2, 5, Remainder::Pad), [[0], [1], [0], [1], [0]]);
    }

    #[test]
    fn uneven_shares_cover_every_sample_once() {
        for (len, world_size) in [(10, 3), (11, 3), (12, 3), (5, 5), (1, 1), (10_000, 7)] {
            let all: Vec<usize> = shares(len, world_size, Remainder::Keep).concat();
            assert_eq!(all, (0..len).collect::<Vec<_>>(), "{len} over {world_size}");
        }
    }

    #[test]
    fn impossible_worlds_are_errors_on_every_rank() {
        let check = |len, rank, world_size, remainder, expected: &str| {
            let message = partition(len, rank, world_size, remainder).unwrap_err().to_string();
            assert!(message.starts_with(expected), "{message}");
        };
        check(10, 0, 0, Remainder::Drop, "a world of 0 ranks");
        check(10, 3, 3, Remainder::Drop, "global rank 3 in a world of 3");
        for remainder in [Remainder::Drop, Remainder::Keep] {
            for rank in 0..4 {
                check(3, rank, 4, remainder, "3 samples over 4 ranks leave a rank without any");
            }
        }
        check(0, 0, 1, Remainder::Pad, "0 samples over 1 ranks");
    }
}
