//! 2-d max pooling with PyTorch's rules.
//!
//! `y[n, c, oy, ox]` is the maximum of its window. The whole gradient of a window goes to its
//! first maximum in row-major order; a NaN in the window is the maximum, the last one if there
//! are several; padding never wins. (candle's backward scales the gradient by `1/k^2`, shares it
//! between ties and refuses overlapping windows.)
//!
//! For windows of 2 x 2 side by side nothing is saved for the backward: it finds the winner again by
//! comparing input and result, which is cheaper than writing and reading an index per window. For
//! all others the winner's place is saved, as a number of the element type.

use candle_core::{Result, Tensor, bail};
use rayon::prelude::*;

use super::float::Float;
use super::fused::{self, Backward, Fused, Pooled, Reads};
use super::pool2d::{Pool2dConfig, Windows};
use super::simd::simd;

const NAME: &str = "max_pool2d";

/// Every whole number up to here is an f32.
const MAX_PIXELS: usize = 1 << 24;

/// Output rows below this length go through `backward_short_rows`.
const SHORT_ROW: usize = 32;

/// The maximum of every window.
///
/// # Shapes
///
/// `xs` (N, C, H, W) -> (N, C, OH, OW) with `OH = (H + 2 padding - kernel) / stride + 1`.
///
/// # Errors
///
/// If the configuration does not fit the input, or the dtype is neither f32 nor f64, or an image
/// has more than 2^24 pixels.
pub fn max_pool2d(xs: &Tensor, config: Pool2dConfig) -> Result<Tensor> {
    let windows = Windows::new(NAME, xs.shape(), config)?;
    if windows.plane_sizes().0 > MAX_PIXELS {
        bail!("{NAME}: images of more than {MAX_PIXELS} pixels, input {:?}", xs.shape());
    }
    fused::run(MaxPool2d { windows }, windows.output_shape(), &[Some(xs)])
}

#[derive(Debug, Clone, Copy)]
struct MaxPool2d {
    windows: Windows,
}

impl Fused for MaxPool2d {
    const NAME: &'static str = NAME;

    fn reads(&self) -> Reads {
        if self.is_two_by_two() { Reads::inputs(&[0]).and_output(true) } else { Reads::NOTHING }
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let (in_plane, out_plane) = self.windows.plane_sizes();
        let xs = inputs[0];
        if !self.is_two_by_two() {
            let mut winners = Pooled::new(ys.len());
            let run = |((x, y), winners): ((&[T], &mut [T]), &mut [T])| {
                simd(
                    #[inline(always)]
                    || self.forward_any(x, y, winners),
                );
            };
            if self.windows.worth_threads() {
                let planes = xs.par_chunks(in_plane).zip(ys.par_chunks_mut(out_plane));
                planes.zip(winners.par_chunks_mut(out_plane)).for_each(run);
            } else {
                let planes = xs.chunks(in_plane).zip(ys.chunks_mut(out_plane));
                planes.zip(winners.chunks_mut(out_plane)).for_each(run);
            }
            return Ok(winners);
        }
        let run = |(x, y): (&[T], &mut [T])| {
            simd(
                #[inline(always)]
                || self.forward_two_by_two(x, y),
            );
        };
        if self.windows.worth_threads() {
            xs.par_chunks(in_plane).zip(ys.par_chunks_mut(out_plane)).for_each(run);
        } else {
            xs.chunks(in_plane).zip(ys.chunks_mut(out_plane)).for_each(run);
        }
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let Some(dxs) = pass.grads.take(0) else { return Ok(()) };
        let (in_plane, out_plane) = self.windows.plane_sizes();
        let (xs, ys, dys) = (pass.inputs[0], pass.ys, &*pass.dys);
        if !self.is_two_by_two() {
            let run = |((winners, dy), dx): ((&[T], &[T]), &mut [T])| to_winners(winners, dy, dx);
            if self.windows.worth_threads() {
                let planes = pass.saved.par_chunks(out_plane).zip(dys.par_chunks(out_plane));
                planes.zip(dxs.par_chunks_mut(in_plane)).for_each(run);
            } else {
                let planes = pass.saved.chunks(out_plane).zip(dys.chunks(out_plane));
                planes.zip(dxs.chunks_mut(in_plane)).for_each(run);
            }
            return Ok(());
        }
        let run = |x: &[T], y: &[T], dy: &[T], dx: &mut [T]| {
            if has_nan(y) {
                self.backward_with_nan(x, y, dy, dx);
            } else {
                self.backward_two_by_two(x, y, dy, dx);
            }
        };
        if self.windows.worth_threads() {
            let results = xs.par_chunks(in_plane).zip(ys.par_chunks(out_plane));
            let gradients = dys.par_chunks(out_plane).zip(dxs.par_chunks_mut(in_plane));
            results.zip(gradients).for_each(|((x, y), (dy, dx))| run(x, y, dy, dx));
        } else {
            let results = xs.chunks(in_plane).zip(ys.chunks(out_plane));
            let gradients = dys.chunks(out_plane).zip(dxs.chunks_mut(in_plane));
            results.zip(gradients).for_each(|((x, y), (dy, dx))| run(x, y, dy, dx));
        }
        Ok(())
    }
}

