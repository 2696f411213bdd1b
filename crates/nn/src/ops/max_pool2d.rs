//! 2-d max pooling with PyTorch's rules.
//!
//! `y[n, c, oy, ox]` is the maximum of its window. The whole gradient of a window goes to its
//! first maximum in row-major order; a NaN in the window is the maximum, the last one if there
//! are several; padding never wins. (candle's backward scales the gradient by `1/k^2`, shares it
//! between ties and refuses overlapping windows.)
//!
//! Nothing is saved for the backward: it finds the winner again by comparing input and result,
//! which is cheaper than writing and reading an index per window.

use std::ops::Range;

use candle_core::{Result, Tensor, bail};
use rayon::prelude::*;

use super::float::Float;
use super::fused::{self, Backward, Fused, Pooled, Reads};

const NAME: &str = "max_pool2d";

/// Output rows below this length go through `backward_short_rows`.
const SHORT_ROW: usize = 32;

/// The windows of a pooling, each pair as (height, width).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pool2dConfig {
    /// The size of a window.
    pub kernel: (usize, usize),
    /// The step between two windows.
    pub stride: (usize, usize),
    /// How far windows reach over the edges, at most half of the kernel.
    pub padding: (usize, usize),
}

impl Pool2dConfig {
    /// Square windows side by side: stride = kernel, no padding.
    #[must_use]
    pub fn square(kernel: usize) -> Self {
        Self { kernel: (kernel, kernel), stride: (kernel, kernel), padding: (0, 0) }
    }
}

/// The maximum of every window.
///
/// # Shapes
///
/// `xs` (N, C, H, W) -> (N, C, OH, OW) with `OH = (H + 2 padding - kernel) / stride + 1`.
///
/// # Errors
///
/// If the configuration does not fit the input, or the dtype is neither f32 nor f64.
pub fn max_pool2d(xs: &Tensor, config: Pool2dConfig) -> Result<Tensor> {
    let (batch, channels, height, width) = xs.dims4()?;
    let Pool2dConfig { kernel, stride, padding } = config;
    if [kernel.0, kernel.1, stride.0, stride.1].contains(&0) {
        bail!("{NAME}: kernel and stride must be positive, got {config:?}");
    }
    if padding.0 > kernel.0 / 2 || padding.1 > kernel.1 / 2 {
        bail!("{NAME}: padding must be at most half of the kernel, got {config:?}");
    }
    let out = |size: usize, kernel: usize, stride: usize, padding: usize| {
        (size + 2 * padding).checked_sub(kernel).map(|rest| rest / stride + 1)
    };
    let (Some(out_height), Some(out_width)) =
        (out(height, kernel.0, stride.0, padding.0), out(width, kernel.1, stride.1, padding.1))
    else {
        bail!("{NAME}: kernel {kernel:?} is larger than the padded input {:?}", xs.shape());
    };
    if height == 0 || width == 0 {
        bail!("{NAME}: empty images, input {:?}", xs.shape());
    }
    let out_size = (out_height, out_width);
    let op = MaxPool2d { batch, channels, in_size: (height, width), out_size, config };
    fused::run(op, (batch, channels, out_height, out_width), &[Some(xs)])
}

#[derive(Debug, Clone, Copy)]
struct MaxPool2d {
    batch: usize,
    channels: usize,
    in_size: (usize, usize),
    out_size: (usize, usize),
    config: Pool2dConfig,
}

impl Fused for MaxPool2d {
    const NAME: &'static str = NAME;

