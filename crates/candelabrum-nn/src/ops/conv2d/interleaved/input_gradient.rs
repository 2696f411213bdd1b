//! The gradient of up to 16 images.

use std::ops::Range;

use rayon::prelude::*;

use super::super::geometry::Geometry;
use super::layout::{IMAGES, interleave, separate};
use crate::kernels::float::Float;
use crate::kernels::gemm::{LeftMatrix, MOST_ROWS, MatrixRows, Product, ProductSize, dispatch};
use crate::kernels::parallel::for_each;
use crate::kernels::scratch::Pooled;

/// The weight as (KW, C, KH, O), the rows of the kernel from the last to the first: in the order of the rows
/// of pixels of the result that a row of the input meets.
pub(super) struct TurnedKernel<T: Float>(Pooled<T>);

impl<T: Float> TurnedKernel<T> {
    pub(super) fn new(geometry: &Geometry, weight: &[T]) -> Self {
        let (inputs, outputs) = (geometry.in_channels, geometry.out_channels);
        let (height, width) = (geometry.taps.0.len(), geometry.taps.1.len());
        let mut turned = Pooled::new(weight.len());
        let mut places = turned.chunks_exact_mut(outputs);
        for kx in 0..width {
            for channel in 0..inputs {
                for ky in (0..height).rev() {
                    let first = (channel * height + ky) * width + kx;
                    let elements = weight[first..].iter().step_by(inputs * height * width);
                    let places = places.next().into_iter().flatten();
                    places.zip(elements).for_each(|(place, &w)| *place = w);
                }
            }
        }
        Self(turned)
    }
}

/// Computed by all threads if `threads`, otherwise by this one.
pub(super) fn input_gradient<T: Float>(
    geometry: &Geometry,
    kernel: &TurnedKernel<T>,
    dys: &[T],
    dxs: &mut [T],
    threads: bool,
) {
    let (input, output) = (geometry.input(), geometry.output());
    let (kys, kxs) = &geometry.taps;
    let interleaved = interleave(output, (0, 0), dys, threads);
    let columns = output.width * IMAGES;
    let step = input.padded(geometry.padding).width * IMAGES;
    // Whole tiles are written.
    let block = (input.channels + MOST_ROWS) * step;
    let mut result = Pooled::new(input.height * block);
    for_each(threads, result.par_chunks_mut(block).enumerate(), |(y, out)| {
        out.fill(T::zero());
        let Range { start, end } = meeting(geometry, y);
        let depth = (end - start) * output.channels;
        // The last of these rows of the kernel meets the first row of the result.
        let turned = (kys.end - end) * output.channels;
        let first = y + geometry.padding.0 + 1 - end;
        let kernels = kernel.0.chunks_exact(input.channels * kys.len() * output.channels);
        for (kx, kernel) in kxs.clone().zip(kernels) {
            dispatch(Product {
                size: ProductSize { rows: input.channels, depth, columns },
                left: LeftMatrix::Rows {
                    data: &kernel[turned..],
                    step: kys.len() * output.channels,
                },
                right: MatrixRows {
                    data: &interleaved[first * output.channels * columns..],
                    step: columns,
                },
                out: MatrixRows { data: &mut out[kx * IMAGES..], step },
                add: true,
            });
        }
    });
    separate(input, geometry.padding.1, (&result, block), dxs, threads);
}

/// The rows of the kernel by which row `y` of an image meets the result. With stride 1 there are some.
fn meeting(geometry: &Geometry, y: usize) -> Range<usize> {
    let y = y + geometry.padding.0;
    let kys = &geometry.taps.0;
    kys.start.max((y + 1).saturating_sub(geometry.out_size.0))..kys.end.min(y + 1)
}
