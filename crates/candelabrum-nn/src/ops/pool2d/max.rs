//! 2-d max pooling with PyTorch's rules.
//!
//! `y[n, c, oy, ox]` is the maximum of its window. The first maximum in row-major order gets the
//! whole gradient of the window. If the window contains a NaN, the last NaN is the maximum. Padding
//! is never the maximum. (candle's backward scales the gradient by `1/k^2`, divides it between ties
//! and refuses overlapping windows.)
//!
//! For windows of 2 x 2 side by side nothing is saved for the backward: comparing input and result
//! finds the winner again, which costs less than writing and reading an index per window. For all
//! other windows the winner's place is saved, as a number of the element type.

use candle_core::{DType, Result, Tensor, bail};
use rayon::prelude::*;

use super::{Pool2dConfig, Windows};
use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp, GpuKernels};
use crate::kernels::float::Float;
use crate::kernels::parallel::{for_each, in_parts};
use crate::kernels::scratch::Pooled;
use crate::ops::unfold::{EdgeValues, unfold};
use candelabrum_memory::simd::simd;

const NAME: &str = "max_pool2d";

/// f32 represents every whole number up to this one exactly.
const MAX_PIXELS: usize = 1 << 24;

/// The number of planes that share scratch memory.
const PLANES: usize = 16;

/// The number of pixels whose gradients are computed at a time, so that they stay in the nearest cache.
const PIXELS: usize = 1 << 10;

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
/// If the configuration does not fit the input, the dtype is no float, or an image has
/// more than 2^24 pixels with its padding.
pub fn max_pool2d(xs: &Tensor, config: Pool2dConfig) -> Result<Tensor> {
    let windows = Windows::new(NAME, xs.shape(), config)?;
    if windows.padded_plane() > MAX_PIXELS {
        bail!("{NAME}: more than {MAX_PIXELS} pixels with the padding, input {:?}", xs.shape());
    }
    fused::run(MaxPool2dOp { windows }, windows.output_shape(), &[Some(xs)])
}

#[derive(Debug, Clone, Copy)]
pub(super) struct MaxPool2dOp {
    pub(super) windows: Windows,
}

impl FusedOp for MaxPool2dOp {
    const NAME: &'static str = NAME;

    fn reads(&self) -> BackwardReads {
        if self.is_two_by_two() {
            BackwardReads::inputs(&[0]).and_output(true)
        } else {
            BackwardReads::NOTHING
        }
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let (in_plane, out_plane) = self.windows.plane_sizes();
        let xs = inputs[0];
        if !self.is_two_by_two() {
            let mut winners = Pooled::new(ys.len());
            let (firsts, places) = self.places(out_plane);
            let (firsts, places) = (&*firsts, &*places);
            let run = |((xs, ys), winners): ((&[T], &mut [T]), &mut [T])| {
                let planes = xs.chunks(in_plane).zip(ys.chunks_mut(out_plane));
                let (mut padded, mut taps) = self.scratch();
                for ((x, y), winners) in planes.zip(winners.chunks_mut(out_plane)) {
                    simd(
                        #[inline(always)]
                        || {
                            self.pad(x, &mut padded);
                            winners.copy_from_slice(firsts);
                            self.forward_any(&padded, places, &mut taps, y, winners);
                        },
                    );
                }
            };
            let (inputs, outputs) = (PLANES * in_plane, PLANES * out_plane);
            let planes = xs.par_chunks(inputs).zip(ys.par_chunks_mut(outputs));
            let planes = planes.zip(winners.par_chunks_mut(outputs));
            for_each(self.windows.worth_threads(), planes, run);
            return Ok(winners);
        }
        in_parts(self.windows.worth_threads(), (xs, in_plane), (ys, out_plane), |_, x, y| {
            simd(
                #[inline(always)]
                || self.forward_two_by_two(x, y),
            );
        });
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let Some(dxs) = pass.grads.take(0) else { return Ok(()) };
        let (in_plane, out_plane) = self.windows.plane_sizes();
        let Backward { inputs, ys, saved, dys, .. } = pass;
        let (threads, two_by_two) = (self.windows.worth_threads(), self.is_two_by_two());
        // Planes of whole windows lie together like one plane.
        let together =
            if two_by_two && in_plane == 4 * out_plane { (PIXELS / in_plane).max(1) } else { 1 };
        let (inputs_of, results_of) = (together * in_plane, together * out_plane);
        in_parts(threads, (dys, results_of), (dxs, inputs_of), |index, dys, dxs| {
            let results = index * results_of..index * results_of + dys.len();
            if !two_by_two {
                return to_winners(&saved[results], dys, dxs);
            }
            let (xs, ys) = (&inputs[0][index * inputs_of..][..dxs.len()], &ys[results]);
            if has_nan(ys) {
                self.backward_with_nan(xs, ys, dys, dxs);
            } else {
                self.backward_two_by_two(xs, ys, dys, dxs);
            }
        });
        Ok(())
    }