impl MaxPool2d {
    fn is_two_by_two(&self) -> bool {
        let Pool2dConfig { kernel, stride, padding } = self.windows.config;
        (kernel, stride, padding) == ((2, 2), (2, 2), (0, 0))
    }

    #[inline(always)]
    fn forward_two_by_two<T: Float>(&self, x: &[T], y: &mut [T]) {
        let (width, out_width) = (self.windows.in_size.1, self.windows.out_size.1);
        for (rows, y) in x.chunks_exact(2 * width).zip(y.chunks_exact_mut(out_width)) {
            let (top, bottom) = rows.split_at(width);
            let (top, _) = top.as_chunks::<2>();
            let (bottom, _) = bottom.as_chunks::<2>();
            for ((y, &[a, b]), &[c, d]) in y.iter_mut().zip(top).zip(bottom) {
                *y = larger(larger(larger(a, b), c), d);
            }
        }
    }

    /// Tap by tap of the window over a row of results: a loop without branches.
    #[inline(always)]
    fn forward_any<T: Float>(&self, x: &[T], y: &mut [T], winners: &mut [T]) {
        let Pool2dConfig { kernel, stride, padding } = self.windows.config;
        let (width, out_width) = (self.windows.in_size.1, self.windows.out_size.1);
        let rows = y.chunks_exact_mut(out_width).zip(winners.chunks_exact_mut(out_width));
        for (oy, (y, winners)) in rows.enumerate() {
            let (inside, _) = self.windows.window(oy, 0);
            for (ox, winner) in winners.iter_mut().enumerate() {
                let first = inside.start * width + (ox * stride.1).saturating_sub(padding.1);
                *winner = T::from_f64(first as f64);
            }
            y.fill(T::from_f64(f64::NEG_INFINITY));
            for iy in inside {
                for kx in 0..kernel.1 {
                    // Of the results, those whose window has this tap inside of the image.
                    let start = padding.1.saturating_sub(kx).div_ceil(stride.1);
                    let end = (width + padding.1).saturating_sub(kx).div_ceil(stride.1);
                    let end = end.min(out_width);
                    if start >= end {
                        continue;
                    }
                    let first = iy * width + start * stride.1 + kx - padding.1;
                    let taps = x[first..].iter().step_by(stride.1);
                    let results = y[start..end].iter_mut().zip(&mut winners[start..end]);
                    for (((y, winner), &x), ox) in results.zip(taps).zip(0_u32..) {
                        let wins = (x > *y) | x.is_nan();
                        let place = f64::from(first as u32 + ox * stride.1 as u32);
                        *y = if wins { x } else { *y };
                        *winner = if wins { T::from_f64(place) } else { *winner };
                    }
                }
            }
        }
    }

    /// Overwrites the windows of `dx`; `y` must hold no NaN.
    #[inline(always)]
    fn backward_two_by_two<T: Float>(&self, x: &[T], y: &[T], dy: &[T], dx: &mut [T]) {
        let (width, out_width) = (self.windows.in_size.1, self.windows.out_size.1);
        if x.len() != 4 * y.len() {
            // An odd row or column is in no window.
            dx.fill(T::zero());
        }
        if out_width < SHORT_ROW {
            return self.backward_short_rows(x, y, dy, dx);
        }
        let results = y.chunks_exact(out_width).zip(dy.chunks_exact(out_width));
        let rows = x.chunks_exact(2 * width).zip(dx.chunks_exact_mut(2 * width));
        for ((y, dy), (x, dx)) in results.zip(rows) {
            let (top, bottom) = x.split_at(width);
            let (dx_top, dx_bottom) = dx.split_at_mut(width);
            route(y, dy, (top, bottom), (dx_top, dx_bottom));
        }
    }

