//! 2-d average pooling with PyTorch's rules.
//!
//! ```text
//! forward    y = (sum of the window) / count;
//! backward   dx = sum over the windows that hold x of dy / count
//! ```
//!
//! `count` is the size of the window or, if padding does not count, of the window's part inside the
//! image. The global average (Lin, Chen and Yan, 2013, arXiv:1312.4400) is one window per channel.

use candle_core::{Result, Tensor, bail};

use super::{Pool2dConfig, Windows};
use crate::autograd::fused::{self, Backward, FusedOp, GpuKernels};
use crate::kernels::elementwise::sum;
use crate::kernels::float::Float;
use crate::kernels::parallel::{in_parts, worth_threads};
use crate::kernels::scratch::Pooled;
use crate::ops::sizes::sizes;
use crate::ops::unfold::{EdgeValues, unfold};
use candelabrum_memory::simd::simd;

const NAME: &str = "avg_pool2d";
const GLOBAL: &str = "global_avg_pool2d";

/// The mean of every window. `count_include_pad`: the zeros of the padding count, as by default in
/// PyTorch.
///
/// # Shapes
///
/// `xs` (N, C, H, W) -> (N, C, OH, OW) with `OH = (H + 2 padding - kernel) / stride + 1`.
///
/// # Errors
///
/// If the configuration does not fit the input, or the dtype is no float.
pub fn avg_pool2d(xs: &Tensor, config: Pool2dConfig, count_include_pad: bool) -> Result<Tensor> {
    let windows = Windows::new(NAME, xs.shape(), config)?;
    fused::run(AvgPool2dOp { windows, count_include_pad }, windows.output_shape(), &[Some(xs)])
}

/// The mean of every channel.
///
/// # Shapes
///
/// `xs` (N, C, H, W) -> (N, C).
///
/// # Errors
///
/// If the images are empty, or the dtype is no float.
pub fn global_avg_pool2d(xs: &Tensor) -> Result<Tensor> {
    let [batch, channels, height, width] = sizes(GLOBAL, "input", xs.shape(), "(N, C, H, W)")?;
    if height * width == 0 {
        bail!("{GLOBAL}: empty images, input {:?}", xs.shape());
    }
    fused::run(GlobalAvgPool2d { plane: height * width }, (batch, channels), &[Some(xs)])
}

pub(super) struct AvgPool2dOp {
    pub(super) windows: Windows,
    pub(super) count_include_pad: bool,
}

impl FusedOp for AvgPool2dOp {
    const NAME: &'static str = NAME;

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let (in_plane, out_plane) = self.windows.plane_sizes();
        let (threads, xs) = (self.windows.worth_threads(), inputs[0]);
        in_parts(threads, (xs, in_plane), (ys, out_plane), |_, x, y| self.forward_plane(x, y));
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let Some(dxs) = pass.grads.take(0) else { return Ok(()) };
        let (in_plane, out_plane) = self.windows.plane_sizes();
        let (threads, dys) = (self.windows.worth_threads(), &*pass.dys);
        in_parts(threads, (dys, out_plane), (dxs, in_plane), |_, dy, dx| {
            self.backward_plane(dy, dx);
        });
        Ok(())
    }

    fn on_gpu(&self) -> Option<&dyn GpuKernels> {
        Some(self)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs)] = inputs else { unreachable!("one input") };
        let sums =
            unfold(&fused::widen(xs)?, self.windows.axes(), EdgeValues::Zeros)?.sum((2, 4))?;
        let (out_height, out_width) = self.windows.out_size;
        let counts = (0..out_height).flat_map(|oy| (0..out_width).map(move |ox| (oy, ox)));
        let counts = counts.map(|(oy, ox)| {
            let (rows, columns) = self.windows.window(oy, ox);
            self.count::<f64>(rows.len() * columns.len())
        });
        let counts = Tensor::from_iter(counts, xs.device())?.to_dtype(sums.dtype())?;
        sums.broadcast_div(&counts.reshape((out_height, out_width))?)?.to_dtype(xs.dtype())
    }
}

impl AvgPool2dOp {
    fn forward_plane<T: Float>(&self, x: &[T], y: &mut [T]) {
        let (in_width, out_width) = (self.windows.in_size.1, self.windows.out_size.1);
        for (index, y) in y.iter_mut().enumerate() {
            let (rows, cols) = self.windows.window(index / out_width, index % out_width);
            let count = self.count(rows.len() * cols.len());
            let mut sum = T::zero();
            for iy in rows {
                for &x in &x[iy * in_width..][cols.clone()] {
                    sum += x;
                }
            }
            *y = sum / count;
        }
    }

    /// Adds, because windows may overlap.
    fn backward_plane<T: Float>(&self, dy: &[T], dx: &mut [T]) {
        let (in_width, out_width) = (self.windows.in_size.1, self.windows.out_size.1);
        dx.fill(T::zero());
        for (index, &dy) in dy.iter().enumerate() {
            let (rows, cols) = self.windows.window(index / out_width, index % out_width);
            let share = dy / self.count(rows.len() * cols.len());
            for iy in rows {
                for dx in &mut dx[iy * in_width..][cols.clone()] {
                    *dx += share;
                }
            }
        }
    }

    fn count<T: Float>(&self, inside: usize) -> T {
        let (height, width) = self.windows.config.kernel;
        T::from_f64(if self.count_include_pad { height * width } else { inside } as f64)
    }
}

pub(super) struct GlobalAvgPool2d {
    pub(super) plane: usize,
}

impl FusedOp for GlobalAvgPool2d {
    const NAME: &'static str = GLOBAL;

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let (xs, count) = (inputs[0], T::from_f64(self.plane as f64));
        in_parts(worth_threads(xs.len()), (xs, self.plane), (ys, 1), |_, x, y| {
            let sum = simd(
                #[inline(always)]
                || sum(x),
            );
            y[0] = sum / count;
        });
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let Some(dxs) = pass.grads.take(0) else { return Ok(()) };
        let count = T::from_f64(self.plane as f64);
        for (dx, &dy) in dxs.chunks_mut(self.plane).zip(&*pass.dys) {
            dx.fill(dy / count);
        }
        Ok(())
    }

    fn on_gpu(&self) -> Option<&dyn GpuKernels> {
        Some(self)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs)] = inputs else { unreachable!("one input") };
        fused::widen(xs)?.mean((2, 3))?.to_dtype(xs.dtype())
    }
}
