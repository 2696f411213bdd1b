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

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, WithDType, bail};
use rayon::prelude::*;

use super::float::{Float, cpu_slice, for_float, with_slices};

const NAME: &str = "max_pool2d";

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
    xs.contiguous()?.apply_op1(op)
}

#[derive(Debug, Clone, Copy)]
struct MaxPool2d {
    batch: usize,
    channels: usize,
    in_size: (usize, usize),
    out_size: (usize, usize),
    config: Pool2dConfig,
}

impl MaxPool2d {
    fn forward<T: Float>(&self, xs: &[T]) -> Vec<T> {
        let (in_plane, out_plane) = self.plane_sizes();
        let mut ys = vec![T::zero(); self.batch * self.channels * out_plane];
        if ys.is_empty() {
            return ys;
        }
        let run = |(x, y): (&[T], &mut [T])| {
            if self.is_two_by_two() {
                self.forward_two_by_two(x, y)
            } else {
                self.forward_any(x, y)
            }
        };
        if self.worth_threads() {
            xs.par_chunks(in_plane).zip(ys.par_chunks_mut(out_plane)).for_each(run);
        } else {
            xs.chunks(in_plane).zip(ys.chunks_mut(out_plane)).for_each(run);
        }
        ys
    }

    fn backward<T: Float>(&self, xs: &[T], ys: &[T], dys: &[T]) -> Vec<T> {
        let (in_plane, out_plane) = self.plane_sizes();
        let mut dxs = vec![T::zero(); xs.len()];
        if dys.is_empty() {
            return dxs;
        }
        let run = |(((x, y), dy), dx): (((&[T], &[T]), &[T]), &mut [T])| {
            if self.is_two_by_two() && !has_nan(y) {
                self.backward_two_by_two(x, y, dy, dx);
            } else {
                self.backward_any(x, y, dy, dx);
            }
        };
        if self.worth_threads() {
            let results = xs.par_chunks(in_plane).zip(ys.par_chunks(out_plane));
            let gradients = dys.par_chunks(out_plane);
            results.zip(gradients).zip(dxs.par_chunks_mut(in_plane)).for_each(run);
        } else {
            let results = xs.chunks(in_plane).zip(ys.chunks(out_plane));
            let gradients = dys.chunks(out_plane);
            results.zip(gradients).zip(dxs.chunks_mut(in_plane)).for_each(run);
        }
        dxs
    }

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

    /// Overwrites `dx`; `y` must hold no NaN.
    fn backward_two_by_two<T: Float>(&self, x: &[T], y: &[T], dy: &[T], dx: &mut [T]) {
        let (width, out_width) = (self.in_size.1, self.out_size.1);
        let results = y.chunks_exact(out_width).zip(dy.chunks_exact(out_width));
        let rows = x.chunks_exact(2 * width).zip(dx.chunks_exact_mut(2 * width));
        for ((y, dy), (x, dx)) in results.zip(rows) {
            let (top, bottom) = x.split_at(width);
            let (top, _) = top.as_chunks::<2>();
            let (bottom, _) = bottom.as_chunks::<2>();
            let (dx_top, dx_bottom) = dx.split_at_mut(width);
            let (dx_top, _) = dx_top.as_chunks_mut::<2>();
            let (dx_bottom, _) = dx_bottom.as_chunks_mut::<2>();
            let inputs = top.iter().zip(bottom);
            let outputs = dx_top.iter_mut().zip(dx_bottom);
            for (((&[a, b], &[c, _]), (dx_top, dx_bottom)), (&y, &dy)) in
                inputs.zip(outputs).zip(y.iter().zip(dy))
            {
                let pick = |wins: bool| if wins { dy } else { T::zero() };
                let (first, second, third) = (a == y, b == y, c == y);
                *dx_top = [pick(first), pick(!first & second)];
                let bottom = !(first | second);
                *dx_bottom = [pick(bottom & third), pick(bottom & !third)];
            }
        }
    }

    /// Adds to `dx`, as windows may overlap.
    fn backward_any<T: Float>(&self, x: &[T], y: &[T], dy: &[T], dx: &mut [T]) {
        let results = y.iter().zip(dy).enumerate();
        for (index, (&y, &dy)) in results {
            let (rows, cols) = self.window(index / self.out_size.1, index % self.out_size.1);
            let is_nan = y != y;
            let mut winner = None;
            for iy in rows {
                for ix in cols.clone() {
                    let index = iy * self.in_size.1 + ix;
                    let x = x[index];
                    if is_nan && x != x {
                        winner = Some(index);
                    } else if x == y && winner.is_none() {
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
    if (x > max) | (x != x) { x } else { max }
}

fn has_nan<T: Float>(xs: &[T]) -> bool {
    xs.iter().fold(false, |nan, &x| nan | (x != x))
}

impl CustomOp1 for MaxPool2d {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let shape = Shape::from((self.batch, self.channels, self.out_size.0, self.out_size.1));
        for_float!(storage.dtype(), NAME, T => {
            let xs = cpu_slice::<T>(storage, layout, NAME)?;
            Ok((T::to_cpu_storage_owned(self.forward(xs)), shape))
        })
    }

    fn bwd(&self, xs: &Tensor, ys: &Tensor, dys: &Tensor) -> Result<Option<Tensor>> {
        if !xs.track_op() {
            return Ok(None);
        }
        let dys = dys.contiguous()?;
        for_float!(xs.dtype(), NAME, T => {
            let dxs = with_slices([xs, ys, &dys], NAME, |[x, y, dy]: [&[T]; 3]| {
                Ok(self.backward(x, y, dy))
            })?;
            Tensor::from_vec(dxs, xs.shape(), xs.device()).map(Some)
        })
    }
}
