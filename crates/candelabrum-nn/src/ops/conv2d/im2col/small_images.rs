//! Convolutions of small images.
//!
//! The rows of an image of a few pixels are too short to be copied one by one. Here the images lie
//! side by side, `(C, H, W, N)` instead of `(N, C, H, W)`. So an element of a patch is the same
//! element of all images, a run of `N`. The columns of the matrices are `(pixel, image)`:
//!
//! ```text
//! forward    y    (O x PN) = w (O x K)   patches (K x PN)
//! backward   dw   (O x K)  = dz (O x PN) patches^T
//!            dx            = col2im(w^T (K x O) dz (O x PN))
//! ```
//!
//! The matrix of patches of a 1 × 1 kernel is the image itself, so there the planes of the images lie side by
//! side, `(C, N, H, W)`, and are moved as a whole.
//!
//! If there are fewer chunks of images than threads, the threads share each product.

use std::ops::Range;

use rayon::prelude::*;

use super::patches::copy;
use crate::kernels::elementwise::add_assign;
use crate::kernels::float::Float;
use crate::kernels::matmul::{Destination, StridedMatrix, matmul};
use crate::kernels::parallel::{for_each, worth_threads};
use crate::kernels::scratch::Pooled;
use crate::kernels::transpose::transpose;
use crate::ops::conv2d::conv::Conv;
use crate::ops::conv2d::geometry::Geometry;
use candelabrum_memory::simd::simd;

/// Rows that a thread computes and folds, or finishes, at a time. Each product packs its right factor anew, so
/// few products of many rows are faster than many of few.
const ROWS: usize = 256;

impl<T: Float> Conv<'_, T> {
    /// The result for one chunk, computed by all threads if `shared`, otherwise by this one.
    pub(super) fn forward_small(&self, xs: &[T], bias: Option<&[T]>, ys: &mut [T], shared: bool) {
        let geometry = self.geometry;
        let side_by_side = SideBySide::new(geometry, xs, shared);
        let columns = side_by_side.columns();
        let mut product = Pooled::new(geometry.out_channels * columns);
        let (patch, channels) = (geometry.patch(), geometry.group_channels());
        for group in 0..geometry.groups {
            let mut memory = Pooled::none();
            let patches = side_by_side.patches(group, &mut memory);
            let weight = &self.weight[group * channels * patch..][..channels * patch];
            let product = &mut product[group * channels * columns..][..channels * columns];
            let (weight, patches) = (
                StridedMatrix::new(weight, channels, patch),
                StridedMatrix::new(patches, patch, columns),
            );
            matmul(product, Destination::Overwrite, weight, patches);
            let rows = product.par_chunks_mut(ROWS * columns).enumerate();
            for_each(shared, rows, |(number, rows)| {
                let bias = bias.map(|bias| &bias[group * channels + number * ROWS..]);
                self.finish(rows, bias, columns);
            });
        }
        geometry.spread_out(&product, side_by_side.images, ys, shared);
    }

    /// The gradients of one chunk, from `dzs`, the gradient before the activation.
    pub(super) fn small_gradients(
        &self,
        xs: &[T],
        dzs: &[T],
        dw: Option<&mut [T]>,
        dst: Destination,
        dxs: Option<&mut [T]>,
        shared: bool,
    ) {
        let geometry = self.geometry;
        let mut dz = Pooled::new(dzs.len());
        geometry.put_side_by_side(dzs, geometry.out_image(), &mut dz, shared);
        if let Some(dw) = dw {
            self.weight_gradient(&SideBySide::new(geometry, xs, shared), &dz, dw, dst);
        }
        if let Some(dxs) = dxs {
            self.input_gradient(dzs.len() / geometry.out_image(), &dz, dxs, shared);
        }
    }

    fn weight_gradient(&self, xs: &SideBySide<'_, T>, dz: &[T], dw: &mut [T], dst: Destination) {
        let (patch, channels) = (self.geometry.patch(), self.geometry.group_channels());
        let columns = xs.columns();
        let groups = dw.chunks_mut(channels * patch).zip(dz.chunks(channels * columns));
        for (group, (dw, dz)) in groups.enumerate() {
            let mut memory = Pooled::none();
            let patches = xs.patches(group, &mut memory);
            let (dz, patches) = (
                StridedMatrix::new(dz, channels, columns),
                StridedMatrix::new(patches, patch, columns),
            );
            matmul(dw, dst, dz, patches.t());
        }
    }

    fn input_gradient(&self, images: usize, dz: &[T], dxs: &mut [T], shared: bool) {
        let geometry = self.geometry;
        let (patch, channels) = (geometry.patch(), geometry.group_channels());
        let columns = images * geometry.out_pixels();
        let in_channels = geometry.in_channels / geometry.groups;
        let taps = patch / in_channels;
        let plane = geometry.in_size.0 * geometry.in_size.1 * images;
        let mut dx = Pooled::new(dxs.len());
        // As many input channels as have about one block of rows.
        let block = (ROWS / taps).clamp(1, in_channels);
        for (group, dx) in dx.chunks_mut(in_channels * plane).enumerate() {
            let weight = &self.weight[group * channels * patch..][..channels * patch];
            let dz = &dz[group * channels * columns..][..channels * columns];
            if geometry.is_pointwise() {
                let (weight, dz) = (
                    StridedMatrix::new(weight, channels, patch),
                    StridedMatrix::new(dz, channels, columns),
                );
                matmul(dx, Destination::Overwrite, weight.t(), dz);
                continue;
            }
            let run = |(number, dx): (usize, &mut [T])| {
                let rows = number * block * taps..(number * block + dx.len() / plane) * taps;
                let mut dpatches = Pooled::new(rows.len() * columns);
                let weight = StridedMatrix::new(weight, channels, patch).columns(rows);
                let dz = StridedMatrix::new(dz, channels, columns);
                matmul(&mut dpatches, Destination::Overwrite, weight.t(), dz);
                dx.fill(T::zero());
                simd(
                    #[inline(always)]
                    || fold(geometry, &dpatches, images, dx),
                );
            };
            for_each(shared, dx.par_chunks_mut(block * plane).enumerate(), run);
        }
        geometry.spread_out(&dx, images, dxs, shared);
    }
}

