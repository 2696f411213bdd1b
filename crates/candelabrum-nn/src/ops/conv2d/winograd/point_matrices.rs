//! Matrices of transformed tiles or kernels, one for each point.

use super::tiles::POINTS;
use crate::kernels::float::Float;
use crate::kernels::gemm::MatrixRows;
use crate::kernels::scratch::Pooled;

/// Elements of a cache line, at least.
const LINE: usize = 16;

/// One matrix for each of the 16 points.
///
/// A transform writes one element of each matrix at a time, and a product reads one element of each of
/// many rows. With a distance of 4 KiB they would all compete for the same few places of the nearest
/// cache. So the distances between rows and between matrices are odd numbers of cache lines.
pub(super) struct PointMatrices<T: Float> {
    values: Pooled<T>,
    /// The distance between two matrices.
    plane: usize,
    /// The distance between two rows.
    step: usize,
}

impl<T: Float> PointMatrices<T> {
    /// Matrices with unspecified contents, with space behind each row for a vector that begins in it.
    pub(super) fn new(rows: usize, columns: usize) -> Self {
        let step = odd_lines(columns + LINE);
        let plane = odd_lines(rows * step);
        Self { values: Pooled::new(POINTS * plane + LINE), plane, step }
    }

    pub(super) fn of(&self, point: usize) -> MatrixRows<&[T]> {
        MatrixRows { data: &self.values[point * self.plane..], step: self.step }
    }

    pub(super) fn of_mut(&mut self, point: usize) -> MatrixRows<&mut [T]> {
        MatrixRows { data: &mut self.values[point * self.plane..], step: self.step }
    }

    /// The elements from `column` of `row` on of the matrix of `point`.
    #[inline(always)]
    pub(super) fn rest(&self, point: usize, row: usize, column: usize) -> &[T] {
        &self.values[point * self.plane + row * self.step + column..]
    }

    #[inline(always)]
    pub(super) fn rest_mut(&mut self, point: usize, row: usize, column: usize) -> &mut [T] {
        &mut self.values[point * self.plane + row * self.step + column..]
    }

    /// The matrices in parts of so many rows.
    pub(super) fn in_rows(&mut self, rows: usize) -> Vec<RowsMut<'_, T>> {
        let (plane, step) = (self.plane, self.step);
        let mut parts = Vec::new();
        for matrix in self.values.chunks_exact_mut(plane).take(POINTS) {
            for (number, rows) in matrix.chunks_mut(rows * step).enumerate() {
                if parts.len() == number {
                    parts.push(RowsMut { matrices: Vec::with_capacity(POINTS), step });
                }
                parts[number].matrices.push(rows);
            }
        }
        parts
    }
}

/// Some rows of the matrices, for one of several threads.
pub(super) struct RowsMut<'a, T> {
    /// By point.
    matrices: Vec<&'a mut [T]>,
    step: usize,
}

impl<T> RowsMut<'_, T> {
    /// The elements from `column` of `row` on of the matrix of `point`.
    #[inline(always)]
    pub(super) fn rest_mut(&mut self, point: usize, row: usize, column: usize) -> &mut [T] {
        &mut self.matrices[point][row * self.step + column..]
    }
}

/// At least `elements`, and an odd number of cache lines.
fn odd_lines(elements: usize) -> usize {
    (elements.div_ceil(LINE) | 1) * LINE
}
