//! A product of factors in bf16, with sums in f32, tile by tile in vector registers.

use std::ops::Range;

use super::finish::Finish;
use super::instructions::Instructions;
use super::line::{HALF, LANES};
use super::packed::Packed;
use crate::kernels::mat_mut::MatMut;

/// Pairs that are summed without going through memory: the lines of a tile's columns for so many pairs
/// take 36 KiB, and those of 16 rows take 12 KiB. The number decides only in which order sums are added.
const PAIRS: usize = 192;

/// The vectors of columns of the widest tile.
const VECTORS: usize = 3;

/// `out = scale left right` or `out += scale left right`, for the rows of `left` from `row` on, which is a
/// multiple of 16. `out` has as many rows as are computed, and all columns.
pub(super) fn product(
    instructions: Instructions,
    (left, row): (&Packed, usize),
    right: &Packed,
    mut out: MatMut<'_, f32>,
    finish: Finish,
) {
    let pairs = left.pairs();
    // Blocks of nearly equal length.
    let block = pairs.div_ceil(pairs.div_ceil(PAIRS).max(1)).max(1);
    for first in (0..pairs).step_by(block) {
        let block = first..pairs.min(first + block);
        let add = finish.add || first > 0;
        let finish = Finish { add, ..finish };
        let mut column = 0;
        while column < right.width() {
            // Two tiles of two vectors are faster than one of three and one of one.
            let vectors = match (right.width() - column).div_ceil(LANES) {
                4 => 2,
                vectors => vectors.min(VECTORS),
            };
            let columns = column..right.width().min(column + vectors * LANES);
            let columns =
                RightColumns { instructions, right, columns, block: block.clone(), finish };
            match vectors {
                1 => columns.multiply::<1>(left, row, &mut out),
                2 => columns.multiply::<2>(left, row, &mut out),
                _ => columns.multiply::<VECTORS>(left, row, &mut out),
            }
            column += vectors * LANES;
        }
    }
}

/// Some columns of the right factor, which are those of a tile, and some pairs of both.
struct RightColumns<'a> {
    instructions: Instructions,
    right: &'a Packed,
    columns: Range<usize>,
    block: Range<usize>,
    finish: Finish,
}

impl RightColumns<'_> {
    /// Multiplies them by the rows of `left` from `first` on.
    #[inline(always)]
    fn multiply<const VECTORS: usize>(
        self,
        left: &Packed,
        first: usize,
        out: &mut MatMut<'_, f32>,
    ) {
        let Self { instructions, right, columns, block, finish } = self;
        let mut lines: [&[_]; VECTORS] = [&[]; VECTORS];
        for (vector, line) in lines.iter_mut().enumerate() {
            *line = right.group(columns.start / LANES + vector, block.clone());
        }
        for row in (0..out.rows()).step_by(HALF) {
            let group = left.group((first + row) / LANES, block.clone());
            // The first or the second half of each line.
            let (halves, _) = group.as_flattened().as_chunks::<HALF>();
            let halves = &halves[row % LANES / HALF..];
            let out = out.part(row..out.rows().min(row + HALF), columns.clone());
            instructions.tile(halves, lines, out, finish);
        }
    }
}
