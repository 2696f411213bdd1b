//! The convolution on a GPU: cuDNN for the products, kernels for bias and activation.

use candelabrum_memory::cuda::{CudaNumbers, CudaNumbersMut, Gpu};
use candelabrum_memory::{Convolution, Flat};
use candle_core::{Result, bail};

use super::activations::{differentiate, finish_images};
use super::channels::Channels;
use crate::Activation;
use crate::autograd::fused::{GpuBackward, OnGpu};
use crate::ops::conv2d::Conv2dOp;

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

impl OnGpu for Conv2dOp {
    fn forward(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaNumbers<'_>>],
        mut ys: CudaNumbersMut<'_>,
    ) -> Result<Option<Flat>> {
        let &[Some(xs), Some(weight), bias] = inputs else {
            bail!("conv2d: an input is missing, this is a bug")
        };
        gpu.convolve(&self.sizes(), ys.reborrow(), xs, weight)?;
        finish_images(gpu, ys, bias, self.geometry.out_pixels(), self.activation)
    }

    fn backward(&self, pass: GpuBackward<'_>) -> Result<()> {
        let GpuBackward { gpu, inputs, ys, saved, mut dys, mut grads } = pass;
        let &[Some(xs), Some(weight), _] = inputs else {
            bail!("conv2d: an input is missing, this is a bug")
        };
        if let Some(activation) = self.activation {
            let reference = if Activation::needs_input(activation) { saved } else { ys };
            differentiate(gpu, &mut dys, None, reference, activation)?;
        }
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
