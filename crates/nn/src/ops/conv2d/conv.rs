//! A convolution, which each algorithm computes in its own file.

use super::geometry::Geometry;
use crate::activation::Activation;
use crate::ops::elementwise::{activate, bias_activation};
use crate::ops::float::Float;

/// A convolution by a weight without elements that meet only padding.
#[derive(Clone, Copy)]
pub(super) struct Conv<'a, T> {
    pub(super) geometry: &'a Geometry,
    pub(super) weight: &'a [T],
    pub(super) activation: Option<Activation>,
}

/// The places of the gradients. `None` for a gradient that is not needed.
pub(super) struct Gradients<'a, T> {
    pub(super) dxs: Option<&'a mut [T]>,
    pub(super) dw: Option<&'a mut [T]>,
    pub(super) db: Option<&'a mut [T]>,
}

impl<T: Float> Conv<'_, T> {
    /// Adds the bias and applies the activation. Each row of `row` elements is one output channel.
    pub(super) fn finish(&self, ys: &mut [T], bias: Option<&[T]>, row: usize) {
        let Some(bias) = bias else { return activate(ys, self.activation) };
        for (ys, &bias) in ys.chunks_exact_mut(row).zip(bias) {
            bias_activation(ys, bias, self.activation);
        }
    }
}
