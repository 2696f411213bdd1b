//! Images to matrices of patches and back (im2col and col2im), for the channels of one group.
//!
//! Row `(c, ky, kx)` of the matrix holds, for every output pixel, the input element that this
//! element of the kernel meets there, or 0 in the padding. The pixels of one image are some of the
//! columns: `columns` of them in all, from column `first` on.

use std::ops::Range;

use super::geometry::Geometry;
use crate::ops::float::Float;

/// Writes an image's columns of `patches` (K x `columns`) from the image `x`.
pub(super) fn unfold<T: Float>(
    geometry: &Geometry,
    x: &[T],
    patches: &mut [T],
    columns: usize,
    first: usize,
) {
    let (height, width) = geometry.in_size;
    let out_width = geometry.out_size.1;
    let row_step = geometry.stride.0 * width;
    let mut patch_rows = patches.chunks_exact_mut(columns);
    for plane in x.chunks_exact(height * width) {
        for ky in geometry.taps.0.clone() {
            let rows = Inside::rows(geometry, ky);
            for kx in geometry.taps.1.clone() {
                let cols = Inside::cols(geometry, kx);
                let patch_row = patch_rows.next().expect("K rows by construction");
                let patch_row = &mut patch_row[first..first + geometry.out_pixels()];
                if cols.out != (0..out_width) || rows.out != (0..geometry.out_size.0) {
                    patch_row.fill(T::zero());
                }
                if rows.out.is_empty() || cols.out.is_empty() {
                    continue;
                }
                let inside = &mut patch_row[rows.out.start * out_width..rows.out.end * out_width];
                let source = &plane[rows.first * width + cols.first..];
                copy_rows(inside, out_width, cols.out, source, row_step, geometry.stride.1);
            }
        }
    }
}

/// Adds an image's columns of `patches` (K x `columns`) to the elements of `dx` that they came from.
pub(super) fn fold<T: Float>(
    geometry: &Geometry,
    patches: &[T],
    columns: usize,
    first: usize,
    dx: &mut [T],
) {
    let (height, width) = geometry.in_size;
    let out_width = geometry.out_size.1;
    let row_step = geometry.stride.0 * width;
    let mut patch_rows = patches.chunks_exact(columns);
    for plane in dx.chunks_exact_mut(height * width) {
        for ky in geometry.taps.0.clone() {
            let rows = Inside::rows(geometry, ky);
            for kx in geometry.taps.1.clone() {
                let cols = Inside::cols(geometry, kx);
                let patch_row = patch_rows.next().expect("K rows by construction");
                if rows.out.is_empty() || cols.out.is_empty() {
                    continue;
                }
                let patch_row = &patch_row[first..first + geometry.out_pixels()];
                let inside = &patch_row[rows.out.start * out_width..rows.out.end * out_width];
                let target = &mut plane[rows.first * width + cols.first..];
                add_rows(inside, out_width, cols.out, target, row_step, geometry.stride.1);
            }
        }
    }
}

/// Row `i` of `out`, in its columns `cols`, becomes every `stride`-th element of `source` from
/// `i * row_step` on.
#[inline(always)]
fn copy_rows<T: Float>(
    out: &mut [T],
    out_width: usize,
    cols: Range<usize>,
    source: &[T],
    row_step: usize,
    stride: usize,
) {
    let rows = out.chunks_exact_mut(out_width).zip((0..).step_by(row_step));
    if stride != 1 {
        for (out, start) in rows {
            let out = &mut out[cols.clone()];
            for (out, &x) in out.iter_mut().zip(source[start..].iter().step_by(stride)) {
                *out = x;
            }
        }
    } else if cols == (0..8) && out_width == 8 {
        // The width of the second convolution of the MNIST CNN, and of the deep layers of others:
        // a known size needs no loop per row.
        let (out, _) = out.as_chunks_mut::<8>();
        for (out, start) in out.iter_mut().zip((0..).step_by(row_step)) {
            out.copy_from_slice(&source[start..start + 8]);
        }
    } else {
        for (out, start) in rows {
            let out = &mut out[cols.clone()];
            copy(out, &source[start..start + out.len()]);
        }
    }
}

/// The reverse of [`copy_rows`]: adds the rows to `target`.
#[inline(always)]
fn add_rows<T: Float>(
    rows: &[T],
    out_width: usize,
    cols: Range<usize>,
    target: &mut [T],
    row_step: usize,
    stride: usize,
) {
    if stride != 1 {
        for (row, start) in rows.chunks_exact(out_width).zip((0..).step_by(row_step)) {
            let row = &row[cols.clone()];
            for (x, &d) in target[start..].iter_mut().step_by(stride).zip(row) {
                *x += d;
            }
        }
    } else if cols == (0..8) && out_width == 8 {
        let (rows, _) = rows.as_chunks::<8>();
        for (row, start) in rows.iter().zip((0..).step_by(row_step)) {
            for (x, &d) in target[start..start + 8].iter_mut().zip(row) {
                *x += d;
            }
        }
    } else {
        for (row, start) in rows.chunks_exact(out_width).zip((0..).step_by(row_step)) {
            let row = &row[cols.clone()];
            add(&mut target[start..start + row.len()], row);
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