/// Some images side by side.
struct SideBySide<'a, T: Float> {
    geometry: &'a Geometry,
    images: usize,
    shared: bool,
    values: Pooled<T>,
}

impl<'a, T: Float> SideBySide<'a, T> {
    fn new(geometry: &'a Geometry, xs: &[T], shared: bool) -> Self {
        let mut values = Pooled::new(xs.len());
        geometry.put_side_by_side(xs, geometry.in_image(), &mut values, shared);
        Self { geometry, images: xs.len() / geometry.in_image(), shared, values }
    }

    fn columns(&self) -> usize {
        self.images * self.geometry.out_pixels()
    }

    /// The patches of a group, (K x PN), which are written to `memory` unless they are the images.
    fn patches<'b>(&'b self, group: usize, memory: &'b mut Pooled<T>) -> &'b [T] {
        let &Self { geometry, images, .. } = self;
        let columns = self.columns();
        let channels = geometry.in_channels / geometry.groups;
        let plane = geometry.in_size.0 * geometry.in_size.1 * images;
        let xs = &self.values[group * channels * plane..][..channels * plane];
        if geometry.is_pointwise() {
            return xs;
        }
        let rows = geometry.patch() / channels;
        *memory = Pooled::new(geometry.patch() * columns);
        let run = |(patches, x): (&mut [T], &[T])| {
            simd(
                #[inline(always)]
                || unfold(geometry, x, images, patches),
            );
        };
        let channels = memory.par_chunks_mut(rows * columns).zip(xs.par_chunks(plane));
        for_each(self.shared, channels, run);
        memory
    }
}

/// Writes the rows of patches of one channel.
#[inline(always)]
fn unfold<T: Float>(geometry: &Geometry, x: &[T], images: usize, patches: &mut [T]) {
    for_taps(geometry, images, |tap, pixels, from| {
        let row = &mut patches[tap * geometry.out_pixels() * images..];
        match from {
            Some(from) => row[pixels.clone()].copy_from_slice(&x[from..from + pixels.len()]),
            None => row[pixels].fill(T::zero()),
        }
    });
}

