//! The product of two tensors of one shape on a GPU, element by element.

use candelabrum_memory::Flat;
use candelabrum_memory::cuda::{CudaNumbers, CudaNumbersMut, Gpu, Kernels};
use candle_core::{Result, bail};

use super::packs::Packs;
use crate::autograd::fused::{GpuBackward, OnGpu};
use crate::ops::mul::Mul;

const KERNELS: Kernels =
    Kernels { name: "mul", text: concat!(include_str!("packs.cu"), include_str!("mul.cu")) };

/// `zs = xs * ys`.
fn multiply(
    gpu: &Gpu,
    mut zs: CudaNumbersMut<'_>,
    xs: CudaNumbers<'_>,
    ys: Option<CudaNumbers<'_>>,
) -> Result<()> {
    let Some(ys) = ys else { bail!("mul: an input is missing, this is a bug") };
    let (number, len) = (zs.element_type(), zs.len());
    let packs = Packs::of(&[zs.as_numbers(), xs, ys].map(Some), &[len]);
    let args = [(&mut zs).into(), xs.into(), ys.into(), packs.into()];
    Ok(gpu.launch_for(number, KERNELS, "multiply", packs.grid(len), &args)?)
}

impl OnGpu for Mul {
    fn forward(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaNumbers<'_>>],
        zs: CudaNumbersMut<'_>,
    ) -> Result<Option<Flat>> {
        let &[Some(xs), ys] = inputs else { bail!("mul: an input is missing, this is a bug") };
        multiply(gpu, zs, xs, ys)?;
        Ok(None)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        for operand in 0..2 {
            if let Some(gradient) = pass.grads[operand].take() {
                multiply(pass.gpu, gradient, pass.dys.as_numbers(), pass.inputs[1 - operand])?;
            }
        }
        Ok(())
    }
}
