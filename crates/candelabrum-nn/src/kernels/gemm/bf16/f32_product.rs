//! Products of numbers that are rounded to bf16, by the kernel of f32 products: for processors that multiply in bf16 no
//! faster, or not at all.

use std::ops::Range;

use super::line::{COLUMNS, LANES};
use super::packed::PackedFactor;
use crate::kernels::elementwise::add_assign;
use crate::kernels::gemm::{LeftMatrix, MOST_ROWS, MatrixRows, Product, ProductSize, dispatch};
use crate::kernels::mat_mut::MatMut;
use crate::kernels::scratch::Pooled;

/// Steps whose numbers of a group of columns stay in the nearest cache: 24 KiB.
const STEPS: usize = 128;

/// Writes or adds the product of some steps of both factors, for the rows of `left` from `row` on, which is a multiple of
/// 16.
pub(super) fn product(
    (left, row): (&PackedFactor, usize),
    right: &PackedFactor,
    steps: Range<usize>,
    mut out: MatMut<'_, f32>,
    add: bool,
) {
    let rows = out.rows();
    let (left, step) = left.rows(row);
    let mut sums = Pooled::<f32>::new((rows + MOST_ROWS) * COLUMNS);
    for column in (0..out.cols()).step_by(COLUMNS) {
        let columns = column..out.cols().min(column + COLUMNS);
        for first in steps.clone().step_by(STEPS) {
            let some = first..steps.end.min(first + STEPS);
            let lines = some.start * COLUMNS / LANES..some.end * COLUMNS / LANES;
            let right = right.group(column / COLUMNS, lines).as_flattened();
            dispatch(Product {
                size: ProductSize { rows, depth: some.len(), columns: columns.len() },
                left: LeftMatrix::Rows { data: &left[first..], step },
                right: MatrixRows { data: right, step: COLUMNS },
                out: MatrixRows { data: &mut sums, step: COLUMNS },
                add: first > steps.start,
            });
        }
        let mut out = out.part(0..rows, columns);
        for (row, sums) in (0..rows).zip(sums.chunks_exact(COLUMNS)) {
            let sums = &sums[..out.cols()];
            if add {
                add_assign(out.row(row), sums);
            } else {
                out.row(row).copy_from_slice(sums);
            }
        }
    }
}