/// Adds the rows of patches of some channels to the elements from which they were copied.
#[inline(always)]
fn fold<T: Float>(geometry: &Geometry, patches: &[T], images: usize, dx: &mut [T]) {
    let plane = geometry.in_size.0 * geometry.in_size.1 * images;
    let taps = geometry.taps.0.len() * geometry.taps.1.len();
    let row = geometry.out_pixels() * images;
    for (patches, dx) in patches.chunks_exact(taps * row).zip(dx.chunks_exact_mut(plane)) {
        for_taps(geometry, images, |tap, pixels, from| {
            if let Some(from) = from {
                add_assign(&mut dx[from..from + pixels.len()], &patches[tap * row..][pixels]);
            }
        });
    }
}

/// Calls `f` with the number of each tap, a run of its row of patches, and the run's place in the
/// channel, or `None` if the run lies in the padding.
#[inline(always)]
fn for_taps(
    geometry: &Geometry,
    images: usize,
    mut f: impl FnMut(usize, Range<usize>, Option<usize>),
) {
    let ((height, width), (out_height, out_width)) = (geometry.in_size, geometry.out_size);
    let inside = |out: usize, tap: usize, stride: usize, dilation: usize, padding: usize, size| {
        (out * stride + tap * dilation).checked_sub(padding).filter(|&place| place < size)
    };
    let mut tap = 0;
    for ky in geometry.taps.0.clone() {
        for kx in geometry.taps.1.clone() {
            for oy in 0..out_height {
                let iy = inside(
                    oy,
                    ky,
                    geometry.stride.0,
                    geometry.dilation.0,
                    geometry.padding.0,
                    height,
                );
                for ox in 0..out_width {
                    let ix = inside(
                        ox,
                        kx,
                        geometry.stride.1,
                        geometry.dilation.1,
                        geometry.padding.1,
                        width,
                    );
                    let pixel = (oy * out_width + ox) * images;
                    let from = iy.zip(ix).map(|(iy, ix)| (iy * width + ix) * images);
                    f(tap, pixel..pixel + images, from);
                }
            }
            tap += 1;
        }
    }
}

impl Geometry {
    /// The number of consecutive elements of an image that stay together side by side.
    fn together(&self) -> usize {
        if self.is_pointwise() { self.out_pixels() } else { 1 }
    }

    /// Writes images of `image` elements side by side.
    fn put_side_by_side<T: Float>(&self, from: &[T], image: usize, to: &mut [T], shared: bool) {
        let together = self.together();
        transpose_all(from, (image / together, together), to, shared);
    }

    /// The reverse: writes so many images one after the other.
    fn spread_out<T: Float>(&self, from: &[T], images: usize, to: &mut [T], shared: bool) {
        transpose_all(from, (images, self.together()), to, shared);
    }
}

/// Rows of a transpose that a thread writes at a time: those of one cache line of `from`.
const BLOCK: usize = 16;

/// Writes the transpose of `from` to `to`: of a matrix whose rows have `row` elements, each of which
/// consists of so many numbers.
fn transpose_all<T: Float>(from: &[T], (row, numbers): (usize, usize), to: &mut [T], shared: bool) {
    let rows = from.len() / (row * numbers).max(1);
    if rows == 1 || row == 1 {
        to.copy_from_slice(from);
        return;
    }
    // Blocks of rows of the result, so that each thread writes contiguous memory.
    let run = |(block, to): (usize, &mut [T])| {
        simd(
            #[inline(always)]
            || {
                let from = &from[block * BLOCK * numbers..];
                if numbers == 1 {
                    let size = (rows, to.len() / rows);
                    return transpose::<T, false>(from, row, size, to, rows);
                }
                for (column, to) in to.chunks_exact_mut(rows * numbers).enumerate() {
                    let elements = from[column * numbers..].chunks(row * numbers);
                    for (to, element) in to.chunks_exact_mut(numbers).zip(elements) {
                        copy(to, &element[..numbers]);
                    }
                }
            },
        );
    };
    let threads = shared && worth_threads(from.len());
    for_each(threads, to.par_chunks_mut(BLOCK * rows * numbers).enumerate(), run);
}
