//! A product of factors in bf16, with sums in f32, by the tiles of AMX.

use super::amx::{Amx, Sums};
use super::finish::Finish;
use super::instructions::Instructions;
use super::line::LANES;
use super::packed::Packed;
use crate::kernels::mat_mut::MatMut;

/// Tiles of the depth that are summed without going through memory: those of two groups of columns take 24 KiB. The
/// number decides in which order sums are added.
const DEPTH: usize = 12;

/// Rows and columns of 2 × 2 tiles.
const SIDE: usize = 2 * LANES;

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
        for column in (0..right.width()).step_by(SIDE) {
            let columns = column..right.width().min(column + SIDE);
            for first in (0..out.rows()).step_by(SIDE) {
                let rows = first..out.rows().min(first + SIDE);
                let (i, j) = ((row + first) / LANES, column / LANES);
                match (rows.len() > LANES, columns.len() > LANES) {
                    (true, true) => tiles.multiply([a(i), a(i + 1)], [b(j), b(j + 1)], &mut sums),
                    (true, false) => tiles.multiply([a(i), a(i + 1)], [b(j)], &mut sums),
                    (false, true) => tiles.multiply([a(i)], [b(j), b(j + 1)], &mut sums),
                    (false, false) => tiles.multiply([a(i)], [b(j)], &mut sums),
                }
                instructions.finish(&sums.0, out.part(rows, columns.clone()), finish);
            }
        }
    }
}