    fn reads(&self) -> Reads {
        Reads::inputs(&[0]).and_output(true)
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let (in_plane, out_plane) = self.plane_sizes();
        let xs = inputs[0];
        let run = |(x, y): (&[T], &mut [T])| {
            if self.is_two_by_two() {
                self.forward_two_by_two(x, y);
            } else {
                self.forward_any(x, y);
            }
        };
        if self.worth_threads() {
            xs.par_chunks(in_plane).zip(ys.par_chunks_mut(out_plane)).for_each(run);
        } else {
            xs.chunks(in_plane).zip(ys.chunks_mut(out_plane)).for_each(run);
        }
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let Some(dxs) = pass.grads.take(0) else { return Ok(()) };
        let (in_plane, out_plane) = self.plane_sizes();
        let (xs, ys, dys) = (pass.inputs[0], pass.ys, &*pass.dys);
        let run = |x: &[T], y: &[T], dy: &[T], dx: &mut [T]| {
            if self.is_two_by_two() && !has_nan(y) {
                self.backward_two_by_two(x, y, dy, dx);
            } else {
                self.backward_any(x, y, dy, dx);
            }
        };
        if self.worth_threads() {
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
    fn plane_sizes(&self) -> (usize, usize) {
        (self.in_size.0 * self.in_size.1, self.out_size.0 * self.out_size.1)
    }

    fn is_two_by_two(&self) -> bool {
        let Pool2dConfig { kernel, stride, padding } = self.config;
        (kernel, stride, padding) == ((2, 2), (2, 2), (0, 0))
    }

    /// Below some 10 microseconds of work, waking another thread costs more than it saves.
    fn worth_threads(&self) -> bool {
        let elements = self.batch * self.channels * self.in_size.0 * self.in_size.1;
        rayon::current_num_threads() > 1 && elements > 1 << 15
    }

    fn forward_two_by_two<T: Float>(&self, x: &[T], y: &mut [T]) {
        let (width, out_width) = (self.in_size.1, self.out_size.1);
        for (rows, y) in x.chunks_exact(2 * width).zip(y.chunks_exact_mut(out_width)) {
            let (top, bottom) = rows.split_at(width);
            let (top, _) = top.as_chunks::<2>();
            let (bottom, _) = bottom.as_chunks::<2>();
            for ((y, &[a, b]), &[c, d]) in y.iter_mut().zip(top).zip(bottom) {
                *y = larger(larger(larger(a, b), c), d);
            }
        }
    }

    fn forward_any<T: Float>(&self, x: &[T], y: &mut [T]) {
        for (oy, y) in y.chunks_exact_mut(self.out_size.1).enumerate() {
            for (ox, y) in y.iter_mut().enumerate() {
                let (rows, cols) = self.window(oy, ox);
                let mut max = x[rows.start * self.in_size.1 + cols.start];
                for iy in rows {
                    for &x in &x[iy * self.in_size.1..][cols.clone()] {
                        max = larger(max, x);
                    }
                }
                *y = max;
            }
        }
    }

    /// Overwrites the windows of `dx`; `y` must hold no NaN.
    fn backward_two_by_two<T: Float>(&self, x: &[T], y: &[T], dy: &[T], dx: &mut [T]) {
        let (width, out_width) = (self.in_size.1, self.out_size.1);
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
    fn backward_short_rows<T: Float>(&self, x: &[T], y: &[T], dy: &[T], dx: &mut [T]) {
        let (width, row) = (self.in_size.1, 2 * self.out_size.1);
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

    /// Adds, as windows may overlap.
    fn backward_any<T: Float>(&self, x: &[T], y: &[T], dy: &[T], dx: &mut [T]) {
        dx.fill(T::zero());
        let results = y.iter().zip(dy).enumerate();
        for (index, (&y, &dy)) in results {
            let (rows, cols) = self.window(index / self.out_size.1, index % self.out_size.1);
            let mut winner = None;
            for iy in rows {
                for ix in cols.clone() {
                    let index = iy * self.in_size.1 + ix;
                    let x = x[index];
                    // The first maximum, or the last NaN.
                    if (x == y && winner.is_none()) || (x.is_nan() && y.is_nan()) {
                        winner = Some(index);
                    }
                }
            }
            dx[winner.expect("the maximum lies in its window")] += dy;
        }
    }

    /// The rows and columns of a window that lie inside of the image; never empty, as the padding
    /// is at most half of the kernel.
    fn window(&self, oy: usize, ox: usize) -> (Range<usize>, Range<usize>) {
        let Pool2dConfig { kernel, stride, padding } = self.config;
        let range = |o: usize, size: usize, kernel: usize, stride: usize, padding: usize| {
            let start = o * stride;
            start.saturating_sub(padding)..(start + kernel - padding).min(size)
        };
        (
            range(oy, self.in_size.0, kernel.0, stride.0, padding.0),
            range(ox, self.in_size.1, kernel.1, stride.1, padding.1),
        )
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
