//! A mutable matrix whose rows are parts of longer rows, so that several threads can write different
//! columns of one slice.
//!
//! **Invariant** A [`MatMut`] is the only way to its elements `data[i * row_stride + j]` with
//! `i < rows` and `j < cols` as long as it lives. All are initialised and lie in one slice.

use std::marker::PhantomData;
use std::ops::Range;

use candelabrum_memory::thread_pool;
use rayon::prelude::*;

use super::float::Float;

/// The parts into which a matrix is cut: so many rows, or so many columns. The last one may have fewer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MatrixPart {
    Rows(usize),
    Columns(usize),
}

/// A mutable matrix in a slice: element `(i, j)` lies at `i * row_stride + j`.
pub(crate) struct MatMut<'a, T> {
    data: *mut T,
    rows: usize,
    cols: usize,
    row_stride: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: by the invariant of the module a view is used as the `&mut [T]` of its elements would be,
// and that may go to another thread.
unsafe impl<T: Send> Send for MatMut<'_, T> {}

impl<'a, T> MatMut<'a, T> {
    /// A matrix whose rows lie one after the other.
    ///
    /// # Panics
    ///
    /// If the slice has another number of elements.
    pub(crate) fn new(data: &'a mut [T], rows: usize, cols: usize) -> Self {
        assert_eq!(data.len(), rows * cols, "elements of a matrix of {rows} x {cols}");
        Self { data: data.as_mut_ptr(), rows, cols, row_stride: cols, slice: PhantomData }
    }

    /// A matrix whose rows begin `row_stride` elements apart: some columns of a wider one.
    ///
    /// # Panics
    ///
    /// If a row is longer than the distance, or the slice ends before the last row does.
    pub(crate) fn strided(data: &'a mut [T], rows: usize, cols: usize, row_stride: usize) -> Self {
        assert!(cols <= row_stride, "rows of {cols} elements at distances of {row_stride}");
        let reach = if rows * cols == 0 { 0 } else { (rows - 1) * row_stride + cols };
        assert!(reach <= data.len(), "{rows} x {cols} by {row_stride} in {}", data.len());
        Self { data: data.as_mut_ptr(), rows, cols, row_stride, slice: PhantomData }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    pub(crate) fn row_stride(&self) -> usize {
        self.row_stride
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut T {
        self.data
    }

    /// The first `cols` columns, and the others.
    ///
    /// # Panics
    ///
    /// If there are fewer columns.
    pub(crate) fn split_columns(self, cols: usize) -> (Self, Self) {
        assert!(cols <= self.cols, "{cols} columns of {}", self.cols);
        // No element: the pointer past the last column need not lie in the slice.
        let rest = if self.rows == 0 || cols == self.cols {
            self.data
        } else {
            // SAFETY: there is a row, and column `cols` of it is an element.
            unsafe { self.data.add(cols) }
        };
        let right = Self { data: rest, cols: self.cols - cols, ..self };
        (Self { cols, ..self }, right)
    }

    /// The matrix, if its elements are f32.
    pub(crate) fn as_f32s(&mut self) -> Option<MatMut<'_, f32>>
    where
        T: Float,
    {
        let &mut Self { data, rows, cols, row_stride, .. } = self;
        Some(MatMut { data: T::f32s_at(data)?, rows, cols, row_stride, slice: PhantomData })
    }

    /// Calls `f` with each part, and with its first row and its first column, on the threads of the pool.
    pub(crate) fn for_each_part(self, part: MatrixPart, f: impl Fn(Self, usize, usize) + Sync)
    where
        T: Send,
    {
        match part {
            MatrixPart::Rows(rows) => {
                let parts = self.in_rows(rows).into_par_iter().enumerate();
                thread_pool::for_each(parts, |(number, part)| f(part, number * rows, 0));
            }
            MatrixPart::Columns(columns) => {
                let parts = self.in_columns(columns).into_par_iter().enumerate();
                thread_pool::for_each(parts, |(number, part)| f(part, 0, number * columns));
            }
        }
    }

    /// Parts of `rows` rows each. The last one may have fewer.
    fn in_rows(self, rows: usize) -> Vec<Self> {
        let count = if self.cols == 0 { 0 } else { self.rows.div_ceil(rows) };
        let part = |number: usize| {
            let first = number * rows;
            // SAFETY: row `first` exists, and has a first element.
            let data = unsafe { self.data.add(first * self.row_stride) };
            Self { data, rows: rows.min(self.rows - first), ..self }
        };
        (0..count).map(part).collect()
    }

    /// Parts of `cols` columns each. The last one may have fewer.
    fn in_columns(self, cols: usize) -> Vec<Self> {
        let mut parts = Vec::new();
        let mut rest = self;
        while rest.cols > 0 {
            let (part, others) = {
                let cols = cols.min(rest.cols);
                rest.split_columns(cols)
            };
            parts.push(part);
            rest = others;
        }
        parts
    }

    /// All of the matrix, while the matrix is borrowed.
    pub(crate) fn whole(&mut self) -> MatMut<'_, T> {
        self.part(0..self.rows, 0..self.cols)
    }

    /// This part of the matrix, while the matrix is borrowed.
    ///
    /// # Panics
    ///
    /// If there are fewer rows or columns.
    pub(crate) fn part(&mut self, rows: Range<usize>, cols: Range<usize>) -> MatMut<'_, T> {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        assert!(cols.start <= cols.end && cols.end <= self.cols, "cols {cols:?} of {}", self.cols);
        let (count, width) = (rows.len(), cols.len());
        let data = if count == 0 || width == 0 {
            self.data
        } else {
            // SAFETY: the first row and the first column of the part are those of an element.
            unsafe { self.data.add(rows.start * self.row_stride + cols.start) }
        };
        let row_stride = self.row_stride;
        MatMut { data, rows: count, cols: width, row_stride, slice: PhantomData }
    }

    /// Row number `row`.
    ///
    /// # Panics
    ///
    /// If there are fewer rows.
    #[inline(always)]
    pub(crate) fn row(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        if self.cols == 0 {
            return &mut [];
        }
        // SAFETY: the row exists and has elements, so its first element lies in the slice.
        let first = unsafe { self.data.add(row * self.row_stride) };
        // SAFETY: the `cols` elements of the row follow each other, and this view is the only way
        // to them; it stays borrowed as long as the row is.
        unsafe { std::slice::from_raw_parts_mut(first, self.cols) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_elements_of_their_rows_and_columns() {
        let mut data: Vec<usize> = (0..12).collect();
        let (mut left, mut right) = MatMut::new(&mut data, 3, 4).split_columns(1);
        assert_eq!((left.rows(), left.cols(), left.row_stride()), (3, 1, 4));
        assert_eq!((left.row(2), right.row(0)), (&mut [8][..], &mut [1, 2, 3][..]));
        let mut part = right.part(1..3, 1..3);
        assert_eq!(part.row(0), [6, 7]);
        part.row(1).fill(0);
        assert_eq!(data, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0]);
    }

    #[test]
    fn a_matrix_without_elements_has_empty_parts() {
        let (left, mut right) = MatMut::<f32>::new(&mut [], 0, 4).split_columns(3);
        assert_eq!((left.cols(), right.part(0..0, 1..1).cols()), (3, 0));
        let mut none = MatMut::<f32>::new(&mut [], 2, 0);
        assert!(none.row(1).is_empty());
    }
}
