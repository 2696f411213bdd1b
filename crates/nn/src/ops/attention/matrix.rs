//! Matrices in scratch memory and their products. Nothing is packed, unless the factors are rounded to bf16.

use candelabrum_memory::simd::simd;

use super::super::float::Float;
use super::super::gemm::bf16::{Lines, Operand, Starts};
use super::super::gemm::{self, Product, Rows, Size, dispatch};
use super::super::mat_mut::MatMut;
use super::super::matmul::{Dst, FEWEST, Mat, matmul_into, product_in_bf16};
use super::super::pool::Pooled;
use super::super::transpose::transpose;

/// Columns that lie side by side: whole vectors of every instruction set.
pub(super) const LANES: usize = 16;

/// With fewer columns of a result, most of each vector would be empty.
const FEW_COLUMNS: usize = 4;

/// A matrix with as much room behind each row, and behind the last one, as the kernel of the products reads
/// and writes there.
pub(super) struct Matrix<T: Float> {
    values: Pooled<T>,
    /// The distance between two rows: an odd number of cache lines, because rows at distances of a power of
    /// two would drive each other out of the nearest cache.
    step: usize,
    columns: usize,
}

/// A left factor: the rows of a matrix, or of the transposed matrix, whose columns lie as rows.
#[derive(Clone, Copy)]
pub(super) enum Left<'a, T> {
    Rows(Rows<&'a [T]>),
    Columns(Rows<&'a [T]>),
}

impl<T: Float> Matrix<T> {
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

    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> &[T] {
        &self.values[row * self.step..][..self.columns]
    }

    #[inline(always)]
    pub(super) fn row_mut(&mut self, row: usize) -> &mut [T] {
        &mut self.values[row * self.step..][..self.columns]
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

    /// Writes the transposed matrix of the first rows of `from`, or adds it if `ADD`.
    #[inline(always)]
    pub(super) fn transpose<const ADD: bool>(
        &mut self,
        Rows { data, step: distance }: Rows<&[T]>,
        size: (usize, usize),
    ) {
        transpose::<T, ADD>(data, distance, size, &mut self.values, self.step);
    }

    /// Writes the transposed matrix of one of this size, multiplied by `factor`.
    pub(super) fn turn(&mut self, from: Rows<&[T]>, size: (usize, usize), factor: T) {
        simd(
            #[inline(always)]
            || {
                self.transpose::<false>(from, size);
                if factor != T::one() {
                    for row in 0..size.1 {
                        self.row_mut(row).iter_mut().for_each(|x| *x *= factor);
                    }
                }
            },
        );
    }

    /// Writes the first rows, multiplied by `factor`, to `out`.
    pub(super) fn store(&self, factor: T, mut out: MatMut<'_, T>) {
        simd(
            #[inline(always)]
            || {
                for row in 0..out.rows() {
                    scaled(self.row(row), factor, out.row(row));
                }
            },
        );
    }

    /// As a left factor: the rows from `row` on, with their elements from `column` on.
    pub(super) fn left(&self, row: usize, column: usize) -> Left<'_, T> {
        Left::Rows(self.right(row, column))
    }

    /// As the transposed left factor: the columns from `column` on, with their elements from `row` on.
    pub(super) fn turned_left(&self, row: usize, column: usize) -> Left<'_, T> {
        Left::Columns(self.right(row, column))
    }

    /// As a right factor: the rows from `row` on, with their elements from `column` on.
    pub(super) fn right(&self, row: usize, column: usize) -> Rows<&[T]> {
        Rows { data: &self.values[row * self.step + column..], step: self.step }
    }

    /// As a result, from this row and column on.
    pub(super) fn out(&mut self, row: usize, column: usize) -> Rows<&mut [T]> {
        Rows { data: &mut self.values[row * self.step + column..], step: self.step }
    }
}

/// `to = factor from`.
#[inline(always)]
pub(super) fn scaled<T: Float>(from: &[T], factor: T, to: &mut [T]) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = from * factor;
    }
}

/// `out = left right`, or `out += left right` if `add`.
pub(super) fn multiply<T: Float>(
    size: Size,
    left: Left<'_, T>,
    right: Rows<&[T]>,
    out: Rows<&mut [T]>,
    add: bool,
) {
    let Size { rows, depth, columns } = size;
    if columns < FEW_COLUMNS {
        let left = match left {
            Left::Rows(Rows { data, step }) => Mat::strided(data, rows, depth, step),
            Left::Columns(Rows { data, step }) => Mat::strided(data, depth, rows, step).t(),
        };
        let right = Mat::strided(right.data, depth, columns, right.step);
        let out = MatMut::strided(out.data, rows, columns, out.step);
        return matmul_into(out, if add { Dst::Add } else { Dst::Overwrite }, T::one(), left, right);
    }
    let lines = |Rows { data, step }: Rows<_>| Lines { data, starts: Starts::Every(step) };
    let factor = match left {
        Left::Rows(rows) => Operand::Along(lines(rows)),
        Left::Columns(columns) => Operand::Across(lines(columns)),
    };
    let (across, sums) = (Operand::Across(lines(right)), (&mut *out.data, out.step));
    if rows.min(columns) >= FEWEST && product_in_bf16(factor, across, size, sums, add) {
        return;
    }
    let left = match left {
        Left::Rows(Rows { data, step }) => gemm::Left::Rows { data, step },
        Left::Columns(Rows { data, step }) => gemm::Left::Columns { data, step },
    };
    dispatch(Product { size, left, right, out, add });
}
