//! Images as (H, C, W, 16), and as (H, W, C).

use rayon::prelude::*;

use super::super::geometry::ImageSize;
use crate::kernels::float::Float;
use crate::kernels::parallel::for_each;
use crate::kernels::scratch::Pooled;
use crate::kernels::transpose::{SQUARE, transpose};
use candelabrum_memory::simd::simd;

/// The number of interleaved images: one vector of 16 numbers, or several smaller ones.
pub(super) const IMAGES: usize = 16;

/// Up to [`IMAGES`] images (N, C, H, W) of this size as (H, C, W, 16), with `padding` zeros around each.
/// Missing images are zero.
pub(super) fn interleave<T: Float>(
    size: ImageSize,
    padding: (usize, usize),
    images: &[T],
    threads: bool,
) -> Pooled<T> {
    let padded = size.padded(padding);
    let len = padded.len() * IMAGES;
    let count = images.len() / size.len();
    let is_whole = padding == (0, 0) && count == IMAGES;
    let mut interleaved = if is_whole { Pooled::new(len) } else { Pooled::zeros(len) };
    let row = padded.channels * padded.width * IMAGES;
    let rows = interleaved.par_chunks_mut(row).skip(padding.0).take(size.height).enumerate();
    for_each(threads, rows, |(y, row)| {
        simd(
            #[inline(always)]
            || {
                for (channel, to) in row.chunks_exact_mut(padded.width * IMAGES).enumerate() {
                    let from = &images[(channel * size.height + y) * size.width..];
                    let to = &mut to[padding.1 * IMAGES..];
                    transpose::<T, false>(from, size.len(), (count, size.width), to, IMAGES);
                }
            },
        );
    });
    interleaved
}

/// The reverse, for rows of pixels of which the first `padding` and the last ones of each channel are left
/// out. A row of pixels has `row` numbers.
pub(super) fn separate<T: Float>(
    size: ImageSize,
    padding: usize,
    (interleaved, row): (&[T], usize),
    images: &mut [T],
    threads: bool,
) {
    let width = size.width + 2 * padding;
    // All images at a time, unless the threads share them in squares of the transposition.
    let together = if threads { SQUARE } else { IMAGES };
    let images = images.par_chunks_mut(together * size.len()).enumerate();
    for_each(threads, images, |(number, images)| {
        simd(
            #[inline(always)]
            || {
                let count = images.len() / size.len();
                for (y, row) in interleaved.chunks_exact(row).enumerate() {
                    let channels = row.chunks_exact(width * IMAGES).take(size.channels);
                    for (channel, from) in channels.enumerate() {
                        let from = &from[padding * IMAGES + number * together..];
                        let to = &mut images[(channel * size.height + y) * size.width..];
                        transpose::<T, false>(from, IMAGES, (size.width, count), to, size.len());
                    }
                }
            },
        );
    });
}

/// An image (C, H, W) as (H, W, C), in the middle of zeros that are there already.
#[inline(always)]
pub(super) fn channels_last<T: Float>(
    size: ImageSize,
    padding: (usize, usize),
    image: &[T],
    to: &mut [T],
) {
    let ImageSize { channels, height, width } = size;
    let padded = size.padded(padding);
    for y in 0..height {
        let first = (y + padding.0) * padded.width + padding.1;
        let (from, to) = (&image[y * width..], &mut to[first * channels..]);
        transpose::<T, false>(from, height * width, (channels, width), to, channels);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: ImageSize = ImageSize { channels: 3, height: 5, width: 6 };

    #[test]
    fn interleaved_images_come_back() {
        for count in [1, 7, IMAGES] {
            for padding in [(0, 0), (2, 1)] {
                let images: Vec<f32> = (1..=count * SIZE.len()).map(|i| i as f32).collect();
                let interleaved = interleave(SIZE, padding, &images, false);
                let padded = SIZE.padded(padding);
                let row = padded.channels * padded.width * IMAGES;
                let sum = |xs: &[f32]| xs.iter().map(|&x| f64::from(x)).sum::<f64>();
                assert_eq!(sum(&interleaved), sum(&images), "the padding is zero");
                let inner = &interleaved[padding.0 * row..][..SIZE.height * row];
                let mut back = vec![0.0; images.len()];
                separate(SIZE, padding.1, (inner, row), &mut back, false);
                assert_eq!(back, images);
            }
        }
    }

    #[test]
    fn the_channels_of_a_pixel_lie_together() {
        let image: Vec<f64> = (1..=SIZE.len()).map(|i| i as f64).collect();
        let padded = SIZE.padded((1, 2));
        let mut last = vec![0.0; padded.len()];
        channels_last(SIZE, (1, 2), &image, &mut last);
        for y in 0..padded.height {
            for x in 0..padded.width {
                for channel in 0..SIZE.channels {
                    let inside = (1..6).contains(&y) && (2..8).contains(&x);
                    let expected = if inside {
                        image[(channel * SIZE.height + y - 1) * SIZE.width + x - 2]
                    } else {
                        0.0
                    };
                    assert_eq!(last[(y * padded.width + x) * SIZE.channels + channel], expected);
                }
            }
        }
    }
}
