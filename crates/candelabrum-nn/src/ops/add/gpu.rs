//! The sum of two tensors of one shape on a GPU.

use candelabrum_memory::FlatTensor;
use candle_core::Result;

use super::AddOperation;
use crate::autograd::fused::{GpuBackward, GpuForward, GpuKernels};
use crate::ops::activations::gpu::{add, differentiate_result};

impl GpuKernels for AddOperation {
    fn forward(&self, pass: GpuForward<'_>) -> Result<Option<FlatTensor>> {
        add(pass.gpu, pass.ys, pass.inputs[0], pass.inputs[1], self.activation)?;
        Ok(None)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        differentiate_result(&mut pass, self.activation)?;
        for mut gradient in pass.grads.iter_mut().filter_map(Option::take) {
            gradient.copy_from(pass.dys.as_numbers())?;
        }
        Ok(())
    }
}