    fn on_gpu(&self) -> Option<&dyn GpuKernels> {
        Some(self)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs)] = inputs else { unreachable!("one input") };
        let (batch, channels, out_height, out_width) = self.windows.output_shape();
        let (height, width) = self.windows.config.kernel;
        // The padding contains the nearest element of the image. This element lies in the same
        // window, so the first maximum of a window and its last NaN stay the same elements.
        let taps =
            unfold(xs, self.windows.axes(), EdgeValues::Nearest)?.permute((0, 1, 2, 4, 3, 5))?;
        let taps = taps.reshape((batch, channels, height * width, out_height * out_width))?;
        // The search for the winners is not part of the graph.
        let constants = taps.detach();
        let mut best = constants.narrow(2, 0, 1)?;
        let mut winner = Tensor::zeros(best.shape(), DType::U32, xs.device())?;
        for number in 1..height * width {
            let tap = constants.narrow(2, number, 1)?;
            let wins = (tap.gt(&best)? + tap.ne(&tap)?)?;
            best = wins.where_cond(&tap, &best)?;
            let number = Tensor::full(number as u32, winner.shape(), xs.device())?;
            winner = wins.where_cond(&number, &winner)?;
        }
        taps.gather(&winner, 2)
    }
}

impl MaxPool2dOp {
    pub(super) fn is_two_by_two(&self) -> bool {
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

    /// By result: the place in its plane of the window's first tap, and of the first tap inside the
    /// image.
    fn places<T: Float>(&self, results: usize) -> (Pooled<T>, Pooled<T>) {
        let (width, out_width) = (self.windows.in_size.1, self.windows.out_size.1);
        let stride = self.windows.config.stride;
        let (mut firsts, mut places) = (Pooled::new(results), Pooled::new(results));
        for (index, (first, place)) in firsts.iter_mut().zip(&mut *places).enumerate() {
            let (oy, ox) = (index / out_width, index % out_width);
            let (rows, columns) = self.windows.window(oy, ox);
            *first = T::from_f64((rows.start * width + columns.start) as f64);
            *place = T::from_f64((oy * stride.0 * width + ox * stride.1) as f64);
        }
        (firsts, places)
    }

    /// Memory for a plane with its padding, and for the elements under one tap.
    fn scratch<T: Float>(&self) -> (Pooled<T>, Pooled<T>) {
        let Windows { in_size, config, .. } = self.windows;
        let height = in_size.0 + 2 * config.padding.0;
        let width = in_size.1 + 2 * config.padding.1;
        let mut padded = Pooled::new(height * width);
        padded.fill(T::from_f64(f64::NEG_INFINITY));
        (padded, Pooled::new(self.windows.plane_sizes().1))
    }

    /// Copies a plane into the middle of the padding, which stays minus infinity and is never the
    /// maximum.
    #[inline(always)]
    fn pad<T: Float>(&self, x: &[T], padded: &mut [T]) {
        let (width, padding) = (self.windows.in_size.1, self.windows.config.padding);
        let rows = padded.chunks_exact_mut(width + 2 * padding.1).skip(padding.0);
        for (row, x) in rows.zip(x.chunks_exact(width)) {
            row[padding.1..padding.1 + width].copy_from_slice(x);
        }
    }

    /// Loops over the taps of the window and, for each tap, over all results of a plane, without
    /// branches.
    #[inline(always)]
    fn forward_any<T: Float>(
        &self,
        padded: &[T],
        places: &[T],
        taps: &mut [T],
        y: &mut [T],
        winners: &mut [T],
    ) {
        let (width, out_width) = (self.windows.in_size.1, self.windows.out_size.1);
        let Pool2dConfig { kernel, stride, padding } = self.windows.config;
        let padded_width = width + 2 * padding.1;
        let number = |n: usize| T::from_f64(n as f64);
        y.fill(T::from_f64(f64::NEG_INFINITY));
        for ky in 0..kernel.0 {
            for kx in 0..kernel.1 {
                for (oy, taps) in taps.chunks_exact_mut(out_width).enumerate() {
                    let start = (oy * stride.0 + ky) * padded_width + kx;
                    every(stride.1, &padded[start..], taps);
                }
                let offset = number(ky * width + kx) - number(padding.0 * width + padding.1);
                best(taps, places, offset, y, winners);
            }
        }
    }

    /// Overwrites the windows of `dx`, which is one plane, or several of whole windows. `y` must not contain
    /// NaN.
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

    /// Short rows would leave the vectors of [`route`] half empty, so the rows are copied together first.
    #[inline(always)]
    fn backward_short_rows<T: Float>(&self, x: &[T], y: &[T], dy: &[T], dx: &mut [T]) {
        let (width, row) = (self.windows.in_size.1, 2 * self.windows.out_size.1);
        let mut scratch = Pooled::new(8 * y.len());
        let (x_rows, dx_rows) = scratch.split_at_mut(4 * y.len());
        let (top, bottom) = x_rows.split_at_mut(2 * y.len());
        copy_rows(row, (x, 2 * width), (top, row));
        copy_rows(row, (&x[width..], 2 * width), (bottom, row));
        let (dx_top, dx_bottom) = dx_rows.split_at_mut(2 * y.len());
        route(y, dy, (top, bottom), (dx_top, dx_bottom));
        copy_rows(row, (dx_top, row), (dx, 2 * width));
        copy_rows(row, (dx_bottom, row), (&mut dx[width..], 2 * width));
    }

    /// [`Self::backward_two_by_two`] where a NaN, which equals nothing, may be the maximum.
    fn backward_with_nan<T: Float>(&self, xs: &[T], ys: &[T], dys: &[T], dxs: &mut [T]) {
        let (in_plane, out_plane) = self.windows.plane_sizes();
        let (width, out_width) = (self.windows.in_size.1, self.windows.out_size.1);
        dxs.fill(T::zero());
        let results = ys.chunks_exact(out_plane).zip(dys.chunks_exact(out_plane));
        let planes = xs.chunks_exact(in_plane).zip(dxs.chunks_exact_mut(in_plane));
        for ((y, dy), (x, dx)) in results.zip(planes) {
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
}

/// If a tap is larger than the maximum so far (or NaN), the tap becomes the maximum, with its
/// place.
#[inline(always)]
fn best<T: Float>(taps: &[T], places: &[T], offset: T, y: &mut [T], winners: &mut [T]) {
    // The compiler sees that the lengths are equal, and there is no branch, so it vectorises the
    // loop.
    let n = y.len();
    let (taps, places, winners) = (&taps[..n], &places[..n], &mut winners[..n]);
    for i in 0..n {
        let wins = (taps[i] > y[i]) | taps[i].is_nan();
        let place = places[i] + offset;
        y[i] = if wins { taps[i] } else { y[i] };
        winners[i] = if wins { place } else { winners[i] };
    }
}

/// Copies all whole rows of `row` elements, which begin `from_step` and `to_step` elements apart.
///
/// With a known length, no function is called for each row. These are the lengths of the MNIST CNN and of
/// deep layers.
fn copy_rows<T: Float>(row: usize, from: (&[T], usize), to: (&mut [T], usize)) {
    match row {
        8 => copy_rows_of::<T, 8>(from, to),
        16 => copy_rows_of::<T, 16>(from, to),
        24 => copy_rows_of::<T, 24>(from, to),
        32 => copy_rows_of::<T, 32>(from, to),
        _ => {
            for (to, from) in to.0.chunks_mut(to.1).zip(from.0.chunks(from.1)) {
                if let (Some(to), Some(from)) = (to.get_mut(..row), from.get(..row)) {
                    to.copy_from_slice(from);
                }
            }
        }
    }
}

fn copy_rows_of<T: Float, const ROW: usize>(
    (from, from_step): (&[T], usize),
    (to, to_step): (&mut [T], usize),
) {
    for (to, from) in to.chunks_mut(to_step).zip(from.chunks(from_step)) {
        if let (Some(to), Some(from)) = (to.first_chunk_mut::<ROW>(), from.first_chunk::<ROW>()) {
            *to = *from;
        }
    }
}

/// Every `stride`-th element of `xs`.
#[inline(always)]
fn every<T: Float>(stride: usize, xs: &[T], out: &mut [T]) {
    if stride == 1 {
        out.copy_from_slice(&xs[..out.len()]);
    } else if stride == 2 {
        let (pairs, rest) = xs.as_chunks::<2>();
        let count = out.len().min(pairs.len());
        for (out, pair) in out.iter_mut().zip(pairs) {
            *out = pair[0];
        }
        if let Some(last) = out.get_mut(count) {
            *last = rest[0];
        }
    } else {
        for (out, &x) in out.iter_mut().zip(xs.iter().step_by(stride)) {
            *out = x;
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

/// The maximum by PyTorch's rule: a NaN is larger than everything before it.
#[inline(always)]
fn larger<T: Float>(max: T, x: T) -> T {
    if (x > max) | x.is_nan() { x } else { max }
}

/// Sends the gradients of 2 x 2 windows to the first maximum of each.
///
/// Indices, pairs and masks replace iterators and branches: the compiler vectorises this form, and
/// the place of a maximum cannot be predicted.
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
