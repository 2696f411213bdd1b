//! A product of factors in bf16, with sums in f32, by the tiles of AMX.

use super::amx::Amx;
use super::finish::Finish;
use super::instructions::Instructions;
use super::line::LANES;
use super::packed::Packed;
use crate::kernels::mat_mut::MatMut;

/// Tiles of the depth that are summed without going through memory: those of two groups of rows take 32 KiB. The number
/// decides in which order sums are added.
const DEPTH: usize = 16;

/// Rows and columns of 2 × 2 tiles.
const SIDE: usize = 2 * LANES;

/// What needs no pass over the sums.
const PLAIN: Finish = Finish { scale: 1.0, add: false };

/// Sums on their way to a result of which they are a part, or to which they are added.
#[repr(C, align(64))]
struct Sums([[f32; SIDE]; SIDE]);

/// `out = scale left right` or `out += scale left right`, for the rows of `left` from `row` on, which is a
/// multiple of 16. `out` has as many rows as are computed, and all columns.
pub(super) fn product(
    (instructions, amx): (Instructions, Amx),
    (left, row): (&Packed, usize),
    right: &Packed,
    mut out: MatMut<'_, f32>,
    finish: Finish,
) {
    let tiles = amx.tiles();
    let mut sums = Sums([[0.0; SIDE]; SIDE]);
    let depth = left.tiles();
    // Blocks of nearly equal length.
    let block = depth.div_ceil(depth.div_ceil(DEPTH).max(1)).max(1);
    for first in (0..depth).step_by(block) {
        let block = first..depth.min(first + block);
        let finish = Finish { add: finish.add || first > 0, ..finish };
        let a = |group| left.group_of_tiles(group, block.clone());
        let b = |group| right.group_of_tiles(group, block.clone());
        // Row by row: two rows of tiles stay in the nearest cache, and the result is written in its order.
        for first in (0..out.rows()).step_by(SIDE) {
            for column in (0..right.width()).step_by(SIDE) {
                let rows = first..out.rows().min(first + SIDE);
                let columns = column..right.width().min(column + SIDE);
                let (i, j) = ((row + first) / LANES, column / LANES);
                let (height, width) =
                    (rows.len().next_multiple_of(LANES), columns.len().next_multiple_of(LANES));
                let mut out = out.part(rows, columns);
                instructions.prefetch(&mut out);
                let is_result = (out.rows(), out.cols()) == (height, width) && finish == PLAIN;
                let mut sums_here = MatMut::new(sums.0.as_flattened_mut(), SIDE, SIDE);
                let to = if is_result { out.whole() } else { sums_here.part(0..height, 0..width) };
                match (height > LANES, width > LANES) {
                    (true, true) => tiles.multiply([a(i), a(i + 1)], [b(j), b(j + 1)], to),
                    (true, false) => tiles.multiply([a(i), a(i + 1)], [b(j)], to),
                    (false, true) => tiles.multiply([a(i)], [b(j), b(j + 1)], to),
                    (false, false) => tiles.multiply([a(i)], [b(j)], to),
                }
                if !is_result {
                    instructions.finish(&sums.0, out, finish);
                }
            }
        }
    }
}
