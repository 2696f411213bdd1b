//! The result of up to 16 images.

use rayon::prelude::*;

use super::super::conv::Conv;
use super::super::geometry::Geometry;
use super::layout::{IMAGES, interleave, separate};
use crate::kernels::float::Float;
use crate::kernels::gemm::{
    LeftMatrix, MOST_ROWS, MatrixRows, Product, ProductSize, RowRuns, dispatch,
};
use crate::kernels::parallel::for_each;
use crate::kernels::scratch::Pooled;

/// The first elements of the runs of all elements of a patch, from the first row of the patch on.
pub(super) fn starts(geometry: &Geometry) -> Vec<usize> {
    let padded = geometry.input().padded(geometry.padding);
    let mut starts = Vec::with_capacity(geometry.patch());
    for channel in 0..padded.channels {
        for ky in geometry.taps.0.clone() {
            let row = (ky * padded.channels + channel) * padded.width;
            starts.extend(geometry.taps.1.clone().map(|kx| (row + kx) * IMAGES));
        }
    }
    starts
}

/// Computed by all threads if `threads`, otherwise by this one.
pub(super) fn forward<T: Float>(
    conv: &Conv<'_, T>,
    starts: &[usize],
    xs: &[T],
    bias: Option<&[T]>,
    ys: &mut [T],
    threads: bool,
) {
    let geometry = conv.geometry;
    let (input, output) = (geometry.input(), geometry.output());
    let padded = input.padded(geometry.padding);
    let interleaved = interleave(input, geometry.padding, xs, threads);
    let row = output.width * IMAGES;
    // Whole tiles are written.
    let block = (output.channels + MOST_ROWS) * row;
    let mut result = Pooled::new(output.height * block);
    for_each(threads, result.par_chunks_mut(block).enumerate(), |(y, out)| {
        dispatch(Product {
            size: ProductSize { rows: output.channels, depth: starts.len(), columns: row },
            left: LeftMatrix::Rows { data: conv.weight, step: starts.len() },
            right: RowRuns {
                data: &interleaved[y * padded.channels * padded.width * IMAGES..],
                starts,
            },
            out: MatrixRows { data: &mut *out, step: row },
            add: false,
        });
        conv.finish(&mut out[..output.channels * row], bias, row);
    });
    separate(output, 0, (&result, block), ys, threads);
}
