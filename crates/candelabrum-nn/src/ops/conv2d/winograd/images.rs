//! The transforms of images along their rows, `V = Bᵀ d B`, and of results, `Y = Aᵀ M A`.
//!
//! The lanes of a vector are neighbouring tiles of a row. Neighbouring tiles are two pixels apart, so
//! each row of an image is first divided into its even and its odd pixels.

use std::ops::Range;

use pulp::Simd;

use super::point_matrices::PointMatrices;
use super::tiles::{POINTS, TileSpan, WinogradProblem};
use crate::kernels::float::Float;
use crate::kernels::scratch::Pooled;

/// Some rows of a channel with zeros around it, divided into even and odd pixels.
pub(super) struct Halves<T: Float> {
    values: Pooled<T>,
    /// The distance between two rows of one half.
    step: usize,
}

impl<T: Float> Halves<T> {
    pub(super) fn new<S: Simd>(problem: &WinogradProblem) -> Self {
        let (rows, columns) = problem.tiles();
        let step = columns + 1 + T::lanes::<S>();
        Self { values: Pooled::zeros((2 * rows + 2) * 2 * step), step }
    }

    /// Divides the rows of `channel` that the rows of tiles need.
    #[inline(always)]
    fn divide(&mut self, problem: &WinogradProblem, channel: &[T], tiles: Range<usize>) {
        let ((height, width), (above, left)) = (problem.in_size, problem.padding);
        for row in 2 * tiles.start..2 * tiles.end + 2 {
            let halves = &mut self.values[2 * row * self.step..][..2 * self.step];
            let Some(y) = row.checked_sub(above).filter(|&y| y < height) else {
                halves.fill(T::zero());
                continue;
            };
            let (even, odd) = halves.split_at_mut(self.step);
            let (first, second) = if left.is_multiple_of(2) {
                (&mut even[left / 2..], &mut odd[left / 2..])
            } else {
                (&mut odd[left / 2..], &mut even[left / 2 + 1..])
            };
            let (pairs, rest) = channel[y * width..][..width].as_chunks::<2>();
            for ((first, second), pair) in first.iter_mut().zip(second).zip(pairs) {
                (*first, *second) = (pair[0], pair[1]);
            }
            if let [last] = rest {
                first[pairs.len()] = *last;
            }
        }
    }

    /// Vectors of the 16 pixels of each of some tiles, whose first one is `tile` of row `row`.
    #[inline(always)]
    fn pixels<S: Simd>(&self, simd: S, row: usize, tile: usize) -> [[T::Vector<S>; 4]; 4] {
        let line = 2 * (2 * row) * self.step + tile;
        let mut pixels = [[T::zero_vector(simd); 4]; 4];
        for (y, pixels) in pixels.iter_mut().enumerate() {
            let (even, odd) = self.values[line + 2 * y * self.step..].split_at(self.step);
            pixels[0] = T::vectors::<S>(even)[0];
            pixels[1] = T::vectors::<S>(odd)[0];
            pixels[2] = T::vectors::<S>(&even[1..])[0];
            pixels[3] = T::vectors::<S>(&odd[1..])[0];
        }
        pixels
    }
}

/// Writes the transforms of some tiles of some channels of `xs` (N, C, H, W) to `out`, which has a row for
/// each of these channels: tile number `tiles.start + i` to column `i`.
#[inline(always)]
pub(super) fn transform_inputs<T: Float, S: Simd>(
    simd: S,
    problem: &WinogradProblem,
    xs: &[T],
    channels: Range<usize>,
    tiles: Range<usize>,
    halves: &mut Halves<T>,
    out: &mut PointMatrices<T>,
) {
    let pixels = problem.in_pixels();
    for (row, channel) in channels.enumerate() {
        let mut column = 0;
        let mut divided = None;
        for run in problem.runs(tiles.clone()) {
            if divided != Some(run.image) {
                divided = Some(run.image);
                let rows = rows_of(problem, run.image, &tiles);
                let number = run.image * problem.in_channels + channel;
                halves.divide(problem, &xs[number * pixels..][..pixels], rows);
            }
            for offset in (0..run.len).step_by(T::lanes::<S>()) {
                let points = inputs::<T, S>(simd, halves.pixels(simd, run.row, run.first + offset));
                for (point, value) in points.into_iter().enumerate() {
                    let to = out.rest_mut(point, row, column + offset);
                    T::vectors_mut::<S>(to)[0] = value;
                }
            }
            column += run.len;
        }
    }
}

/// The rows of tiles of `image` that have tiles with these numbers.
#[inline(always)]
fn rows_of(problem: &WinogradProblem, image: usize, tiles: &Range<usize>) -> Range<usize> {
    let ((rows, columns), first) = (problem.tiles(), image * problem.tiles_per_image());
    let start = tiles.start.saturating_sub(first) / columns;
    start..(tiles.end - first).div_ceil(columns).min(rows)
}

