//! Matrices in scratch memory and their products. Nothing is packed, unless the factors are rounded to bf16.

use candelabrum_memory::simd::simd;

use crate::kernels::float::Float;
use crate::kernels::gemm::bf16::{Operand, OperandLines, Starts};
use crate::kernels::gemm::{LeftMatrix, MatrixRows, Product, ProductSize, RowRuns, dispatch};
use crate::kernels::mat_mut::MatMut;
use crate::kernels::matmul::{FEWEST, product_in_bf16};
use crate::kernels::scratch::Pooled;
use crate::kernels::transpose::transpose;

/// Columns that lie side by side: whole vectors of every instruction set.
pub(super) const LANES: usize = 16;

/// A matrix with as much room behind each row, and behind the last one, as the kernel of the products reads
/// and writes there.
pub(super) struct PaddedMatrix<T: Float> {
    values: Pooled<T>,
    /// The distance between two rows: an odd number of cache lines, because rows at distances of a power of
    /// two would drive each other out of the nearest cache.
    step: usize,
    columns: usize,
}

impl<T: Float> PaddedMatrix<T> {
    /// A matrix with unspecified contents.
    pub(super) fn new(rows: usize, columns: usize) -> Self {
        let step = Self::step(columns);
        Self { values: Pooled::new(rows * step + LANES), step, columns }
    }

    pub(super) fn zeros(rows: usize, columns: usize) -> Self {
        let step = Self::step(columns);
        Self { values: Pooled::zeros(rows * step + LANES), step, columns }
    }

    fn step(columns: usize) -> usize {
        (columns.div_ceil(LANES) | 1) * LANES
    }

    /// The rows' elements in a group of [`LANES`] columns.
    #[inline(always)]
    pub(super) fn lanes(&self, group: usize) -> impl Iterator<Item = &[T; LANES]> {
        self.values.chunks_exact(self.step).map(
            #[inline(always)]
            move |row| &row.as_chunks().0[group],
        )
    }

    /// As [`lanes`](Self::lanes), to write them, from row `first` on.
    #[inline(always)]
    pub(super) fn lanes_mut(
        &mut self,
        first: usize,
        group: usize,
    ) -> impl Iterator<Item = &mut [T; LANES]> {
        self.values[first * self.step..].chunks_exact_mut(self.step).map(
            #[inline(always)]
            move |row| &mut row.as_chunks_mut().0[group],
        )
    }

    /// Adds the transposed matrix of one of this size.
    #[inline(always)]
    pub(super) fn add_turned(&mut self, from: MatrixRows<&[T]>, size: (usize, usize)) {
        transpose::<T, true>(from.data, from.step, size, &mut self.values, self.step);
    }

    /// Writes the transposed matrix of one of this size, multiplied by `factor`.
    pub(super) fn turn(&mut self, from: MatrixRows<&[T]>, size: (usize, usize), factor: T) {
        simd(
            #[inline(always)]
            || {
                transpose::<T, false>(from.data, from.step, size, &mut self.values, self.step);
                if factor != T::one() {
                    for row in 0..size.1 {
                        self.row_mut(row).iter_mut().for_each(|x| *x *= factor);
                    }
                }
            },
        );
    }

    /// Multiplies each of the first rows by its factor.
    pub(super) fn scale_rows(&mut self, factors: &[T]) {
        simd(
            #[inline(always)]
            || {
                for (row, &factor) in factors.iter().enumerate() {
                    self.row_mut(row).iter_mut().for_each(|x| *x *= factor);
                }
            },
        );
    }

    /// Writes the first rows, each multiplied by its factor, to `out`.
    pub(super) fn store(&self, mut out: MatMut<'_, T>, factor: impl Fn(usize) -> T) {
        simd(
            #[inline(always)]
            || {
                for row in 0..out.rows() {
                    let (factor, values) = (factor(row), self.row(row));
                    for (out, &value) in out.row(row).iter_mut().zip(values) {
                        *out = value * factor;
                    }
                }
            },
        );
    }

    #[inline(always)]
    fn row(&self, row: usize) -> &[T] {
        &self.values[row * self.step..][..self.columns]
    }

    #[inline(always)]
    pub(super) fn row_mut(&mut self, row: usize) -> &mut [T] {
        &mut self.values[row * self.step..][..self.columns]
    }

    /// As a left factor: the rows from `row` on, with their elements from `column` on.
    pub(super) fn left(&self, row: usize, column: usize) -> LeftMatrix<'_, T> {
        let MatrixRows { data, step } = self.right(row, column);
        LeftMatrix::Rows { data, step }
    }

    /// As the transposed left factor: the columns from `column` on, with their elements from `row` on.
    pub(super) fn turned_left(&self, row: usize, column: usize) -> LeftMatrix<'_, T> {
        let MatrixRows { data, step } = self.right(row, column);
        LeftMatrix::Columns { data, step }
    }

    /// As a right factor: the rows from `row` on, with their elements from `column` on.
    pub(super) fn right(&self, row: usize, column: usize) -> MatrixRows<&[T]> {
        MatrixRows { data: &self.values[row * self.step + column..], step: self.step }
    }

    /// As a result, from this row and column on.
    pub(super) fn out(&mut self, row: usize, column: usize) -> MatrixRows<&mut [T]> {
        MatrixRows { data: &mut self.values[row * self.step + column..], step: self.step }
    }
}

/// `out = left right`, or `out += left right` if `add`.
pub(super) fn multiply<T: Float>(
    size: ProductSize,
    left: LeftMatrix<'_, T>,
    right: MatrixRows<&[T]>,
    out: MatrixRows<&mut [T]>,
    add: bool,
) {
    let every = |data, step| OperandLines { data, starts: Starts::Every(step) };
    let rounded_left = match left {
        LeftMatrix::Rows { data, step } => Operand::Along(every(data, step)),
        LeftMatrix::Columns { data, step } => Operand::Across(every(data, step)),
        LeftMatrix::Runs(RowRuns { data, starts }) => {
            Operand::Along(OperandLines { data, starts: Starts::At(starts) })
        }
    };
    let rounded_right = Operand::Across(every(right.data, right.step));
    let sums = (&mut *out.data, out.step);
    let worth_rounding = size.rows.min(size.columns) >= FEWEST;
    if !(worth_rounding && product_in_bf16(rounded_left, rounded_right, size, sums, add)) {
        dispatch(Product { size, left, right, out, add });
    }
}
