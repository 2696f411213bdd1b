//! A product of factors in bf16, with sums in f32.

use super::instruction_set::InstructionSet;
use super::packed::PackedFactor;
use super::{f32_product, tile_product, vector_product};
use crate::kernels::mat_mut::MatMut;

/// Pairs that are summed in registers: those of two groups of rows take 32 KiB. The number decides in which order sums
/// are added, and divides [`DEPTH`](super::multiply::DEPTH), so that a sum does not depend on how much is packed at a
/// time.
const PAIRS: usize = 256;

/// `out = left right`, or `out += left right` if `add`, for the rows of `left` from `row` on, which is a multiple of 16.
/// `out` has as many rows as are computed, and all columns.
pub(crate) fn product(
    left: (&PackedFactor, usize),
    right: &PackedFactor,
    mut out: MatMut<'_, f32>,
    add: bool,
) {
    let pairs = right.pairs();
    for first in (0..pairs).step_by(PAIRS) {
        let block = first..pairs.min(first + PAIRS);
        let (out, add) = (out.whole(), add || first > 0);
        match right.instructions() {
            InstructionSet::Amx(amx) => tile_product::product(amx, left, right, block, out, add),
            InstructionSet::Avx512(vectors) => {
                vector_product::product(vectors, left, right, block, out, add);
            }
            InstructionSet::F32 => {
                f32_product::product(left, right, 2 * block.start..2 * block.end, out, add);
            }
        }
    }
}
