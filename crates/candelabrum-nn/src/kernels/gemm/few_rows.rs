//! Products with few rows and a right operand by columns, as in the forward of a linear layer.
//!
//! The right operand is the larger one, and each of its numbers serves few sums. The `gemm` crate packs it,
//! or reads its columns across. Columns whose distance is a power of two drive each other out of the nearest
//! cache then. Here the transposed result is computed, so the columns are read where they lie as the rows of
//! a left operand, and the few rows are packed.

use super::dispatch::dispatch;
use super::panels::{Panels, WIDTH};
use super::product::Product;
use super::tile::{LeftMatrix, MOST_ROWS, MatrixRows, ProductSize};
use crate::kernels::elementwise::add_assign;
use crate::kernels::float::Float;
use crate::kernels::mat_mut::{MatMut, MatrixPart};
use crate::kernels::scratch::Pooled;
use crate::kernels::transpose::transpose;
use candelabrum_memory::simd::simd;

/// Columns of the result that are computed at a time, so that they stay in the second-level cache.
const COLUMNS: usize = 64;

/// Terms of a sum that are added at a time, so that a panel stays in the second-level cache.
const DEPTH: usize = 512;

/// With more rows, packing the right operand pays.
const MOST: usize = 128;

/// With more rows, packing the right operand pays also if its columns are at [close](is_close) distances.
const MOST_IF_CLOSE: usize = 512;

/// Shorter sums and fewer columns leave too little work beside packing and transposing.
const LEAST_DEPTH: usize = 256;
const FEWEST_COLUMNS: usize = 32;

/// Whether a product of `size` is faster here. The columns of the right operand have the distance `step`.
pub(crate) fn few_rows_apply<T: Float>(size: ProductSize, step: usize) -> bool {
    let most = if is_close::<T>(step) { MOST_IF_CLOSE } else { MOST };
    (2..=most).contains(&size.rows) && size.depth >= LEAST_DEPTH && size.columns >= FEWEST_COLUMNS
}

/// Whether numbers at such distances fall on few places of the nearest cache, in which lines at distances of
/// 4096 bytes have the same place.
fn is_close<T>(step: usize) -> bool {
    (step * size_of::<T>()).is_multiple_of(2048)
}

/// `out = left right`, or `out += left right` if `add`. The rows of `left` lie one after the other, the
/// columns of `right` at distances of `step`. Computed by all threads if `threads`, otherwise by this one.
///
/// Each element is the sum of its terms in their order, on any number of threads.
pub(crate) fn product_of_few_rows<T: Float>(
    out: MatMut<'_, T>,
    add: bool,
    left: &[T],
    (right, step): (&[T], usize),
    threads: bool,
) {
    let left = Panels::of_columns(left, left.len() / out.rows());
    let part = if threads { COLUMNS } else { out.cols() };
    out.for_each_part(MatrixPart::Columns(part), |mut out, _, first| {
        let (rows, line) = (out.rows(), left.step());
        let mut turned = Pooled::new((COLUMNS + MOST_ROWS) * line);
        let mut result = Pooled::new(rows * COLUMNS);
        for column in (0..out.cols()).step_by(COLUMNS) {
            let columns = COLUMNS.min(out.cols() - column);
            turned_product((&right[(first + column) * step..], step), columns, &left, &mut turned);
            simd(
                #[inline(always)]
                || transpose::<T, false>(&turned, line, (columns, rows), &mut result, COLUMNS),
            );
            for (row, result) in result.chunks_exact(COLUMNS).enumerate() {
                let (out, result) = (&mut out.row(row)[column..][..columns], &result[..columns]);
                if add {
                    add_assign(out, result);
                } else {
                    out.copy_from_slice(result);
                }
            }
        }
    });
}

/// The product of some columns, read as rows, and of panels of rows, read as columns.
fn turned_product<T: Float>(
    (right, step): (&[T], usize),
    columns: usize,
    left: &Panels<T>,
    turned: &mut [T],
) {
    for (number, panel) in left.iter().enumerate() {
        let first = number * WIDTH;
        for k in (0..left.depth()).step_by(DEPTH) {
            dispatch(Product {
                size: ProductSize {
                    rows: columns,
                    depth: DEPTH.min(left.depth() - k),
                    columns: WIDTH.min(left.columns() - first),
                },
                left: LeftMatrix::Rows { data: &right[k..], step },
                right: MatrixRows { data: &panel[k * WIDTH..], step: WIDTH },
                out: MatrixRows { data: &mut turned[first..], step: left.step() },
                add: k > 0,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::dispatch::on_each_instruction_set;
    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50))]

        #[test]
        fn few_rows_give_the_sums_of_products(
            rows in 1usize..60,
            depth in prop_oneof![1usize..40, 500usize..600],
            columns in 1usize..140,
            gap in 0usize..5,
            add in any::<bool>(),
            threads in any::<bool>(),
        ) {
            // Whole numbers, whose sums are exact.
            let number = |i: usize| (i * 7919 % 17) as f32 - 8.0;
            let step = depth + gap;
            let left: Vec<f32> = (0..rows * depth).map(number).collect();
            let right: Vec<f32> = (1000..1000 + columns * step - gap).map(number).collect();
            on_each_instruction_set(|| {
                let mut out = vec![3.0; rows * columns];
                let matrix = MatMut::new(&mut out, rows, columns);
                product_of_few_rows(matrix, add, &left, (&right, step), threads);
                for (row, left) in left.chunks(depth).enumerate() {
                    for column in 0..columns {
                        let right = &right[column * step..];
                        let sum = left.iter().zip(right).map(|(x, y)| x * y).sum::<f32>();
                        let expected = if add { 3.0 + sum } else { sum };
                        assert_eq!(out[row * columns + column], expected);
                    }
                }
            });
        }
    }
}
