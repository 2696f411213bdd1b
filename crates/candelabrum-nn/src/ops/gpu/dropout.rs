//! Dropout on a GPU.

use candelabrum_memory::Flat;
use candelabrum_memory::cuda::{CudaNumbers, CudaNumbersMut, Gpu, Grid, Kernels};
use candle_core::Result;

use crate::autograd::fused::{GpuBackward, OnGpu};
use crate::noise;
use crate::ops::dropout::DropoutOp;

const KERNELS: Kernels = Kernels { name: "dropout", text: include_str!("dropout.cu") };

impl DropoutOp {
    fn launch(
        &self,
        gpu: &Gpu,
        ys: &mut CudaNumbersMut<'_>,
        xs: Option<CudaNumbers<'_>>,
    ) -> Result<()> {
        let grid = Grid::for_each(ys.len());
        let mask = [self.key().into(), self.threshold().into(), (self.scale() as f32).into()];
        noise::with_key(self.seed(), |stored| {
            let number = ys.element_type();
            let args = [&[ys.into(), xs.into(), stored.into()], &mask[..]].concat();
            Ok(gpu.launch_for(number, KERNELS, "dropout", grid, &args)?)
        })
    }
}

impl OnGpu for DropoutOp {
    fn forward(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaNumbers<'_>>],
        mut ys: CudaNumbersMut<'_>,
    ) -> Result<Option<Flat>> {
        self.launch(gpu, &mut ys, inputs[0])?;
        Ok(None)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        let Some(mut dxs) = pass.grads[0].take() else { return Ok(()) };
        self.launch(pass.gpu, &mut dxs, Some(pass.dys.as_numbers()))
    }
}
