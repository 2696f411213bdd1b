//! The elements of a kernel that meet the image, and their gradient.

use super::geometry::Geometry;
use crate::kernels::float::Float;
use crate::kernels::parallel::{in_parts, worth_threads};

/// Copies the elements of `weight` (O x C x KH x KW) that meet the image one after the other.
pub(super) fn crop<T: Float>(geometry: &Geometry, weight: &[T], cropped: &mut [T]) {
    let (whole, part) = per_output(geometry, weight.len());
    let threads = worth_threads(weight.len());
    in_parts(threads, (weight, whole), (cropped, part), |_, weight, cropped| {
        let mut places = cropped.iter_mut();
        for kernel in weight.chunks_exact(geometry.kernel.0 * geometry.kernel.1) {
            for row in rows(geometry, kernel) {
                places.by_ref().zip(row).for_each(|(place, &w)| *place = w);
            }
        }
    });
}

/// The reverse of [`crop`]: the elements that meet only padding get the gradient 0.
pub(super) fn uncrop<T: Float>(geometry: &Geometry, cropped: &[T], dw: &mut [T]) {
    let (whole, part) = per_output(geometry, dw.len());
    let threads = worth_threads(dw.len());
    in_parts(threads, (cropped, part), (dw, whole), |_, cropped, dw| {
        dw.fill(T::zero());
        let mut values = cropped.iter();
        for kernel in dw.chunks_exact_mut(geometry.kernel.0 * geometry.kernel.1) {
            for ky in geometry.taps.0.clone() {
                let row = &mut kernel[ky * geometry.kernel.1..][geometry.taps.1.clone()];
                row.iter_mut().zip(values.by_ref()).for_each(|(place, &w)| *place = w);
            }
        }
    });
}

/// The rows of a kernel, without the elements that meet only padding.
fn rows<'a, T>(geometry: &Geometry, kernel: &'a [T]) -> impl Iterator<Item = &'a [T]> {
    let (width, columns) = (geometry.kernel.1, geometry.taps.1.clone());
    geometry.taps.0.clone().map(move |ky| &kernel[ky * width..][columns.clone()])
}

/// The numbers of elements per output channel, of the weight and of the cropped weight.
fn per_output(geometry: &Geometry, weight: usize) -> (usize, usize) {
    (weight / geometry.out_channels, geometry.patch())
}
