//! The transposed convolution on a GPU: cuDNN's convolution in the other direction.

use candelabrum_memory::Flat;
use candelabrum_memory::cuda::{CudaNumbers, CudaNumbersMut, Gpu};
use candle_core::{Result, bail};

use super::activations::{differentiate, finish_images};
use super::channels::Channels;
use crate::Activation;
use crate::autograd::fused::{GpuBackward, OnGpu};
use crate::ops::conv_transpose2d::ConvTranspose2dOp;

impl OnGpu for ConvTranspose2dOp {
    fn forward(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaNumbers<'_>>],
        mut ys: CudaNumbersMut<'_>,
    ) -> Result<Option<Flat>> {
        let &[Some(xs), Some(weight), bias] = inputs else {
            bail!("conv_transpose2d: an input is missing, this is a bug")
        };
        gpu.convolve_back_to_input(&self.conv.sizes(), ys.reborrow(), weight, xs)?;
        finish_images(gpu, ys, bias, self.plane(), self.activation)
    }

    fn backward(&self, pass: GpuBackward<'_>) -> Result<()> {
        let GpuBackward { gpu, inputs, ys, saved, mut dys, mut grads } = pass;
        let &[Some(xs), Some(weight), _] = inputs else {
            bail!("conv_transpose2d: an input is missing, this is a bug")
        };
        if let Some(activation) = self.activation {
            let reference = if Activation::needs_input(activation) { saved } else { ys };
            differentiate(gpu, &mut dys, None, reference, activation)?;
        }
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
