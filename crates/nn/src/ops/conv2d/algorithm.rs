//! Which algorithm computes a convolution. docs/kernels.md has the measurements behind the choice.

use super::conv::{Conv, Gradients};
use super::geometry::Geometry;
use super::{depthwise, direct, winograd};
use crate::ops::float::Float;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    /// Winograd's minimal filtering, for 3 × 3 kernels: `winograd/`.
    Tiles,
    /// One channel after the other, for depthwise convolutions: `depthwise.rs`.
    Channels,
    /// Products that read the image itself: `direct.rs`.
    Direct,
    /// Products that read a matrix of patches: `kernel.rs`, and `small.rs` for small images.
    Patches,
}

impl Algorithm {
    fn of(geometry: &Geometry) -> Self {
        match geometry {
            geometry if winograd::applies(geometry) => Self::Tiles,
            geometry if depthwise::applies(geometry) => Self::Channels,
            geometry if direct::applies(geometry) => Self::Direct,
            _ => Self::Patches,
        }
    }
}

impl<T: Float> Conv<'_, T> {
    pub(super) fn forward(&self, xs: &[T], bias: Option<&[T]>, ys: &mut [T]) {
        match Algorithm::of(self.geometry) {
            Algorithm::Tiles => self.forward_by_tiles(xs, bias, ys),
            Algorithm::Channels => self.forward_by_channels(xs, bias, ys),
            Algorithm::Direct => self.forward_directly(xs, bias, ys),
            Algorithm::Patches => self.forward_by_patches(xs, bias, ys),
        }
    }

    /// The gradients, from `dys`, which is overwritten. The activation computes its derivative from
    /// `reference`.
    pub(super) fn backward(
        &self,
        xs: &[T],
        reference: &[T],
        dys: &mut [T],
        gradients: Gradients<'_, T>,
    ) {
        if self.geometry.batch == 0 {
            let sums = [gradients.dw, gradients.db];
            return sums.into_iter().flatten().for_each(|sum| sum.fill(T::zero()));
        }
        match Algorithm::of(self.geometry) {
            Algorithm::Tiles => self.backward_by_tiles(xs, reference, dys, gradients),
            Algorithm::Channels => self.backward_by_channels(xs, reference, dys, gradients),
            Algorithm::Direct => self.backward_directly(xs, reference, dys, gradients),
            Algorithm::Patches => self.backward_by_patches(xs, reference, dys, gradients),
        }
    }
}