/// `Bᵀ d B` of 4 × 4 pixels.
#[inline(always)]
pub(super) fn inputs<T: Float, S: Simd>(
    simd: S,
    pixels: [[T::Vector<S>; 4]; 4],
) -> [T::Vector<S>; POINTS] {
    let mut rows = pixels;
    for row in &mut rows {
        *row = input_line::<T, S>(simd, *row);
    }
    let mut points = [T::zero_vector(simd); POINTS];
    for x in 0..4 {
        let column = [rows[0][x], rows[1][x], rows[2][x], rows[3][x]];
        let column = input_line::<T, S>(simd, column);
        for y in 0..4 {
            points[4 * y + x] = column[y];
        }
    }
    points
}

#[inline(always)]
fn input_line<T: Float, S: Simd>(simd: S, [a, b, c, d]: [T::Vector<S>; 4]) -> [T::Vector<S>; 4] {
    [T::minus(simd, a, c), T::plus(simd, b, c), T::minus(simd, c, b), T::minus(simd, b, d)]
}

/// Writes the pixels of some tiles of some channels of `ys` (N, O, H, W) from `points`, which has a row for
/// each of these channels.
#[inline(always)]
pub(super) fn transform_outputs<T: Float, S: Simd>(
    simd: S,
    problem: &WinogradProblem,
    points: &PointMatrices<T>,
    channels: Range<usize>,
    tiles: Range<usize>,
    ys: &mut [T],
) {
    let pixels = problem.out_pixels();
    for (row, channel) in channels.enumerate() {
        let mut column = 0;
        for run in problem.runs(tiles.clone()) {
            let number = run.image * problem.out_channels + channel;
            let y = &mut ys[number * pixels..][..pixels];
            for offset in (0..run.len).step_by(T::lanes::<S>()) {
                let mut tile = [T::zero_vector(simd); POINTS];
                for (point, value) in tile.iter_mut().enumerate() {
                    *value = T::vectors::<S>(points.rest(point, row, column + offset))[0];
                }
                let pixels = outputs::<T, S>(simd, tile);
                let some = TileSpan { first: run.first + offset, len: run.len - offset, ..run };
                store::<T, S>(problem.out_size, some, pixels, y);
            }
            column += run.len;
        }
    }
}

/// `Aᵀ M A`: the 2 × 2 pixels of 16 points.
#[inline(always)]
fn outputs<T: Float, S: Simd>(simd: S, points: [T::Vector<S>; POINTS]) -> [[T::Vector<S>; 2]; 2] {
    let mut columns = [[T::zero_vector(simd); 2]; 4];
    for (x, column) in columns.iter_mut().enumerate() {
        let points = [points[x], points[4 + x], points[8 + x], points[12 + x]];
        *column = output_line::<T, S>(simd, points);
    }
    let [a, b, c, d] = columns;
    [
        output_line::<T, S>(simd, [a[0], b[0], c[0], d[0]]),
        output_line::<T, S>(simd, [a[1], b[1], c[1], d[1]]),
    ]
}

#[inline(always)]
fn output_line<T: Float, S: Simd>(simd: S, [a, b, c, d]: [T::Vector<S>; 4]) -> [T::Vector<S>; 2] {
    let first = T::plus(simd, T::plus(simd, a, b), c);
    [first, T::minus(simd, T::minus(simd, b, c), d)]
}

/// Writes the first tiles of vectors of pixels to the channel `y`, as far as they lie in it.
#[inline(always)]
fn store<T: Float, S: Simd>(
    (height, width): (usize, usize),
    run: TileSpan,
    pixels: [[T::Vector<S>; 2]; 2],
    y: &mut [T],
) {
    let lanes = T::lanes::<S>();
    let first = 2 * run.first;
    let len = (2 * run.len.min(lanes)).min(width - first);
    for (row, halves) in (2 * run.row..height).zip(pixels) {
        let mut even = [T::zero(); MOST_LANES];
        let mut odd = [T::zero(); MOST_LANES];
        T::vectors_mut::<S>(&mut even)[0] = halves[0];
        T::vectors_mut::<S>(&mut odd)[0] = halves[1];
        let to = &mut y[row * width + first..][..len];
        if len == 2 * lanes {
            interleave(&even[..lanes], &odd[..lanes], to);
        } else {
            let mut both = [T::zero(); 2 * MOST_LANES];
            interleave(&even[..lanes], &odd[..lanes], &mut both[..2 * lanes]);
            to.copy_from_slice(&both[..len]);
        }
    }
}

/// The lanes of the longest vectors.
const MOST_LANES: usize = 16;

#[inline(always)]
fn interleave<T: Float>(even: &[T], odd: &[T], to: &mut [T]) {
    let (to, _) = to.as_chunks_mut::<2>();
    for ((to, &even), &odd) in to.iter_mut().zip(even).zip(odd) {
        *to = [even, odd];
    }
}
