//! The weight of the product that each step of a recurrent layer begins with.

use crate::kernels::float::Float;
use crate::kernels::gemm::Panels;
use crate::kernels::mat_mut::MatMut;
use crate::kernels::matmul::{Destination, PackedRight, StridedMatrix, matmul_unrounded};

/// From this number of steps, and of sequences, on, the weight is brought into the form that the product
/// reads. This is as much work as the product of a few rows.
const WORTH_PANELS: usize = 4;

/// The right operand of a product that each step computes.
pub(super) enum RecurrentWeight<'a, T: Float> {
    Panels(Panels<T>),
    /// Where products are in bf16, however many steps and sequences there are: so the steps of a sequence that come one
    /// by one are those that come at once.
    Bf16(PackedRight),
    /// For few steps or sequences.
    Plain(StridedMatrix<'a, T>),
}

impl<'a, T: Float> RecurrentWeight<'a, T> {
    /// `values` (columns x depth), transposed, for products of `batch` rows in `steps` steps.
    pub(super) fn transposed(values: &'a [T], depth: usize, [batch, steps]: [usize; 2]) -> Self {
        let matrix = StridedMatrix::new(values, values.len() / depth, depth).t();
        if let Some(packed) = PackedRight::always(matrix) {
            return Self::Bf16(packed);
        }
        if batch.min(steps) < WORTH_PANELS {
            return Self::Plain(matrix);
        }
        Self::Panels(Panels::of_columns(values, depth))
    }

    /// `values` (depth x columns).
    pub(super) fn new(values: &'a [T], depth: usize, [batch, steps]: [usize; 2]) -> Self {
        let matrix = StridedMatrix::new(values, depth, values.len() / depth);
        if let Some(packed) = PackedRight::always(matrix) {
            return Self::Bf16(packed);
        }
        if batch.min(steps) < WORTH_PANELS {
            return Self::Plain(matrix);
        }
        Self::Panels(Panels::of_rows(values, depth))
    }

    /// Whether a product of some of the rows has the bits of the product of all rows.
    pub(super) fn has_independent_rows(&self) -> bool {
        matches!(self, Self::Panels(_) | Self::Bf16(_))
    }

    /// The distance between the rows of a result.
    pub(super) fn step(&self) -> usize {
        match self {
            Self::Panels(panels) => panels.step(),
            Self::Bf16(packed) => packed.columns(),
            Self::Plain(matrix) => matrix.cols(),
        }
    }

    /// The size of the memory for a result of `rows` rows. There is more memory than the rows take.
    pub(super) fn size(&self, rows: usize) -> usize {
        match self {
            Self::Panels(panels) => panels.size(rows),
            Self::Bf16(packed) => rows * packed.columns(),
            Self::Plain(matrix) => rows * matrix.cols(),
        }
    }

    /// Adds the product with `rows` rows of `left` to `out`. The rows of `left` have the distance `distance`.
    pub(super) fn add_product(&self, rows: usize, (left, distance): (&[T], usize), out: &mut [T]) {
        match self {
            Self::Panels(panels) => panels.add_product(rows, (left, distance), out),
            Self::Bf16(packed) => {
                let left = StridedMatrix::strided(left, rows, packed.depth(), distance);
                let out = MatMut::new(&mut out[..rows * packed.columns()], rows, packed.columns());
                packed.product(left, out, Destination::Add);
            }
            Self::Plain(matrix) => {
                let left = StridedMatrix::strided(left, rows, matrix.t().cols(), distance);
                let out = MatMut::new(&mut out[..rows * matrix.cols()], rows, matrix.cols());
                matmul_unrounded(out, Destination::Add, left, *matrix);
            }
        }
    }
}
