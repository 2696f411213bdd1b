//! The product of two tensors of one shape on a GPU, element by element.

use candelabrum_memory::FlatTensor;
use candelabrum_memory::cuda::{CudaNumbers, CudaNumbersMut, Gpu, Kernels};
use candle_core::Result;

use super::MulOperation;
use crate::autograd::fused::{GpuBackward, GpuForward, GpuKernels};
use crate::ops::gpu::launch::launch;
use crate::ops::gpu::packs::PackWidth;

const KERNELS: Kernels =
    Kernels { name: "mul", text: concat!(include_str!("../gpu/packs.cu"), include_str!("mul.cu")) };

/// `zs = xs * ys`.
fn multiply(
    gpu: &Gpu,
    mut zs: CudaNumbersMut<'_>,
    xs: Option<CudaNumbers<'_>>,
    ys: Option<CudaNumbers<'_>>,
) -> Result<()> {
    let (number, len) = (zs.element_type(), zs.len());
    let packs = PackWidth::new(&[Some(zs.as_numbers()), xs, ys], &[len]);
    launch!(gpu, number, KERNELS, "multiply", packs.grid(len); &mut zs, xs, ys, packs)
}

impl GpuKernels for MulOperation {
    fn forward(&self, pass: GpuForward<'_>) -> Result<Option<FlatTensor>> {
        multiply(pass.gpu, pass.ys, pass.inputs[0], pass.inputs[1])?;
        Ok(None)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        for operand in 0..2 {
            if let Some(gradient) = pass.grads[operand].take() {
                multiply(
                    pass.gpu,
                    gradient,
                    Some(pass.dys.as_numbers()),
                    pass.inputs[1 - operand],
                )?;
            }
        }
        Ok(())
    }
}
