//! The fully connected layer on a GPU. In the forward, cuBLASLt computes the product and the bias in one call
//! where it can. Otherwise, and where an activation follows, cuBLAS computes the product, and a kernel the rest.
//!
//! In the backward the bias's gradient has kernels of its own. cuBLASLt has an epilogue for it
//! (`CUBLASLT_EPILOGUE_BGRADB`), but NVIDIA does not document the order of its additions. The gradient
//! must have the same bits in every run and on every rank, whichever algorithm cuBLASLt chooses.

use candelabrum_memory::FlatTensor;
use candelabrum_memory::cuda::{CudaMatrix, CudaNumbers, CudaNumbersMut, Gpu};
use candle_core::Result;

use super::LinearOp;
use crate::Activation;
use crate::autograd::fused::{GpuBackward, GpuForward, GpuKernels};
use crate::ops::activations::gpu::{activate, differentiate_result};
use crate::ops::gpu::columns::sum_rows;

impl GpuKernels for LinearOp {
    fn forward(&self, pass: GpuForward<'_>) -> Result<Option<FlatTensor>> {
        let GpuForward { gpu, inputs, mut ys } = pass;
        let &[Some(xs), Some(weight), bias] = inputs else { unreachable!("three inputs") };
        let rows = ys.len() / self.outputs;
        let xs = CudaMatrix { values: xs, size: (rows, self.inputs), transposed: false };
        let weight =
            CudaMatrix { values: weight, size: (self.outputs, self.inputs), transposed: true };
        let Some(activation) = self.activation.filter(|activation| activation.needs_input()) else {
            affine(gpu, ys, xs, weight, bias, self.activation)?;
            return Ok(None);
        };
        let mut saved = gpu.numbers_of(ys.element_type(), ys.len())?;
        affine(gpu, saved.cuda_numbers_mut()?, xs, weight, bias, None)?;
        activate(gpu, &mut ys, Some(saved.cuda_numbers()?), None, Some(activation))?;
        Ok(Some(saved))
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        differentiate_result(&mut pass, self.activation)?;
        let GpuBackward { gpu, inputs, dys, mut grads, .. } = pass;
        let missing = || candle_core::Error::msg("linear: an input is missing");
        let rows = dys.len() / self.outputs;
        let dz =
            CudaMatrix { values: dys.as_numbers(), size: (rows, self.outputs), transposed: false };
        if let Some(dx) = grads[0].take() {
            let (values, size) = (inputs[1].ok_or_else(missing)?, (self.outputs, self.inputs));
            gpu.matmul(dx, false, dz, CudaMatrix { values, size, transposed: false })?;
        }
        if let Some(dw) = grads[1].take() {
            let (values, size) = (inputs[0].ok_or_else(missing)?, (rows, self.inputs));
            let xs = CudaMatrix { values, size, transposed: false };
            gpu.matmul(dw, false, CudaMatrix { transposed: true, ..dz }, xs)?;
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

/// `ys = activation(xs weight + bias)`.
fn affine(
    gpu: &Gpu,
    mut ys: CudaNumbersMut<'_>,
    xs: CudaMatrix<'_>,
    weight: CudaMatrix<'_>,
    bias: Option<CudaNumbers<'_>>,
    activation: Option<Activation>,
) -> Result<()> {
    if let (Some(bias), None) = (bias, activation)
        && gpu.affine(ys.reborrow(), xs, weight, bias)?
    {
        return Ok(());
    }
    gpu.matmul(ys.reborrow(), false, xs, weight)?;
    if bias.is_none() && activation.is_none() {
        return Ok(());
    }
    activate(gpu, &mut ys, None, bias.map(|bias| (bias, 1)), activation)
}
