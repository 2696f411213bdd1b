//! Poolings on a GPU.

use candelabrum_memory::FlatTensor;
use candelabrum_memory::cuda::{KernelArg, Kernels, LaunchGrid};
use candle_core::{Result, bail};

use super::Windows;
use super::avg::{AvgPool2dOp, GlobalAvgPool2d};
use super::max::MaxPool2dOp;
use crate::autograd::fused::{GpuBackward, GpuForward, GpuKernels};
use crate::ops::gpu::launch::launch;

const KERNELS: Kernels = Kernels { name: "pool2d", text: include_str!("pool2d.cu") };

/// `PLANES` in pool2d.cu.
const PLANES: usize = 8;

/// Refuses more numbers than the kernels can count.
fn check_count(pass: &GpuForward<'_>) -> Result<()> {
    let count = pass.inputs[0].map_or(0, |xs| xs.len()).max(pass.ys.len());
    if count > i32::MAX as usize {
        bail!("pooling: {count} numbers, more than a kernel counts: pool a smaller batch")
    }
    Ok(())
}

/// The sizes of the windows along the height and the width, as arguments.
fn sizes(windows: &Windows) -> Vec<usize> {
    let sizes = windows.axes().into_iter().zip([windows.in_size.0, windows.in_size.1]);
    sizes
        .flat_map(|(axis, size)| [size, axis.out, axis.kernel, axis.stride, axis.padding])
        .collect()
}

/// The places of the maxima are saved as on the CPU: windows of 2 x 2 side by side save none.
impl GpuKernels for MaxPool2dOp {
    fn forward(&self, pass: GpuForward<'_>) -> Result<Option<FlatTensor>> {
        check_count(&pass)?;
        let GpuForward { gpu, inputs, mut ys } = pass;
        let (number, grid) = (ys.element_type(), LaunchGrid::for_each(ys.len()));
        let mut winners = (!self.is_two_by_two()).then(|| gpu.numbers(ys.len())).transpose()?;
        {
            let mut places = winners.as_mut().map(|it| it.span_mut()?.cuda()).transpose()?;
            let places = KernelArg::from(places.as_mut());
            launch!(gpu, number, KERNELS, "max_pool", grid; &mut ys, places, inputs[0], ..sizes(&self.windows))?;
        }
        Ok(winners)
    }

    fn backward(&self, pass: GpuBackward<'_>) -> Result<()> {
        let GpuBackward { gpu, inputs, saved, dys, mut grads, .. } = pass;
        let Some(mut dxs) = grads[0].take() else { return Ok(()) };
        let (number, grid, dys) =
            (dxs.element_type(), LaunchGrid::for_each(dxs.len()), dys.as_numbers());
        let sizes = sizes(&self.windows);
        launch!(gpu, number, KERNELS, "max_pool_back", grid; &mut dxs, dys, saved, inputs[0], ..sizes)
    }
}

impl GpuKernels for AvgPool2dOp {
    fn forward(&self, pass: GpuForward<'_>) -> Result<Option<FlatTensor>> {
        check_count(&pass)?;
        let GpuForward { gpu, inputs, mut ys } = pass;
        let (number, grid) = (ys.element_type(), LaunchGrid::for_each(ys.len()));
        let (whole, sizes) = (usize::from(self.count_include_pad), sizes(&self.windows));
        launch!(gpu, number, KERNELS, "avg_pool", grid; &mut ys, inputs[0], whole, ..sizes)?;
        Ok(None)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        let Some(mut dxs) = pass.grads[0].take() else { return Ok(()) };
        let (number, grid, dys) =
            (dxs.element_type(), LaunchGrid::for_each(dxs.len()), pass.dys.as_numbers());
        let (whole, sizes) = (usize::from(self.count_include_pad), sizes(&self.windows));
        launch!(pass.gpu, number, KERNELS, "avg_pool_back", grid; &mut dxs, dys, whole, ..sizes)
    }
}

impl GpuKernels for GlobalAvgPool2d {
    fn forward(&self, pass: GpuForward<'_>) -> Result<Option<FlatTensor>> {
        check_count(&pass)?;
        let GpuForward { gpu, inputs, mut ys } = pass;
        let (number, grid) = (ys.element_type(), LaunchGrid::by_share(ys.len(), PLANES));
        launch!(gpu, number, KERNELS, "means", grid; &mut ys, inputs[0], self.plane)?;
        Ok(None)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        let Some(mut dxs) = pass.grads[0].take() else { return Ok(()) };
        let (number, grid, dys) =
            (dxs.element_type(), LaunchGrid::for_each(dxs.len()), pass.dys.as_numbers());
        launch!(pass.gpu, number, KERNELS, "means_back", grid; &mut dxs, dys, self.plane)
    }
}
