//! The windows of all 2-d poolings.

pub(super) mod adaptive_avg;
pub(super) mod avg;
mod gpu;
pub(super) mod max;

use std::ops::Range;

use candle_core::{Result, Shape, bail};

use super::sizes::sizes;
use super::unfold::WindowAxis;
use crate::kernels::parallel;

/// The windows of a pooling, each pair as (height, width).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pool2dConfig {
    /// The size of a window.
    pub kernel: (usize, usize),
    /// The step between two windows.
    pub stride: (usize, usize),
    /// The padding on each side, at most half of the kernel.
    pub padding: (usize, usize),
}

impl Pool2dConfig {
    /// Square windows side by side: stride = kernel, no padding.
    #[must_use]
    pub fn square(kernel: usize) -> Self {
        Self { kernel: (kernel, kernel), stride: (kernel, kernel), padding: (0, 0) }
    }
}

/// A configuration that has been checked against an input, and the sizes that result.
#[derive(Debug, Clone, Copy)]
pub(super) struct Windows {
    batch: usize,
    channels: usize,
    pub(super) in_size: (usize, usize),
    pub(super) out_size: (usize, usize),
    pub(super) config: Pool2dConfig,
}

impl Windows {
    /// # Errors
    /// If the configuration does not fit the input. The error names `op`.
    pub(super) fn new(op: &str, xs: &Shape, config: Pool2dConfig) -> Result<Self> {
        let [batch, channels, height, width] = sizes(op, "input", xs, "(N, C, H, W)")?;
        let Pool2dConfig { kernel, stride, padding } = config;
        if [kernel.0, kernel.1, stride.0, stride.1].contains(&0) {
            bail!("{op}: kernel and stride must be positive, got {config:?}");
        }
        if padding.0 > kernel.0 / 2 || padding.1 > kernel.1 / 2 {
            bail!("{op}: padding must be at most half of the kernel, got {config:?}");
        }
        let out = |size: usize, kernel: usize, stride: usize, padding: usize| {
            let padded = padding.checked_mul(2)?.checked_add(size)?;
            padded.checked_sub(kernel).map(|rest| rest / stride + 1)
        };
        let (Some(out_height), Some(out_width)) =
            (out(height, kernel.0, stride.0, padding.0), out(width, kernel.1, stride.1, padding.1))
        else {
            bail!("{op}: kernel {kernel:?} is larger than the padded input {xs:?}");
        };
        if height == 0 || width == 0 {
            bail!("{op}: empty images, input {xs:?}");
        }
        let (in_size, out_size) = ((height, width), (out_height, out_width));
        Ok(Self { batch, channels, in_size, out_size, config })
    }

    pub(super) fn output_shape(&self) -> (usize, usize, usize, usize) {
        (self.batch, self.channels, self.out_size.0, self.out_size.1)
    }

    /// The numbers of elements of one channel of one image, before and after pooling.
    pub(super) fn plane_sizes(&self) -> (usize, usize) {
        (self.in_size.0 * self.in_size.1, self.out_size.0 * self.out_size.1)
    }

    /// The number of elements of a channel with its padding.
    pub(super) fn padded_plane(&self) -> usize {
        let ((height, width), padding) = (self.in_size, self.config.padding);
        (height + 2 * padding.0).saturating_mul(width + 2 * padding.1)
    }

    pub(super) fn worth_threads(&self) -> bool {
        parallel::worth_threads(self.batch * self.channels * self.plane_sizes().0)
    }

    /// The windows along the height and the width.
    pub(super) fn axes(&self) -> [WindowAxis; 2] {
        let Pool2dConfig { kernel, stride, padding } = self.config;
        let axis =
            |out, kernel, stride, padding| WindowAxis { out, kernel, stride, dilation: 1, padding };
        [
            axis(self.out_size.0, kernel.0, stride.0, padding.0),
            axis(self.out_size.1, kernel.1, stride.1, padding.1),
        ]
    }

    /// The rows and columns of a window inside the image. They are never empty, because the padding
    /// is at most half of the kernel.
    pub(super) fn window(&self, oy: usize, ox: usize) -> (Range<usize>, Range<usize>) {
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
