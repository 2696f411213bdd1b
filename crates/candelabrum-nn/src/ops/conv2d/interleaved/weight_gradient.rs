//! The gradient of the weight.

use rayon::prelude::*;

use super::super::geometry::Geometry;
use super::layout::{IMAGES, channels_last};
use crate::kernels::float::Float;
use crate::kernels::gemm::{
    LeftMatrix, MOST_ROWS, MatrixRows, Product, ProductSize, RowRuns, dispatch,
};
use crate::kernels::scratch::Pooled;
use crate::kernels::transpose::transpose;
use candelabrum_memory::simd::simd;
use candelabrum_memory::thread_pool;

/// Output channels that a thread computes at a time.
const CHANNELS: usize = 16;

/// The numbers of the longest vector.
const MOST_LANES: usize = 16;

/// The threads share the rows of the kernel and the output channels. Each of them adds up all images, so the
/// sums do not depend on the number of threads.
pub(super) fn weight_gradient<T: Float>(geometry: &Geometry, xs: &[T], dys: &[T], dw: &mut [T]) {
    let (input, output) = (geometry.input(), geometry.output());
    let padded = input.padded(geometry.padding);
    let (kys, kxs) = &geometry.taps;
    let pixels = geometry.out_pixels();
    let columns = kxs.len() * input.channels;
    // The first elements of the runs, one for each pixel of the result.
    let pixel = |y: usize, x: usize| (y * padded.width + x) * input.channels;
    let starts: Vec<usize> =
        (0..output.height).flat_map(|y| (0..output.width).map(move |x| pixel(y, x))).collect();
    // Whole vectors are read, and whole tiles are written.
    let mut images = Pooled::zeros(IMAGES * padded.len() + MOST_LANES);
    let step = columns.next_multiple_of(MOST_LANES);
    let part = (CHANNELS + MOST_ROWS) * step;
    let parts = output.channels.div_ceil(CHANNELS);
    let mut sums = Pooled::new(kys.len() * parts * part);
    let batch = xs.chunks(IMAGES * input.len()).zip(dys.chunks(IMAGES * output.len()));
    for (number, (xs, dys)) in batch.enumerate() {
        let each = images.par_chunks_mut(padded.len()).zip(xs.par_chunks(input.len()));
        thread_pool::for_each(each, |(image, x)| {
            simd(
                #[inline(always)]
                || channels_last(input, geometry.padding, x, image),
            );
        });
        thread_pool::for_each(sums.par_chunks_mut(part).enumerate(), |(index, sums)| {
            let (ky, channel) = (kys.start + index / parts, index % parts * CHANNELS);
            for (image, dy) in dys.chunks_exact(output.len()).enumerate() {
                let first = image * padded.len() + pixel(ky, kxs.start);
                dispatch(Product {
                    size: ProductSize {
                        rows: CHANNELS.min(output.channels - channel),
                        depth: pixels,
                        columns,
                    },
                    left: LeftMatrix::Rows { data: &dy[channel * pixels..], step: pixels },
                    right: RowRuns { data: &images[first..], starts: &starts },
                    out: MatrixRows { data: &mut *sums, step },
                    add: number + image > 0,
                });
            }
        });
    }
    let taps = kys.len() * kxs.len();
    for (number, dw) in dw.chunks_exact_mut(input.channels * taps).enumerate() {
        for ky in 0..kys.len() {
            let part_of = (ky * parts + number / CHANNELS) * part;
            let sums = &sums[part_of + number % CHANNELS * step..];
            let size = (kxs.len(), input.channels);
            transpose::<T, false>(sums, input.channels, size, &mut dw[ky * kxs.len()..], taps);
        }
    }
}
