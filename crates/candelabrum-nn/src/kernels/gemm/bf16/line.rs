//! What the kernels load at a time.
//!
//! The kernels multiply *pairs*: two numbers in bf16 that follow each other in the depth, in 32 bits. A
//! *line* has 16 pairs: a vector, and a line of the cache.

/// The pairs of a vector.
pub(crate) const LANES: usize = 16;

/// 16 pairs. The 32 bits of a pair are stored as an f32, because recycled memory has this type.
pub(super) type PairLine = [f32; LANES];

/// The rows of a tile in vector registers: half of the rows of a line.
pub(super) const HALF: usize = LANES / 2;

/// Which pairs a line has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineForm {
    /// A line for each place of the depth: the pairs of 16 rows of a left factor, or of 16 columns of a right one.
    Depth,
    /// A line for each row: its pairs at 16 places of the depth. 16 such lines, for 16 rows, are a tile.
    Width,
    /// No pairs, but numbers in f32: a row after the other.
    Rows,
    /// No pairs, but numbers in f32: those of 48 columns for each step of the depth.
    Columns,
}

/// The columns of a group in the form of columns: whole tiles of the f32 kernel on every instruction set.
pub(super) const COLUMNS: usize = 3 * LANES;

impl LineForm {
    /// The rows or columns of a group.
    pub(super) fn group(self) -> usize {
        match self {
            Self::Depth | Self::Width | Self::Rows => LANES,
            Self::Columns => COLUMNS,
        }
    }
}

/// Where a part of a factor is packed to.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedPlace {
    /// The lines from a group of rows or columns to the next one.
    pub(super) group: usize,
    /// The lines from a tile of the depth to the next one, or from a row to the next one in the form of rows.
    pub(super) tile: usize,
    /// The pair of each row or column with which the part begins.
    pub(super) pair: usize,
}
