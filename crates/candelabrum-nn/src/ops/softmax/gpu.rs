//! Softmax and its logarithm on a GPU.

use candelabrum_memory::FlatTensor;
use candelabrum_memory::cuda::Kernels;
use candle_core::Result;

use super::SoftmaxOp;
use crate::autograd::fused::{GpuBackward, GpuForward, GpuKernels};
use crate::ops::gpu::launch::launch;
use crate::ops::gpu::rows::GpuRows;

const KERNELS: Kernels = Kernels {
    name: "softmax",
    text: concat!(include_str!("../gpu/rows.cu"), include_str!("softmax.cu")),
};

impl<const LOG: bool> GpuKernels for SoftmaxOp<LOG> {
    fn forward(&self, pass: GpuForward<'_>) -> Result<Option<FlatTensor>> {
        let GpuForward { gpu, inputs, mut ys } = pass;
        let rows = GpuRows::new(ys.len() / self.classes.max(1), self.classes);
        let sizes = [self.classes, usize::from(LOG), rows.width];
        launch!(gpu, ys.element_type(), KERNELS, "softmax", rows.grid; &mut ys, inputs[0], ..sizes)?;
        Ok(None)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        let Some(mut dxs) = pass.grads[0].take() else { return Ok(()) };
        let (number, dys, ys) = (dxs.element_type(), pass.dys.as_numbers(), pass.ys);
        let rows = GpuRows::new(dxs.len() / self.classes.max(1), self.classes);
        let sizes = [self.classes, usize::from(LOG), rows.width];
        launch!(pass.gpu, number, KERNELS, "softmax_gradient", rows.grid; &mut dxs, dys, ys, ..sizes)
    }
}
