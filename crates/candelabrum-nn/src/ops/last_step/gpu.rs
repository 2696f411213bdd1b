//! The last time step on a GPU.

use candelabrum_memory::FlatTensor;
use candelabrum_memory::cuda::{Kernels, LaunchGrid};
use candle_core::Result;

use super::LastStep;
use crate::autograd::fused::{GpuBackward, GpuForward, GpuKernels};
use crate::ops::gpu::launch::launch;

const KERNELS: Kernels = Kernels { name: "last_step", text: include_str!("last_step.cu") };

impl GpuKernels for LastStep {
    fn forward(&self, pass: GpuForward<'_>) -> Result<Option<FlatTensor>> {
        let GpuForward { gpu, inputs, mut ys } = pass;
        let (number, grid, &Self { steps, width }) =
            (ys.element_type(), LaunchGrid::for_each(ys.len()), self);
        launch!(gpu, number, KERNELS, "last_step", grid; &mut ys, inputs[0], steps, width)?;
        Ok(None)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        let Some(mut dxs) = pass.grads[0].take() else { return Ok(()) };
        let (number, grid, dys) =
            (dxs.element_type(), LaunchGrid::for_each(dxs.len()), pass.dys.as_numbers());
        launch!(pass.gpu, number, KERNELS, "last_step_gradient", grid; &mut dxs, dys, self.steps, self.width)
    }
}
