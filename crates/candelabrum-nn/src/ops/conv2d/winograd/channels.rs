//! The transforms for the gradient of the weights: of images, `V = Bᵀ d B`, and of the results'
//! gradients, `D = A dz Aᵀ`.
//!
//! The product sums over tiles, and its right operand needs neighbouring channels in neighbouring
//! elements. So images are first copied with the channels last, and the lanes of a vector are channels.

use std::ops::Range;

use pulp::Simd;

use super::images::inputs;
use super::point_matrices::PointMatrices;
use super::tiles::{POINTS, WinogradProblem};
use crate::kernels::float::Float;
use crate::kernels::scratch::Pooled;
use crate::kernels::transpose::transpose;

/// Some images with zeros around them, with the channels last: (N, height, width, channels).
pub(super) struct ChannelsLast<T: Float> {
    values: Pooled<T>,
    height: usize,
    width: usize,
    /// The number of channels, filled up to whole vectors.
    channels: usize,
}

/// The rows of one image to copy.
#[derive(Clone, Copy)]
struct TilePlace {
    size: (usize, usize),
    /// The place of the image's first pixel in the copy.
    offset: (usize, usize),
    /// The number of channels in the source, and those to copy.
    all: usize,
    first: usize,
    channels: usize,
}

impl<T: Float> ChannelsLast<T> {
    /// The images `xs` (N, C, H, W) of `problem`.
    #[inline(always)]
    pub(super) fn of_inputs<S: Simd>(problem: &WinogradProblem, xs: &[T]) -> Self {
        let (rows, columns) = problem.tiles();
        let place = TilePlace {
            size: problem.in_size,
            offset: problem.padding,
            all: problem.in_channels,
            first: 0,
            channels: problem.in_channels,
        };
        Self::new::<S>((2 * rows + 2, 2 * columns + 2), place, xs)
    }

    /// Some channels of the gradients of results, `dzs` (N, O, OH, OW).
    #[inline(always)]
    pub(super) fn of_outputs<S: Simd>(
        problem: &WinogradProblem,
        dzs: &[T],
        channels: &Range<usize>,
    ) -> Self {
        let (rows, columns) = problem.tiles();
        let place = TilePlace {
            size: problem.out_size,
            offset: (0, 0),
            all: problem.out_channels,
            first: channels.start,
            channels: channels.len(),
        };
        Self::new::<S>((2 * rows, 2 * columns), place, dzs)
    }

    #[inline(always)]
    fn new<S: Simd>((height, width): (usize, usize), place: TilePlace, images: &[T]) -> Self {
        let pixels = place.size.0 * place.size.1;
        let number = images.len() / (place.all * pixels);
        let channels = place.channels.next_multiple_of(T::lanes::<S>());
        let mut values = Pooled::zeros(number * height * width * channels);
        let step = width * channels;
        for (image, to) in
            images.chunks_exact(place.all * pixels).zip(values.chunks_exact_mut(height * step))
        {
            let image = &image[place.first * pixels..];
            for y in 0..place.size.0 {
                let row = &image[y * place.size.1..];
                let at = (place.offset.0 + y) * step + place.offset.1 * channels;
                transpose::<T, false>(
                    row,
                    pixels,
                    (place.channels, place.size.1),
                    &mut to[at..],
                    channels,
                );
            }
        }
        Self { values, height, width, channels }
    }

    /// One vector of the pixels of `SIDE` × `SIDE` of a tile.
    #[inline(always)]
    fn pixels<S: Simd, const SIDE: usize>(
        &self,
        simd: S,
        image: usize,
        (row, column): (usize, usize),
        channel: usize,
    ) -> [[T::Vector<S>; SIDE]; SIDE] {
        let mut pixels = [[T::zero_vector(simd); SIDE]; SIDE];
        for (y, pixels) in pixels.iter_mut().enumerate() {
            let row = (image * self.height + 2 * row + y) * self.width + 2 * column;
            for (x, pixel) in pixels.iter_mut().enumerate() {
                let at = (row + x) * self.channels + channel;
                *pixel = T::vectors::<S>(&self.values[at..])[0];
            }
        }
        pixels
    }
}

/// Writes the transforms of some tiles of images to the rows of `out`, tile number
/// `tiles.start + i` to row `i`.
#[inline(always)]
pub(super) fn transform_inputs<T: Float, S: Simd>(
    simd: S,
    problem: &WinogradProblem,
    images: &ChannelsLast<T>,
    tiles: Range<usize>,
    out: &mut PointMatrices<T>,
) {
    each_tile::<T, S>(
        problem,
        tiles,
        images.channels,
        out,
        #[inline(always)]
        |image, tile, channel| inputs::<T, S>(simd, images.pixels(simd, image, tile, channel)),
    );
}

/// Writes the transforms of some tiles of the gradients of results to the rows of `out`, tile number
/// `tiles.start + i` to row `i`.
#[inline(always)]
pub(super) fn transform_gradients<T: Float, S: Simd>(
    simd: S,
    problem: &WinogradProblem,
    images: &ChannelsLast<T>,
    tiles: Range<usize>,
    out: &mut PointMatrices<T>,
) {
    each_tile::<T, S>(
        problem,
        tiles,
        images.channels,
        out,
        #[inline(always)]
        |image, tile, channel| gradients::<T, S>(simd, images.pixels(simd, image, tile, channel)),
    );
}

/// Writes the 16 points that `of` computes for each tile and each vector of channels.
#[inline(always)]
fn each_tile<T: Float, S: Simd>(
    problem: &WinogradProblem,
    tiles: Range<usize>,
    channels: usize,
    out: &mut PointMatrices<T>,
    of: impl Fn(usize, (usize, usize), usize) -> [T::Vector<S>; POINTS],
) {
    let mut row = 0;
    for run in problem.runs(tiles) {
        for column in run.first..run.first + run.len {
            for channel in (0..channels).step_by(T::lanes::<S>()) {
                let points = of(run.image, (run.row, column), channel);
                for (point, value) in points.into_iter().enumerate() {
                    T::vectors_mut::<S>(out.rest_mut(point, row, channel))[0] = value;
                }
            }
            row += 1;
        }
    }
}

/// `A dz Aᵀ` of 2 × 2 pixels.
#[inline(always)]
fn gradients<T: Float, S: Simd>(simd: S, pixels: [[T::Vector<S>; 2]; 2]) -> [T::Vector<S>; POINTS] {
    let [above, below] = pixels;
    let above = gradient_line::<T, S>(simd, above);
    let below = gradient_line::<T, S>(simd, below);
    let mut points = [T::zero_vector(simd); POINTS];
    for x in 0..4 {
        let column = gradient_line::<T, S>(simd, [above[x], below[x]]);
        for y in 0..4 {
            points[4 * y + x] = column[y];
        }
    }
    points
}

#[inline(always)]
fn gradient_line<T: Float, S: Simd>(simd: S, [a, b]: [T::Vector<S>; 2]) -> [T::Vector<S>; 4] {
    let zero = T::zero_vector(simd);
    [a, T::plus(simd, a, b), T::minus(simd, a, b), T::minus(simd, zero, b)]
}
