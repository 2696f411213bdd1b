//! Dropout on a GPU.

use candelabrum_memory::FlatTensor;
use candelabrum_memory::cuda::{CudaNumbers, CudaNumbersMut, Gpu, Kernels, LaunchGrid};
use candle_core::Result;

use super::DropoutOp;
use crate::autograd::fused::{GpuBackward, GpuForward, GpuKernels};
use crate::noise;
use crate::ops::gpu::launch::launch;

const KERNELS: Kernels = Kernels { name: "dropout", text: include_str!("dropout.cu") };

impl DropoutOp {
    fn launch(
        &self,
        gpu: &Gpu,
        ys: &mut CudaNumbersMut<'_>,
        xs: Option<CudaNumbers<'_>>,
    ) -> Result<()> {
        let (number, grid) = (ys.element_type(), LaunchGrid::for_each(ys.len()));
        let (key, threshold, scale) = (self.key(), self.threshold(), self.scale() as f32);
        noise::with_key(
            self.seed,
            |stored| launch!(gpu, number, KERNELS, "dropout", grid; ys, xs, stored, key, threshold, scale),
        )
    }
}

impl GpuKernels for DropoutOp {
    fn forward(&self, mut pass: GpuForward<'_>) -> Result<Option<FlatTensor>> {
        self.launch(pass.gpu, &mut pass.ys, pass.inputs[0])?;
        Ok(None)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        let Some(mut dxs) = pass.grads[0].take() else { return Ok(()) };
        self.launch(pass.gpu, &mut dxs, Some(pass.dys.as_numbers()))
    }
}
