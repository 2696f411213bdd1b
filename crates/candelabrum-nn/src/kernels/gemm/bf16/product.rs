//! A product of factors in bf16, with sums in f32.

use super::finish::Finish;
use super::instructions::Instructions;
use super::packed::Packed;
use super::{tile_product, vector_product};
use crate::kernels::mat_mut::MatMut;

/// `out = scale left right` or `out += scale left right`, for the rows of `left` from `row` on, which is a
/// multiple of 16. `out` has as many rows as are computed, and all columns.
pub(crate) fn product(
    instructions: Instructions,
    left: (&Packed, usize),
    right: &Packed,
    out: MatMut<'_, f32>,
    finish: Finish,
) {
    match instructions.amx {
        Some(amx) => tile_product::product((instructions, amx), left, right, out, finish),
        None => vector_product::product(instructions, left, right, out, finish),
    }
}
