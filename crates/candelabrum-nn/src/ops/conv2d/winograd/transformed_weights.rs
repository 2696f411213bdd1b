//! The transformed weights.

use super::bf16;
use super::point_matrices::PointMatrices;
use super::tiles::{WinogradProblem, point_of};
use super::weights;
use crate::kernels::float::Float;
use crate::kernels::gemm::{LeftMatrix, MatrixRows};
use crate::kernels::product_precision;

/// The transformed weights: (O × C) for each point, or for kernels turned by 180°, (C × O).
pub(super) enum TransformedWeights<T: Float> {
    F32(PlainWeights<T>),
    Bf16(bf16::PackedWeights),
}

/// The weights in their own type.
pub(super) struct PlainWeights<T: Float> {
    planes: PointMatrices<T>,
    turned: bool,
}

impl<T: Float> TransformedWeights<T> {
    pub(super) fn new(weight: &[T], problem: &WinogradProblem, turned: bool) -> Self {
        if let Some(instructions) = product_precision::bf16::<T>() {
            return Self::Bf16(bf16::PackedWeights::new(instructions, weight, problem, turned));
        }
        let mut planes = PointMatrices::new(problem.out_channels, problem.in_channels);
        weights::transform_all(weight, problem.in_channels, &mut planes);
        Self::F32(PlainWeights { planes, turned })
    }
}

impl<T: Float> PlainWeights<T> {
    /// The left factor of the product of a point.
    pub(super) fn left(&self, point: usize) -> LeftMatrix<'_, T> {
        let MatrixRows { data, step } = self.planes.of(point_of(point, self.turned));
        if self.turned {
            LeftMatrix::Columns { data, step }
        } else {
            LeftMatrix::Rows { data, step }
        }
    }
}
