//! A matrix product as a function of its own: its code is long.

use pulp::{Simd, WithSimd};

use super::lanes::VectorLanes;
use super::tile::{LeftMatrix, MatrixRows, ProductSize, RightMatrix, product};

/// `out = left right`, or `out += left right` if `add`: see [`product`].
pub(crate) struct Product<'a, T, R> {
    pub(crate) size: ProductSize,
    pub(crate) left: LeftMatrix<'a, T>,
    pub(crate) right: R,
    pub(crate) out: MatrixRows<&'a mut [T]>,
    pub(crate) add: bool,
}

impl<T: VectorLanes, R: RightMatrix<T>> WithSimd for Product<'_, T, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { size, left, right, mut out, add } = self;
        product(simd, size, left, right, &mut out, add);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::dispatch::{dispatch, on_each_instruction_set};
    use super::super::tile::{RowRuns, rows_of_a_tile};
    use super::*;

    /// What is multiplied, in whole numbers, whose sums are exact.
    #[derive(Debug)]
    struct Case {
        size: ProductSize,
        left: Vec<f32>,
        right: Vec<f32>,
        add: bool,
    }

    fn case() -> impl Strategy<Value = Case> {
        let sizes = (1usize..20, 1usize..30, 1usize..110);
        (sizes, any::<bool>(), 0usize..1000).prop_map(|((rows, depth, columns), add, seed)| {
            let number = |i: usize| ((i * 31 + seed) * 7919 % 17) as f32 - 8.0;
            Case {
                size: ProductSize { rows, depth, columns },
                left: (0..rows * depth).map(number).collect(),
                right: (1000..1000 + depth * columns).map(number).collect(),
                add,
            }
        })
    }

    impl Case {
        fn expected(&self, row: usize, column: usize) -> f32 {
            let ProductSize { depth, columns, .. } = self.size;
            let terms =
                (0..depth).map(|k| self.left[row * depth + k] * self.right[k * columns + column]);
            terms.sum::<f32>() + if self.add { 3.0 } else { 0.0 }
        }
    }

    /// Checks one case with each form of operands.
    struct Check<'a>(&'a Case);

    impl WithSimd for Check<'_> {
        type Output = ();

        fn with_simd<S: Simd>(self, simd: S) {
            let Case { size, left, right, add } = self.0;
            let ProductSize { rows, depth, columns } = *size;
            // The operands with distances between their rows, and something else in them.
            let (left_step, right_step) = (depth + 3, columns + 70);
            let tile = rows_of_a_tile::<S>();
            let mut by_rows = vec![f32::NAN; rows * left_step];
            let mut by_columns = vec![f32::NAN; depth * (rows + 5) + tile];
            for row in 0..rows {
                for k in 0..depth {
                    by_rows[row * left_step + k] = left[row * depth + k];
                    by_columns[k * (rows + 5) + row] = left[row * depth + k];
                }
            }
            let mut padded = vec![f32::NAN; depth * right_step];
            for (padded, row) in padded.chunks_mut(right_step).zip(right.chunks(columns)) {
                padded[..columns].copy_from_slice(row);
            }
            let left_starts: Vec<usize> = (0..rows).map(|row| row * left_step).collect();
            let right_starts: Vec<usize> = (0..depth).map(|k| k * right_step).collect();
            let lefts = [
                LeftMatrix::Rows { data: &by_rows, step: left_step },
                LeftMatrix::Columns { data: &by_columns, step: rows + 5 },
                LeftMatrix::Runs(RowRuns { data: &by_rows, starts: &left_starts }),
            ];
            for left in lefts {
                let mut out = vec![3.0; rows.next_multiple_of(tile) * right_step];
                let right = MatrixRows { data: &*padded, step: right_step };
                let add = *add;
                let rows = MatrixRows { data: &mut *out, step: right_step };
                Product { size: *size, left, right, out: rows, add }.with_simd(simd);
                self.0.assert(&out, right_step);
                out.fill(3.0);
                let right = RowRuns { data: &padded, starts: &right_starts };
                let rows = MatrixRows { data: &mut *out, step: right_step };
                Product { size: *size, left, right, out: rows, add }.with_simd(simd);
                self.0.assert(&out, right_step);
            }
        }
    }

    impl Case {
        fn assert(&self, out: &[f32], step: usize) {
            for row in 0..self.size.rows {
                for column in 0..self.size.columns {
                    assert_eq!(
                        out[row * step + column],
                        self.expected(row, column),
                        "{row} {column}"
                    );
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn a_product_is_the_sum_of_products_on_each_instruction_set(case in case()) {
            on_each_instruction_set(|| dispatch(Check(&case)));
        }
    }
}
