//! A product of factors in bf16, with sums in f32, by the tiles of AMX.

use std::ops::Range;

use super::line::LANES;
use super::packed::PackedFactor;
use super::runs::{PartialSums, SIDE, TileRuns};
use super::x86::Amx;
use crate::kernels::mat_mut::MatMut;

/// Writes or adds the product of some pairs of both factors, for the rows of `left` from `row` on, which is a multiple of
/// 16. `block` begins with a tile.
pub(super) fn product(
    amx: Amx,
    (left, row): (&PackedFactor, usize),
    right: &PackedFactor,
    block: Range<usize>,
    mut out: MatMut<'_, f32>,
    add: bool,
) {
    let (tiles, vectors) = (amx.tiles(), amx.vectors);
    let mut sums = PartialSums::new();
    let lines = block.start..block.end.next_multiple_of(LANES);
    let mut runs = TileRuns::new(lines.len() / LANES, LANES);
    let a = |group| left.group(group, lines.clone());
    let b = |group| right.group(group, lines.clone());
    // Row by row: two rows of tiles stay in the nearest cache, and the result is written in its order.
    for first in (0..out.rows()).step_by(SIDE) {
        for column in (0..right.width()).step_by(SIDE) {
            let rows = first..out.rows().min(first + SIDE);
            let columns = column..right.width().min(column + SIDE);
            let (i, j) = ((row + first) / LANES, column / LANES);
            let two = [rows.len() > LANES, columns.len() > LANES];
            let whole = two.map(|two| if two { SIDE } else { LANES });
            let a = [a(i), a(i + usize::from(two[0]))];
            let b = [b(j), b(j + usize::from(two[1]))];
            runs.clear();
            runs.push(a, b);
            let mut out = out.part(rows, columns);
            vectors.prefetch(&mut out);
            let is_result = [out.rows(), out.cols()] == whole && !add;
            let to = if is_result { out.whole() } else { sums.part(whole) };
            tiles.multiply(two, &runs, to);
            if !is_result {
                vectors.store(&sums.0, out, add);
            }
        }
    }
}
