//! A product of factors in bf16, with sums in f32, tile by tile in vector registers.

use std::ops::Range;

use super::line::{HALF, LANES};
use super::packed::PackedFactor;
use super::x86::Avx512;
use crate::kernels::mat_mut::MatMut;

/// The vectors of columns of the widest tile.
const VECTORS: usize = 3;

/// Writes or adds the product of some pairs of both factors, for the rows of `left` from `row` on, which is a multiple of
/// 16.
pub(super) fn product(
    avx512: Avx512,
    (left, row): (&PackedFactor, usize),
    right: &PackedFactor,
    block: Range<usize>,
    mut out: MatMut<'_, f32>,
    add: bool,
) {
    let mut column = 0;
    while column < right.width() {
        // Two tiles of two vectors are faster than one of three and one of one.
        let vectors = match (right.width() - column).div_ceil(LANES) {
            4 => 2,
            vectors => vectors.min(VECTORS),
        };
        let columns = column..right.width().min(column + vectors * LANES);
        let columns = RightColumns { avx512, right, columns, block: block.clone(), add };
        match vectors {
            1 => columns.multiply::<1>(left, row, &mut out),
            2 => columns.multiply::<2>(left, row, &mut out),
            _ => columns.multiply::<VECTORS>(left, row, &mut out),
        }
        column += vectors * LANES;
    }
}

/// Some columns of the right factor, which are those of a tile, and some pairs of both.
struct RightColumns<'a> {
    avx512: Avx512,
    right: &'a PackedFactor,
    columns: Range<usize>,
    block: Range<usize>,
    add: bool,
}

impl RightColumns<'_> {
    /// Multiplies them by the rows of `left` from `first` on.
    #[inline(always)]
    fn multiply<const VECTORS: usize>(
        self,
        left: &PackedFactor,
        first: usize,
        out: &mut MatMut<'_, f32>,
    ) {
        let Self { avx512, right, columns, block, add } = self;
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
            avx512.tile(halves, lines, out, add);
        }
    }
}
