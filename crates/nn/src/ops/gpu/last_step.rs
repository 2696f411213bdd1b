//! The last time step on a GPU.

use candelabrum_memory::Flat;
use candelabrum_memory::cuda::{CudaSpan, CudaSpanMut, Gpu, Grid, Kernels};
use candle_core::Result;

use crate::ops::fused::{GpuBackward, OnGpu};
use crate::ops::last_step::LastStep;

const KERNELS: Kernels = Kernels { name: "last_step", text: include_str!("last_step.cu") };

impl OnGpu for LastStep {
    fn forward(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaSpan<'_>>],
        mut ys: CudaSpanMut<'_>,
    ) -> Result<Option<Flat>> {
        let grid = Grid::for_each(ys.len());
        let args = [(&mut ys).into(), inputs[0].into(), self.steps.into(), self.width.into()];
        gpu.launch(KERNELS, "last_step", grid, &args)?;
        Ok(None)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        let Some(mut dxs) = pass.grads[0].take() else { return Ok(()) };
        let grid = Grid::for_each(dxs.len());
        let numbers = [(&mut dxs).into(), pass.dys.as_span().into()];
        let args = [&numbers[..], &[self.steps.into(), self.width.into()]].concat();
        Ok(pass.gpu.launch(KERNELS, "last_step_gradient", grid, &args)?)
    }
}
