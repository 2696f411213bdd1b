//! The convolution on a GPU: cuDNN for the products, kernels for bias and activation.

use candelabrum_memory::{Convolution, FlatTensor};
use candle_core::Result;

use super::Conv2dOp;
use crate::autograd::fused::{GpuBackward, GpuForward, GpuKernels};
use crate::ops::activations::gpu::{differentiate_result, finish_images};
use crate::ops::gpu::channels::Channels;

impl Conv2dOp {
    /// The sizes for cuDNN.
    pub(crate) fn sizes(&self) -> Convolution {
        let geometry = &self.geometry;
        Convolution {
            batch: geometry.batch,
            in_channels: geometry.in_channels,
            out_channels: geometry.out_channels,
            groups: geometry.groups,
            in_size: geometry.in_size,
            out_size: geometry.out_size,
            kernel: geometry.kernel,
            stride: geometry.stride,
            padding: geometry.padding,
            dilation: geometry.dilation,
        }
    }
}

impl GpuKernels for Conv2dOp {
    fn forward(&self, pass: GpuForward<'_>) -> Result<Option<FlatTensor>> {
        let GpuForward { gpu, inputs, mut ys } = pass;
        let &[Some(xs), Some(weight), bias] = inputs else { unreachable!("three inputs") };
        gpu.convolve(&self.sizes(), ys.reborrow(), xs, weight)?;
        finish_images(gpu, ys, bias, self.geometry.out_pixels(), self.activation)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        differentiate_result(&mut pass, self.activation)?;
        let GpuBackward { gpu, inputs, dys, mut grads, .. } = pass;
        let &[Some(xs), Some(weight), _] = inputs else { unreachable!("three inputs") };
        let (sizes, dzs) = (self.sizes(), dys.as_numbers());
        if let Some(dxs) = grads[0].take() {
            gpu.convolve_back_to_input(&sizes, dxs, weight, dzs)?;
        }
        if let Some(dw) = grads[1].take() {
            gpu.convolve_back_to_weight(&sizes, dw, xs, dzs)?;
        }
        if let Some(db) = grads[2].take() {
            let (batch, channels) = (sizes.batch, sizes.out_channels);
            let channels = Channels { batch, channels, plane: self.geometry.out_pixels() };
            channels.sums(gpu, db, dzs)?;
        }
        Ok(())
    }

    fn has_wide_gradient(&self, input: usize) -> bool {
        input == 2
    }
}
