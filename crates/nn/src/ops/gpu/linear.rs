//! The fully connected layer on a GPU: cuBLAS for the products, a kernel for bias and activation.

use candelabrum_memory::Flat;
use candelabrum_memory::cuda::{CudaNumbers, CudaNumbersMut, Gpu, Matrix};
use candle_core::{Result, bail};

use super::activations::{activate, differentiate};
use super::columns::sum_rows;
use crate::Activation;
use crate::ops::fused::{GpuBackward, OnGpu};
use crate::ops::linear::Linear;

impl OnGpu for Linear {
    fn forward(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaNumbers<'_>>],
        mut ys: CudaNumbersMut<'_>,
    ) -> Result<Option<Flat>> {
        let &[Some(xs), Some(weight), bias] = inputs else { bail!("linear: an input is missing") };
        let rows = ys.len() / self.outputs;
        let xs = Matrix { values: xs, size: (rows, self.inputs), transposed: false };
        let weight = Matrix { values: weight, size: (self.outputs, self.inputs), transposed: true };
        gpu.matmul(ys.reborrow(), false, xs, weight)?;
        if self.activation.is_none() && bias.is_none() {
            return Ok(None);
        }
        if !self.activation.is_some_and(Activation::needs_input) {
            activate(gpu, &mut ys, None, bias, self.activation)?;
            return Ok(None);
        }
        if bias.is_some() {
            activate(gpu, &mut ys, None, bias, None)?;
        }
        let saved = ys.as_numbers().to_flat()?;
        activate(gpu, &mut ys, None, None, self.activation)?;
        Ok(Some(saved))
    }

    fn backward(&self, pass: GpuBackward<'_>) -> Result<()> {
        let GpuBackward { gpu, inputs, ys, saved, mut dys, mut grads } = pass;
        let &[Some(xs), Some(weight), _] = inputs else { bail!("linear: an input is missing") };
        if let Some(activation) = self.activation {
            let reference = if activation.needs_input() { saved } else { ys };
            differentiate(gpu, &mut dys, None, reference, activation)?;
        }
        let rows = dys.len() / self.outputs;
        let dz = Matrix { values: dys.as_numbers(), size: (rows, self.outputs), transposed: false };
        if let Some(dx) = grads[0].take() {
            let size = (self.outputs, self.inputs);
            gpu.matmul(dx, false, dz, Matrix { values: weight, size, transposed: false })?;
        }
        if let Some(dw) = grads[1].take() {
            let xs = Matrix { values: xs, size: (rows, self.inputs), transposed: false };
            gpu.matmul(dw, false, Matrix { transposed: true, ..dz }, xs)?;
        }
        if let Some(db) = grads[2].take() {
            sum_rows(gpu, db, dz.values)?;
        }
        Ok(())
    }

    fn has_wide_gradient(&self, input: usize) -> bool {
        input > 0
    }
}
