//! The transposed convolution on a GPU: cuDNN's convolution in the other direction.

use candelabrum_memory::FlatTensor;
use candle_core::Result;

use super::ConvTranspose2dOp;
use crate::autograd::fused::{GpuBackward, GpuForward, GpuKernels};
use crate::ops::activations::gpu::{differentiate_result, finish_images};
use crate::ops::gpu::channels::Channels;

impl GpuKernels for ConvTranspose2dOp {
    fn forward(&self, pass: GpuForward<'_>) -> Result<Option<FlatTensor>> {
        let GpuForward { gpu, inputs, mut ys } = pass;
        let &[Some(xs), Some(weight), bias] = inputs else { unreachable!("three inputs") };
        gpu.convolve_back_to_input(&self.conv.sizes(), ys.reborrow(), weight, xs)?;
        finish_images(gpu, ys, bias, self.plane(), self.activation)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        differentiate_result(&mut pass, self.activation)?;
        let GpuBackward { gpu, inputs, dys, mut grads, .. } = pass;
        let &[Some(xs), Some(weight), _] = inputs else { unreachable!("three inputs") };
        let (sizes, dzs) = (self.conv.sizes(), dys.as_numbers());
        if let Some(dxs) = grads[0].take() {
            gpu.convolve(&sizes, dxs, dzs, weight)?;
        }
        if let Some(dw) = grads[1].take() {
            gpu.convolve_back_to_weight(&sizes, dw, dzs, xs)?;
        }
        if let Some(db) = grads[2].take() {
            let (batch, channels) = (sizes.batch, sizes.in_channels);
            Channels { batch, channels, plane: self.plane() }.sums(gpu, db, dzs)?;
        }
        Ok(())
    }

    fn has_wide_gradient(&self, input: usize) -> bool {
        input == 2
    }
}
