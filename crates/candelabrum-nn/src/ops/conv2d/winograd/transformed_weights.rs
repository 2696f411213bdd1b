//! The transformed weights.

use super::bf16;
use super::point_matrices::PointMatrices;
use super::tiles::{Problem, point_of};
use super::weights;
use crate::kernels::float::Float;
use crate::kernels::gemm::{Left, Rows};
use crate::kernels::product_precision;

/// The transformed weights: (O × C) for each point, or for kernels turned by 180°, (C × O).
pub(super) enum TransformedWeights<T: Float> {
    F32(Plain<T>),
    Bf16(bf16::PackedWeights),
}

/// The weights in their own type.
pub(super) struct Plain<T: Float> {
    planes: PointMatrices<T>,
    turned: bool,
}

impl<T: Float> TransformedWeights<T> {
    pub(super) fn new(weight: &[T], problem: &Problem, turned: bool) -> Self {
        if let Some(instructions) = product_precision::bf16::<T>() {
            return Self::Bf16(bf16::PackedWeights::new(instructions, weight, problem, turned));
        }
        let mut planes = PointMatrices::new(problem.out_channels, problem.in_channels);
        weights::transform_all(weight, problem.in_channels, &mut planes);
        Self::F32(Plain { planes, turned })
    }
}

impl<T: Float> Plain<T> {
    /// The left factor of the product of a point.
    pub(super) fn left(&self, point: usize) -> Left<'_, T> {
        let Rows { data, step } = self.planes.of(point_of(point, self.turned));
        if self.turned { Left::Columns { data, step } } else { Left::Rows { data, step } }
    }
}
