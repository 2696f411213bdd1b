//! The last time step on a GPU.

use candelabrum_memory::Flat;
use candelabrum_memory::cuda::{CudaNumbers, CudaNumbersMut, Gpu, Grid, Kernels};
use candle_core::Result;

use crate::autograd::fused::{GpuBackward, OnGpu};
use crate::ops::last_step::LastStep;

const KERNELS: Kernels = Kernels { name: "last_step", text: include_str!("last_step.cu") };

impl OnGpu for LastStep {
    fn forward(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaNumbers<'_>>],
        mut ys: CudaNumbersMut<'_>,
    ) -> Result<Option<Flat>> {
        let (number, grid) = (ys.element_type(), Grid::for_each(ys.len()));
        let args = [(&mut ys).into(), inputs[0].into(), self.steps.into(), self.width.into()];
        gpu.launch_for(number, KERNELS, "last_step", grid, &args)?;
        Ok(None)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        let Some(mut dxs) = pass.grads[0].take() else { return Ok(()) };
        let (number, grid) = (dxs.element_type(), Grid::for_each(dxs.len()));
        let numbers = [(&mut dxs).into(), pass.dys.as_numbers().into()];
        let args = [&numbers[..], &[self.steps.into(), self.width.into()]].concat();
        Ok(pass.gpu.launch_for(number, KERNELS, "last_step_gradient", grid, &args)?)
    }
}
