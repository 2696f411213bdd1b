//! The result of up to 16 images.

use rayon::prelude::*;

use super::super::conv::Conv;
use super::layout::{IMAGES, interleave, separate};
use crate::ops::float::Float;
use crate::ops::gemm::{Left, MOST_ROWS, Product, Rows, Runs, Size, dispatch};
use crate::ops::parallel::for_each;
use crate::ops::pool::Pooled;

/// Computed by all threads if `threads`, otherwise by this one.
pub(super) fn forward<T: Float>(
    conv: &Conv<'_, T>,
    xs: &[T],
    bias: Option<&[T]>,
    ys: &mut [T],
    threads: bool,
) {
    let geometry = conv.geometry;
    let (input, output) = (geometry.input(), geometry.output());
    let padded = input.padded(geometry.padding);
    let interleaved = interleave(input, geometry.padding, xs, threads);
    // From row `y` of the input on, the runs of all elements of a patch.
    let run = |channel: usize, ky: usize, kx: usize| {
        ((ky * padded.channels + channel) * padded.width + kx) * IMAGES
    };
    let (kys, kxs) = &geometry.taps;
    let kernel =
        |channel| kys.clone().flat_map(move |ky| kxs.clone().map(move |kx| run(channel, ky, kx)));
    let starts: Vec<usize> = (0..input.channels).flat_map(kernel).collect();
    let row = output.width * IMAGES;
    // Whole tiles are written.
    let block = (output.channels + MOST_ROWS) * row;
    let mut result = Pooled::new(output.height * block);
    for_each(threads, result.par_chunks_mut(block).enumerate(), |(y, out)| {
        dispatch(Product {
            size: Size { rows: output.channels, depth: starts.len(), columns: row },
            left: Left::Rows { data: conv.weight, step: starts.len() },
            right: Runs {
                data: &interleaved[y * padded.channels * padded.width * IMAGES..],
                starts: &starts,
            },
            out: Rows { data: &mut *out, step: row },
            add: false,
        });
        conv.finish(&mut out[..output.channels * row], bias, row);
    });
    separate(output, 0, (&result, block), ys, threads);
}