    /// Short rows leave the vectors of [`route`] half empty, so the rows of a plane are put
    /// together first: half of the time for rows of 4 and 12.
    #[inline(always)]
    fn backward_short_rows<T: Float>(&self, x: &[T], y: &[T], dy: &[T], dx: &mut [T]) {
        let (width, row) = (self.windows.in_size.1, 2 * self.windows.out_size.1);
        let mut scratch = Pooled::new(8 * y.len());
        let (x_rows, dx_rows) = scratch.split_at_mut(4 * y.len());
        let (top, bottom) = x_rows.split_at_mut(2 * y.len());
        let pairs = top.chunks_exact_mut(row).zip(bottom.chunks_exact_mut(row));
        for (x, (top, bottom)) in x.chunks_exact(2 * width).zip(pairs) {
            top.copy_from_slice(&x[..row]);
            bottom.copy_from_slice(&x[width..][..row]);
        }
        let (dx_top, dx_bottom) = dx_rows.split_at_mut(2 * y.len());
        route(y, dy, (top, bottom), (dx_top, dx_bottom));
        let pairs = dx_top.chunks_exact(row).zip(dx_bottom.chunks_exact(row));
        for (dx, (top, bottom)) in dx.chunks_exact_mut(2 * width).zip(pairs) {
            dx[..row].copy_from_slice(top);
            dx[width..][..row].copy_from_slice(bottom);
        }
    }

    /// As [`Self::backward_two_by_two`], where NaN, which equals nothing, may have won.
    fn backward_with_nan<T: Float>(&self, x: &[T], y: &[T], dy: &[T], dx: &mut [T]) {
        dx.fill(T::zero());
        let (width, out_width) = (self.windows.in_size.1, self.windows.out_size.1);
        for (index, (&y, &dy)) in y.iter().zip(dy).enumerate() {
            let (rows, cols) = self.windows.window(index / out_width, index % out_width);
            let places = rows.flat_map(|iy| cols.clone().map(move |ix| iy * width + ix));
            // The first maximum, or the last NaN.
            let winner = if y.is_nan() {
                places.filter(|&place| x[place].is_nan()).last()
            } else {
                places.into_iter().find(|&place| x[place] == y)
            };
            dx[winner.expect("the maximum lies in its window")] += dy;
        }
    }
}

/// Adds every gradient to the place of its winner.
fn to_winners<T: Float>(winners: &[T], dy: &[T], dx: &mut [T]) {
    dx.fill(T::zero());
    for (winner, &dy) in winners.iter().zip(dy) {
        dx[winner.to_f64() as usize] += dy;
    }
}

/// The maximum as PyTorch takes it: a NaN beats everything before it.
#[inline(always)]
fn larger<T: Float>(max: T, x: T) -> T {
    if (x > max) | x.is_nan() { x } else { max }
}

/// Sends the gradients of 2 x 2 windows to the first maximum of each.
///
/// Indices, pairs and masks instead of iterators and branches: in this form the compiler makes
/// vectors of it, and the place of a maximum cannot be predicted.
#[inline(never)]
fn route<T: Float>(
    y: &[T],
    dy: &[T],
    (top, bottom): (&[T], &[T]),
    (dx_top, dx_bottom): (&mut [T], &mut [T]),
) {
    let n = y.len();
    let dy = &dy[..n];
    let (top, bottom) = (&top.as_chunks::<2>().0[..n], &bottom.as_chunks::<2>().0[..n]);
    let dx_top = &mut dx_top.as_chunks_mut::<2>().0[..n];
    let dx_bottom = &mut dx_bottom.as_chunks_mut::<2>().0[..n];
    for i in 0..n {
        let ([a, b], [c, _]) = (top[i], bottom[i]);
        let (is_a, is_b, is_c) = (a == y[i], b == y[i], c == y[i]);
        dx_top[i] = [dy[i].keep_if(is_a), dy[i].keep_if(is_b & !is_a)];
        let is_top = is_a | is_b;
        dx_bottom[i] = [dy[i].keep_if(is_c & !is_top), dy[i].keep_if(!(is_c | is_top))];
    }
}

fn has_nan<T: Float>(xs: &[T]) -> bool {
    xs.iter().fold(false, |nan, &x| nan | x.is_nan())
}
