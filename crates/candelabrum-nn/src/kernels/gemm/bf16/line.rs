//! What the kernel loads at a time.
//!
//! The kernel multiplies *pairs*: two numbers in bf16 that follow each other in the depth, in 32 bits. A
//! *line* has the pairs of 16 rows of a left factor, or of 16 columns of a right one, at one place of the
//! depth: a vector, and a line of the cache.

/// The pairs of a vector.
pub(crate) const LANES: usize = 16;

/// 16 pairs. The 32 bits of a pair are stored as an f32, because recycled memory has this type.
pub(super) type Line = [f32; LANES];

/// The rows of a tile: half of the rows of a line.
pub(super) const HALF: usize = LANES / 2;
