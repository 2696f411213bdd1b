//! The division of a buffer among the ranks of a group.

use std::ops::Range;

use candelabrum_memory::CACHE_LINE;

/// The bytes of a buffer of `bytes` bytes that `rank` reduces. The slices of all ranks cover the
/// buffer. They start at cache lines, so that a line belongs to one rank.
pub(super) fn slice(bytes: usize, rank: usize, world_size: usize) -> Range<usize> {
    let len = bytes.div_ceil(world_size).next_multiple_of(CACHE_LINE);
    let start = (rank * len).min(bytes);
    start..bytes.min(start + len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_whole_lines_and_cover_everything() {
        let slices: Vec<_> = (0..3).map(|rank| slice(400, rank, 3)).collect();
        assert_eq!(slices, [0..192, 192..384, 384..400]);
        let none: Vec<_> = (0..2).map(|rank| slice(0, rank, 2)).collect();
        assert!(none.iter().all(Range::is_empty));
    }
}
