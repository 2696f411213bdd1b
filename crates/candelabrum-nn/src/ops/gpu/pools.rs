//! Poolings on a GPU.

use candelabrum_memory::Flat;
use candelabrum_memory::cuda::{Arg, CudaNumbers, CudaNumbersMut, Gpu, Grid, Kernels};
use candle_core::{Result, bail};

use crate::autograd::fused::{GpuBackward, OnGpu};
use crate::ops::avg_pool2d::{AvgPool2dOp, GlobalAvgPool2d};
use crate::ops::max_pool2d::MaxPool2dOp;
use crate::ops::pool2d::Windows;

const KERNELS: Kernels = Kernels { name: "pools", text: include_str!("pools.cu") };

/// `PLANES` in pools.cu.
const PLANES: usize = 8;

/// Refuses more numbers than the kernels can count.
fn check_count(xs: Option<CudaNumbers<'_>>, ys: &CudaNumbersMut<'_>) -> Result<()> {
    let count = xs.map_or(0, |xs| xs.len()).max(ys.len());
    if count > i32::MAX as usize {
        bail!("pooling: {count} numbers, more than a kernel counts: pool a smaller batch")
    }
    Ok(())
}

/// The arguments `first`, and then the sizes of the windows along the height and the width.
fn with_sizes<'a>(first: &[Arg<'a>], windows: &Windows) -> Vec<Arg<'a>> {
    let sizes = windows.axes().into_iter().zip([windows.in_size.0, windows.in_size.1]);
    let sizes = sizes
        .flat_map(|(axis, size)| [size, axis.out, axis.kernel, axis.stride, axis.padding])
        .map(Arg::from);
    first.iter().copied().chain(sizes).collect()
}

/// The places of the maxima are saved as on the CPU: windows of 2 x 2 side by side save none.
impl OnGpu for MaxPool2dOp {
    fn forward(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaNumbers<'_>>],
        mut ys: CudaNumbersMut<'_>,
    ) -> Result<Option<Flat>> {
        check_count(inputs[0], &ys)?;
        let (number, grid) = (ys.element_type(), Grid::for_each(ys.len()));
        if self.is_two_by_two() {
            let args = [(&mut ys).into(), Arg::from(None::<CudaNumbers<'_>>), inputs[0].into()];
            gpu.launch_for(number, KERNELS, "max_pool", grid, &with_sizes(&args, &self.windows))?;
            return Ok(None);
        }
        let mut winners = gpu.numbers(ys.len())?;
        {
            let mut winners = winners.span_mut()?.cuda()?;
            let args = [(&mut ys).into(), (&mut winners).into(), inputs[0].into()];
            gpu.launch_for(number, KERNELS, "max_pool", grid, &with_sizes(&args, &self.windows))?;
        }
        Ok(Some(winners))
    }

    fn backward(&self, pass: GpuBackward<'_>) -> Result<()> {
        let GpuBackward { gpu, inputs, saved, dys, mut grads, .. } = pass;
        let Some(mut dxs) = grads[0].take() else { return Ok(()) };
        let (number, grid) = (dxs.element_type(), Grid::for_each(dxs.len()));
        let args = [(&mut dxs).into(), dys.as_numbers().into(), saved.into(), inputs[0].into()];
        Ok(gpu.launch_for(
            number,
            KERNELS,
            "max_pool_back",
            grid,
            &with_sizes(&args, &self.windows),
        )?)
    }
}

impl OnGpu for AvgPool2dOp {
    fn forward(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaNumbers<'_>>],
        mut ys: CudaNumbersMut<'_>,
    ) -> Result<Option<Flat>> {
        check_count(inputs[0], &ys)?;
        let (number, grid) = (ys.element_type(), Grid::for_each(ys.len()));
        let whole = usize::from(self.count_include_pad);
        let args = [(&mut ys).into(), inputs[0].into(), whole.into()];
        gpu.launch_for(number, KERNELS, "avg_pool", grid, &with_sizes(&args, &self.windows))?;
        Ok(None)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        let Some(mut dxs) = pass.grads[0].take() else { return Ok(()) };
        let (number, grid) = (dxs.element_type(), Grid::for_each(dxs.len()));
        let whole = usize::from(self.count_include_pad);
        let args = [(&mut dxs).into(), pass.dys.as_numbers().into(), whole.into()];
        let args = with_sizes(&args, &self.windows);
        Ok(pass.gpu.launch_for(number, KERNELS, "avg_pool_back", grid, &args)?)
    }
}

impl OnGpu for GlobalAvgPool2d {
    fn forward(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaNumbers<'_>>],
        mut ys: CudaNumbersMut<'_>,
    ) -> Result<Option<Flat>> {
        check_count(inputs[0], &ys)?;
        let (number, grid) = (ys.element_type(), Grid::by_share(ys.len(), PLANES));
        let args = [(&mut ys).into(), inputs[0].into(), self.plane.into()];
        gpu.launch_for(number, KERNELS, "means", grid, &args)?;
        Ok(None)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        let Some(mut dxs) = pass.grads[0].take() else { return Ok(()) };
        let (number, grid) = (dxs.element_type(), Grid::for_each(dxs.len()));
        let args = [(&mut dxs).into(), pass.dys.as_numbers().into(), self.plane.into()];
        Ok(pass.gpu.launch_for(number, KERNELS, "means_back", grid, &args)?)
    }
}
