//! The elements of a kernel that meet the image, and their gradient.

use super::geometry::Geometry;
use crate::ops::float::Float;

/// Copies those elements of `weight` (O x C x KH x KW) one after the other.
pub(super) fn crop<T: Float>(geometry: &Geometry, weight: &[T], cropped: &mut [T]) {
    let mut rows = cropped.chunks_exact_mut(geometry.taps.1.len());
    for kernel in weight.chunks_exact(geometry.kernel.0 * geometry.kernel.1) {
        for ky in geometry.taps.0.clone() {
            let row = rows.next().expect("a row per row of every kernel");
            row.copy_from_slice(&kernel[ky * geometry.kernel.1..][geometry.taps.1.clone()]);
        }
    }
}

/// The reverse: the elements that meet only padding have the gradient 0.
pub(super) fn uncrop<T: Float>(geometry: &Geometry, cropped: &[T], dw: &mut [T]) {
    let mut rows = cropped.chunks_exact(geometry.taps.1.len());
    for kernel in dw.chunks_exact_mut(geometry.kernel.0 * geometry.kernel.1) {
        kernel.fill(T::zero());
        for ky in geometry.taps.0.clone() {
            let row = rows.next().expect("a row per row of every kernel");
            kernel[ky * geometry.kernel.1..][geometry.taps.1.clone()].copy_from_slice(row);
        }
    }
}
