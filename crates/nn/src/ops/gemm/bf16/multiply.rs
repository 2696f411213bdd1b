//! A product of matrices in f32, whose factors are rounded to bf16 while they are packed.

use rayon::prelude::*;

use super::finish::Finish;
use super::instructions::Instructions;
use super::operand::Operand;
use super::packed::{LANES, Packed};
use super::product::product;
use crate::ops::mat_mut::MatMut;

/// Rows, columns and steps of the depth that are packed at a time. The packed rows, 1 MiB at most, stay in
/// the second-level cache.
const ROWS: usize = 512;
const COLUMNS: usize = 1024;
const DEPTH: usize = 1024;

/// `out = scale left right` or `out += scale left right`, with sums over `depth`. Shared by so many
/// threads.
///
/// Each element is summed in the same order whatever the number of threads is.
pub(in crate::ops) fn multiply(
    instructions: Instructions,
    left: Operand<'_>,
    right: Operand<'_>,
    depth: usize,
    out: MatMut<'_, f32>,
    finish: Finish,
    threads: usize,
) {
    let (rows, columns) = (out.rows(), out.cols());
    let by_rows = rows >= columns;
    let share = rows.max(columns).div_ceil(threads.max(1)).next_multiple_of(3 * LANES);
    let parts: Vec<_> = if by_rows { out.in_rows(share) } else { out.in_columns(share) };
    let multiply = |(number, mut out): (usize, MatMut<'_, f32>)| {
        let first = number * share;
        let (row, column) = if by_rows { (first, 0) } else { (0, first) };
        if depth == 0 {
            return empty(&mut out, finish);
        }
        Share { instructions, left, right, row, column, depth }.multiply(out, finish);
    };
    if parts.len() > 1 {
        parts.into_par_iter().enumerate().for_each(multiply);
    } else {
        parts.into_iter().enumerate().for_each(multiply);
    }
}

/// Sums of nothing.
fn empty(out: &mut MatMut<'_, f32>, finish: Finish) {
    if !finish.add {
        (0..out.rows()).for_each(|row| out.row(row).fill(0.0));
    }
}

/// The share of a thread: the rows and columns of the result from these on.
struct Share<'a> {
    instructions: Instructions,
    left: Operand<'a>,
    right: Operand<'a>,
    row: usize,
    column: usize,
    depth: usize,
}

impl Share<'_> {
    fn multiply(self, mut out: MatMut<'_, f32>, finish: Finish) {
        let Self { instructions, left, right, row, column, depth } = self;
        let (rows, columns) = (out.rows(), out.cols());
        let mut packed_left = Packed::new(rows.min(ROWS), depth.min(DEPTH));
        let mut packed_right = Packed::new(columns.min(COLUMNS), depth.min(DEPTH));
        for start in (0..depth).step_by(DEPTH) {
            let steps = start..depth.min(start + DEPTH);
            let finish = Finish { add: finish.add || start > 0, ..finish };
            for start in (0..columns).step_by(COLUMNS) {
                let some = start..columns.min(start + COLUMNS);
                let from = column + some.start..column + some.end;
                packed_right.pack(instructions, right, from, steps.clone());
                for start in (0..rows).step_by(ROWS) {
                    let rows = start..rows.min(start + ROWS);
                    let from = row + rows.start..row + rows.end;
                    packed_left.pack(instructions, left, from, steps.clone());
                    let out = out.part(rows, some.clone());
                    product(instructions, &packed_left, &packed_right, out, finish);
                }
            }
        }
    }
}
