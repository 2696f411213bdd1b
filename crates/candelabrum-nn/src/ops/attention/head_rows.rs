//! Some rows of a head: where they lie, or copied.

use std::ops::Range;

use candelabrum_memory::simd::simd;

use super::geometry::HeadLayout;
use super::matrix::{LANES, PaddedMatrix};
use super::rotary::RotaryTable;
use crate::kernels::float::Float;
use crate::kernels::gemm::{LeftMatrix, MatrixRows};

/// Some rows of a head, as the products read them.
pub(super) enum HeadRows<'a, T: Float> {
    InPlace(MatrixRows<&'a [T]>),
    Copied(PaddedMatrix<T>),
}

impl<'a, T: Float> HeadRows<'a, T> {
    /// The rows where they lie, if whole vectors fit in them. Otherwise, or if they are rotated (by an
    /// angle for each row, from this one on), a copy.
    pub(super) fn new(
        heads: &HeadLayout<'a, T>,
        (sequence, head): (usize, usize),
        range: Range<usize>,
        rotation: Option<(&RotaryTable, usize)>,
    ) -> Self {
        let dim = heads.dim();
        if rotation.is_none() && dim.is_multiple_of(LANES) {
            return Self::InPlace(heads.rows(sequence, head, range.start));
        }
        let mut copy = PaddedMatrix::new(range.len(), dim);
        simd(
            #[inline(always)]
            || {
                for (row, from) in range.clone().enumerate() {
                    let x = heads.row(sequence, head, from);
                    match rotation {
                        Some((table, shift)) => table.rotate(from + shift, x, copy.row_mut(row)),
                        None => copy.row_mut(row).copy_from_slice(x),
                    }
                }
            },
        );
        Self::Copied(copy)
    }

    /// As a right factor: the rows from this one on.
    pub(super) fn right(&self, row: usize) -> MatrixRows<&[T]> {
        match self {
            &Self::InPlace(MatrixRows { data, step }) => {
                MatrixRows { data: &data[row * step..], step }
            }
            Self::Copied(copy) => copy.right(row, 0),
        }
    }

    /// As a left factor: the rows from this one on.
    pub(super) fn left(&self, row: usize) -> LeftMatrix<'_, T> {
        let MatrixRows { data, step } = self.right(row);
        LeftMatrix::Rows { data, step }
    }
}
