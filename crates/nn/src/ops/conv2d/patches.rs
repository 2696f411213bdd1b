//! Images to matrices of patches and back (im2col and col2im), for the channels of one group.
//!
//! Row `(c, ky, kx)` of the matrix holds, for every output pixel, the input element that this
//! element of the kernel meets there, or 0 in the padding.

use std::ops::Range;

use super::geometry::Geometry;
use crate::ops::float::Float;

/// Writes every element of `patches` (K x P) from the image `x`.
pub(super) fn unfold<T: Float>(geometry: &Geometry, x: &[T], patches: &mut [T]) {
    let (height, width) = geometry.in_size;
    let out_width = geometry.out_size.1;
    let (stride_y, stride_x) = geometry.stride;
    let mut rows = patches.chunks_exact_mut(geometry.out_pixels());
    for plane in x.chunks_exact(height * width) {
        for ky in 0..geometry.kernel.0 {
            let inside_y = Inside::rows(geometry, ky);
            for kx in 0..geometry.kernel.1 {
                let inside_x = Inside::cols(geometry, kx);
                let patch_row = rows.next().expect("K rows by construction");
                for (oy, out) in patch_row.chunks_exact_mut(out_width).enumerate() {
                    if !inside_y.out.contains(&oy) {
                        out.fill(T::zero());
                        continue;
                    }
                    let iy = inside_y.first + (oy - inside_y.out.start) * stride_y;
                    let row = &plane[iy * width..][..width];
                    out[..inside_x.out.start].fill(T::zero());
                    out[inside_x.out.end..].fill(T::zero());
                    let out = &mut out[inside_x.out.clone()];
                    if out.is_empty() {
                        continue;
                    }
                    let row = &row[inside_x.first..];
                    if stride_x == 1 {
                        copy(out, &row[..out.len()]);
                    } else {
                        for (out, &x) in out.iter_mut().zip(row.iter().step_by(stride_x)) {
                            *out = x;
                        }
                    }
                }
            }
        }
    }
}

/// Adds every element of `patches` (K x P) to the element of `dx` that it came from.
pub(super) fn fold<T: Float>(geometry: &Geometry, patches: &[T], dx: &mut [T]) {
    let (height, width) = geometry.in_size;
    let out_width = geometry.out_size.1;
    let (stride_y, stride_x) = geometry.stride;
    let mut rows = patches.chunks_exact(geometry.out_pixels());
    for plane in dx.chunks_exact_mut(height * width) {
        for ky in 0..geometry.kernel.0 {
            let inside_y = Inside::rows(geometry, ky);
            for kx in 0..geometry.kernel.1 {
                let inside_x = Inside::cols(geometry, kx);
                let patch_row = rows.next().expect("K rows by construction");
                if inside_x.out.is_empty() {
                    continue;
                }
                for oy in inside_y.out.clone() {
                    let iy = inside_y.first + (oy - inside_y.out.start) * stride_y;
                    let row = &mut plane[iy * width..][inside_x.first..width];
                    let from = &patch_row[oy * out_width..][inside_x.out.clone()];
                    if stride_x == 1 {
                        add(&mut row[..from.len()], from);
                    } else {
                        for (x, &d) in row.iter_mut().step_by(stride_x).zip(from) {
                            *x += d;
                        }
                    }
                }
            }
        }
    }
}

/// Which outputs meet one element of the kernel inside of the image, along one axis.
struct Inside {
    out: Range<usize>,
    /// The input index for `out.start`.
    first: usize,
}

impl Inside {
    fn rows(geometry: &Geometry, ky: usize) -> Self {
        Self::new(
            geometry.in_size.0,
            geometry.out_size.0,
            ky * geometry.dilation.0,
            geometry.stride.0,
            geometry.padding.0,
        )
    }

    fn cols(geometry: &Geometry, kx: usize) -> Self {
        Self::new(
            geometry.in_size.1,
            geometry.out_size.1,
            kx * geometry.dilation.1,
            geometry.stride.1,
            geometry.padding.1,
        )
    }

    /// The input index of output `o` is `o * stride + offset - padding`.
    fn new(size: usize, out: usize, offset: usize, stride: usize, padding: usize) -> Self {
        let start = padding.saturating_sub(offset).div_ceil(stride);
        let end = (size + padding).saturating_sub(offset).div_ceil(stride).min(out);
        if start >= end {
            return Self { out: 0..0, first: 0 };
        }
        Self { out: start..end, first: start * stride + offset - padding }
    }
}

/// A copy in blocks of eight: the rows are short, and a call of `memcpy` costs more than the row.
#[inline(always)]
fn copy<T: Float>(to: &mut [T], from: &[T]) {
    let (to_blocks, to_rest) = to.as_chunks_mut::<8>();
    let (from_blocks, from_rest) = from.as_chunks::<8>();
    for (to, from) in to_blocks.iter_mut().zip(from_blocks) {
        *to = *from;
    }
    for (to, from) in to_rest.iter_mut().zip(from_rest) {
        *to = *from;
    }
}

#[inline(always)]
fn add<T: Float>(to: &mut [T], from: &[T]) {
    let (to_blocks, to_rest) = to.as_chunks_mut::<8>();
    let (from_blocks, from_rest) = from.as_chunks::<8>();
    for (to, from) in to_blocks.iter_mut().zip(from_blocks) {
        for (to, from) in to.iter_mut().zip(from) {
            *to += *from;
        }
    }
    for (to, from) in to_rest.iter_mut().zip(from_rest) {
        *to += *from;
    }
}
