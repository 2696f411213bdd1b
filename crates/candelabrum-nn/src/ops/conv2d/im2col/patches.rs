//! Converts images to matrices of patches and back (im2col and col2im), for the channels of one
//! group.
//!
//! Row `(c, ky, kx)` of the matrix contains, for every output pixel, the input element that meets
//! this element of the kernel there, or 0 in the padding.
//!
//! An image with padding is first copied into a larger one with zeros around it. Then every row of
//! a patch is complete, and the loop that copies it knows its length.

use crate::kernels::float::Float;
use crate::kernels::scratch::Pooled;
use crate::ops::conv2d::geometry::Geometry;

/// Writes the patches (K x P) of the image `x`.
#[inline(always)]
pub(super) fn im2col<T: Float>(geometry: &Geometry, x: &[T], patches: &mut [T]) {
    let padded;
    let x = if geometry.padding == (0, 0) {
        x
    } else {
        padded = pad(geometry, x);
        &*padded
    };
    let rows = patches.chunks_exact_mut(geometry.out_pixels());
    for (row, start) in rows.zip(starts(geometry)) {
        copy_rows(geometry, row, &x[start..]);
    }
}

/// Writes the gradient of an image: each element gets the sum of the gradients of its copies in the
/// patches (K x P).
#[inline(always)]
pub(super) fn col2im<T: Float>(geometry: &Geometry, patches: &[T], dx: &mut [T]) {
    if geometry.padding == (0, 0) {
        dx.fill(T::zero());
        return fold_whole(geometry, patches, dx);
    }
    let mut padded = Pooled::zeros(padded_len(geometry, dx.len()));
    fold_whole(geometry, patches, &mut padded);
    for (inner, row) in inner_rows(geometry, dx.len()).zip(dx.chunks_exact_mut(geometry.in_size.1))
    {
        row.copy_from_slice(&padded[inner..inner + row.len()]);
    }
}

#[inline(always)]
fn fold_whole<T: Float>(geometry: &Geometry, patches: &[T], dx: &mut [T]) {
    let rows = patches.chunks_exact(geometry.out_pixels());
    for (row, start) in rows.zip(starts(geometry)) {
        add_rows(geometry, row, &mut dx[start..]);
    }
}

/// Height and width with the padding.
fn padded_size(geometry: &Geometry) -> (usize, usize) {
    let ((height, width), padding) = (geometry.in_size, geometry.padding);
    (height + 2 * padding.0, width + 2 * padding.1)
}

/// The number of elements of planes that have `len` elements without padding.
fn padded_len(geometry: &Geometry, len: usize) -> usize {
    let (height, width) = padded_size(geometry);
    len / (geometry.in_size.0 * geometry.in_size.1) * height * width
}

/// The starts of the rows of planes of `len` elements in their padded copies.
fn inner_rows(geometry: &Geometry, len: usize) -> impl Iterator<Item = usize> {
    let (height, width) = padded_size(geometry);
    let planes = len / (geometry.in_size.0 * geometry.in_size.1);
    let (rows, padding) = (geometry.in_size.0, geometry.padding);
    (0..planes).flat_map(move |plane| {
        (0..rows).map(move |row| (plane * height + padding.0 + row) * width + padding.1)
    })
}

#[inline(always)]
fn pad<T: Float>(geometry: &Geometry, x: &[T]) -> Pooled<T> {
    let mut padded = Pooled::zeros(padded_len(geometry, x.len()));
    for (inner, row) in inner_rows(geometry, x.len()).zip(x.chunks_exact(geometry.in_size.1)) {
        padded[inner..inner + row.len()].copy_from_slice(row);
    }
    padded
}

/// The starts of the rows of patches in the padded image, in their order.
#[inline(always)]
fn starts(geometry: &Geometry) -> impl Iterator<Item = usize> {
    let (height, width) = padded_size(geometry);
    let ((kys, kxs), dilation) = (geometry.taps.clone(), geometry.dilation);
    (0..geometry.in_channels / geometry.groups).flat_map(move |channel| {
        let kxs = kxs.clone();
        kys.clone().flat_map(move |ky| {
            let row = channel * height + ky * dilation.0;
            kxs.clone().map(move |kx| row * width + kx * dilation.1)
        })
    })
}

/// Copies every `stride`-th element of every `stride`-th row of `source` to the rows of `out`.
#[inline(always)]
fn copy_rows<T: Float>(geometry: &Geometry, out: &mut [T], source: &[T]) {
    let out_width = geometry.out_size.1;
    let step = geometry.stride.0 * padded_size(geometry).1;
    if geometry.stride.1 != 1 {
        let rows = out.chunks_exact_mut(out_width).zip((0..).step_by(step));
        for (out, start) in rows {
            for (out, &x) in out.iter_mut().zip(source[start..].iter().step_by(geometry.stride.1)) {
                *out = x;
            }
        }
        return;
    }
    // With a known size, no loop per row is needed. These are the widths of the MNIST CNN and of
    // deep layers.
    match out_width {
        8 => copy_rows_of::<T, 8>(out, source, step),
        16 => copy_rows_of::<T, 16>(out, source, step),
        24 => copy_rows_of::<T, 24>(out, source, step),
        32 => copy_rows_of::<T, 32>(out, source, step),
        _ => {
            for (out, start) in out.chunks_exact_mut(out_width).zip((0..).step_by(step)) {
                copy(out, &source[start..start + out_width]);
            }
        }
    }
}

#[inline(always)]
fn copy_rows_of<T: Float, const N: usize>(out: &mut [T], source: &[T], step: usize) {
    let (out, _) = out.as_chunks_mut::<N>();
    for (out, start) in out.iter_mut().zip((0..).step_by(step)) {
        out.copy_from_slice(&source[start..start + N]);
    }
}

/// The reverse of [`copy_rows`]: adds the rows to `target`.
#[inline(always)]
fn add_rows<T: Float>(geometry: &Geometry, rows: &[T], target: &mut [T]) {
    let out_width = geometry.out_size.1;
    let step = geometry.stride.0 * padded_size(geometry).1;
    if geometry.stride.1 != 1 {
        for (row, start) in rows.chunks_exact(out_width).zip((0..).step_by(step)) {
            for (x, &d) in target[start..].iter_mut().step_by(geometry.stride.1).zip(row) {
                *x += d;
            }
        }
        return;
    }
    match out_width {
        8 => add_rows_of::<T, 8>(rows, target, step),
        16 => add_rows_of::<T, 16>(rows, target, step),
        24 => add_rows_of::<T, 24>(rows, target, step),
        32 => add_rows_of::<T, 32>(rows, target, step),
        _ => {
            for (row, start) in rows.chunks_exact(out_width).zip((0..).step_by(step)) {
                add(&mut target[start..start + out_width], row);
            }
        }
    }
}

#[inline(always)]
fn add_rows_of<T: Float, const N: usize>(rows: &[T], target: &mut [T], step: usize) {
    let (rows, _) = rows.as_chunks::<N>();
    for (row, start) in rows.iter().zip((0..).step_by(step)) {
        for (x, &d) in target[start..start + N].iter_mut().zip(row) {
            *x += d;
        }
    }
}

/// A copy in blocks of eight, because the rows are short: a call of `memcpy` costs more than the
/// row.
#[inline(always)]
pub(in crate::ops::conv2d) fn copy<T: Float>(to: &mut [T], from: &[T]) {
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
