//! A product of factors in bf16, with sums in f32, by the tiles of AMX.

use std::ops::Range;

use super::amx::Amx;
use super::instructions::Instructions;
use super::line::LANES;
use super::packed::Packed;
use crate::kernels::mat_mut::MatMut;

/// Rows and columns of 2 × 2 tiles.
const SIDE: usize = 2 * LANES;

/// Sums on their way to a result of which they are a part, or to which they are added.
#[repr(C, align(64))]
struct Sums([[f32; SIDE]; SIDE]);

/// Writes or adds the product of some pairs of both factors, for the rows of `left` from `row` on, which is a multiple of
/// 16. `block` begins with a tile.
pub(super) fn product(
    (instructions, amx): (Instructions, Amx),
    (left, row): (&Packed, usize),
    right: &Packed,
    block: Range<usize>,
    mut out: MatMut<'_, f32>,
    add: bool,
) {
    let tiles = amx.tiles();
    let mut sums = Sums([[0.0; SIDE]; SIDE]);
    let block = block.start / LANES..block.end.div_ceil(LANES);
    let a = |group| left.group_of_tiles(group, block.clone());
    let b = |group| right.group_of_tiles(group, block.clone());
    // Row by row: two rows of tiles stay in the nearest cache, and the result is written in its order.
    for first in (0..out.rows()).step_by(SIDE) {
        for column in (0..right.width()).step_by(SIDE) {
            let rows = first..out.rows().min(first + SIDE);
            let columns = column..right.width().min(column + SIDE);
            let (i, j) = ((row + first) / LANES, column / LANES);
            let size = [rows.len(), columns.len()].map(|numbers| numbers.next_multiple_of(LANES));
            let mut out = out.part(rows, columns);
            instructions.prefetch(&mut out);
            let is_result = [out.rows(), out.cols()] == size && !add;
            let mut scratch = MatMut::new(sums.0.as_flattened_mut(), SIDE, SIDE);
            let to = if is_result { out.whole() } else { scratch.part(0..size[0], 0..size[1]) };
            match size.map(|numbers| numbers > LANES) {
                [true, true] => tiles.multiply([a(i), a(i + 1)], [b(j), b(j + 1)], to),
                [true, false] => tiles.multiply([a(i), a(i + 1)], [b(j)], to),
                [false, true] => tiles.multiply([a(i)], [b(j), b(j + 1)], to),
                [false, false] => tiles.multiply([a(i)], [b(j)], to),
            }
            if !is_result {
                instructions.store(&sums.0, out, add);
            }
        }
    }
}
