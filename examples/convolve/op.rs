//! The convolution as an operation of candle: kernels of our own on a GPU, a loop on the CPU.
//!
//! candle calls `cuda_fwd` with its own memory on the GPU. A [`Gpu`] compiles the text of the kernels
//! at the first use, and enqueues them on candle's stream. So a kernel runs after the work that made
//! its input and before the work that uses its result, and nothing has to wait on the host.

use candelabrum::candle::{
    CpuStorage, CudaStorage, CustomOp1, Device, Layout, Result, Shape, bail,
};
use candelabrum::memory::cuda::{self, Gpu, KernelArg, Kernels, LaunchGrid};
use candelabrum::memory::simd::simd;
use rayon::prelude::*;

use crate::filters::Filters;

const KERNELS: Kernels = Kernels { name: "convolve", text: include_str!("../convolve.cu") };

/// The pixels of a tile along a side, as in convolve.cu.
const TILE: usize = 32;

/// The convolution of planes (N, 1, H, W) with F filters -> (N, F, H, W). There are zeros around the
/// planes, so the size stays.
pub(crate) struct Convolve {
    filters: Filters,
    /// Whether blocks of threads share the pixels of their tiles.
    tiled: bool,
    gpu: Option<Gpu>,
}

impl Convolve {
    pub(crate) fn new(filters: &Filters, tiled: bool, device: &Device) -> Result<Self> {
        let gpu = Gpu::from_device(device);
        if let Some(gpu) = &gpu {
            gpu.write_constant(KERNELS, "FILTERS", &filters.weights)?;
        }
        Ok(Self { filters: filters.clone(), tiled, gpu })
    }

    /// N, H and W, and the shape of the result.
    fn sizes(&self, planes: &Layout) -> Result<([usize; 3], Shape)> {
        let (count, _, height, width) = planes.shape().dims4()?;
        Ok(([count, height, width], (count, self.filters.count(), height, width).into()))
    }
}

impl CustomOp1 for Convolve {
    fn name(&self) -> &'static str {
        "convolve"
    }

    fn cuda_fwd(&self, xs: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let Some(gpu) = &self.gpu else { bail!("this operation was made for the CPU") };
        let ([count, height, width], shape) = self.sizes(layout)?;
        let (kernel, grid) = if self.tiled {
            let tiles = count * height.div_ceil(TILE) * width.div_ceil(TILE);
            ("tiled", LaunchGrid::by_share(tiles, 1))
        } else {
            ("untiled", LaunchGrid::for_each(count * height * width))
        };
        let mut ys = gpu.numbers(shape.elem_count())?;
        let mut span = ys.span_mut()?.cuda()?;
        let sizes = [self.filters.count(), self.filters.radius, height, width].map(KernelArg::from);
        let args = [cuda::span(xs, layout)?.into(), (&mut span).into()];
        gpu.launch(KERNELS, kernel, grid, &[&args[..], &sizes].concat())?;
        Ok((gpu.storage(ys)?, shape))
    }

    fn cpu_fwd(&self, xs: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let ([_, height, width], shape) = self.sizes(layout)?;
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("the planes do not lie one after the other")
        };
        let xs = &xs.as_slice::<f32>()?[start..end];
        let Filters { radius, weights } = &self.filters;
        let side = self.filters.side();
        let mut ys = vec![0.0; shape.elem_count()];
        ys.par_chunks_mut(width).enumerate().for_each(|(line, ys)| {
            let (image, y) = (line / height, line % height);
            let (plane, filter) = (image / self.filters.count(), image % self.filters.count());
            let weights = &weights[filter * side * side..][..side * side];
            for (dy, weights) in weights.chunks(side).enumerate() {
                let Some(row) = (y + dy).checked_sub(*radius).filter(|row| *row < height) else {
                    continue; // only zeros
                };
                let row = &xs[(plane * height + row) * width..][..width];
                simd(
                    #[inline(always)]
                    || add_row(ys, row, weights),
                );
            }
        });
        Ok((CpuStorage::F32(ys), shape))
    }
}

/// Adds what a row of pixels gives a row of results.
#[inline(always)]
fn add_row(ys: &mut [f32], row: &[f32], weights: &[f32]) {
    let (radius, width) = (weights.len() / 2, row.len());
    for (dx, weight) in weights.iter().enumerate() {
        // Result x gets pixel x + dx - radius.
        let (first, skipped) = (radius.saturating_sub(dx), dx.saturating_sub(radius));
        if first < width && skipped < width {
            for (y, x) in ys[first..].iter_mut().zip(&row[skipped..]) {
                *y += weight * x;
            }
        }
    }
}
