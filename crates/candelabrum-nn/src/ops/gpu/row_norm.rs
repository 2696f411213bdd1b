//! Layer normalisation and root-mean-square normalisation on a GPU.

use candelabrum_memory::cuda::{CudaNumbers, CudaNumbersMut, Gpu, Grid, Kernels};
use candelabrum_memory::{ElementType, Flat};
use candle_core::Result;

use super::columns::sum_rows;
use super::rows::GpuRows;
use crate::autograd::fused::{GpuBackward, OnGpu};
use crate::ops::row_norm::RowNorm;

const KERNELS: Kernels = Kernels {
    name: "row_norm",
    text: concat!(include_str!("rows.cu"), include_str!("row_norm.cu")),
};

/// `SCALE` in row_norm.cu.
const SCALE: usize = 3;

/// `ROWS` in row_norm.cu.
const ROWS: usize = 64;

impl<const CENTRED: bool> OnGpu for RowNorm<CENTRED> {
    fn forward(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaNumbers<'_>>],
        mut ys: CudaNumbersMut<'_>,
    ) -> Result<Option<Flat>> {
        let (number, count) = (ys.element_type(), ys.len() / self.len.max(1));
        let rows = GpuRows::new(count, self.len);
        let mut saved = gpu.numbers(SCALE * count)?;
        {
            let mut saved = saved.span_mut()?.cuda()?;
            let numbers = [(&mut ys).into(), (&mut saved).into()];
            let inputs = [inputs[0].into(), inputs[1].into(), inputs[2].into()];
            let sizes = [self.len.into(), usize::from(CENTRED).into()];
            let args = [&numbers[..], &inputs, &sizes, &[self.eps.into(), rows.width.into()]];
            gpu.launch_for(number, KERNELS, "normalise", rows.grid, &args.concat())?;
        }
        Ok(Some(saved))
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        let (gpu, len, number) = (pass.gpu, self.len, pass.dys.element_type());
        let (xs, dys, saved) = (pass.inputs[0], pass.dys.as_numbers(), pass.saved);
        if let Some(mut dxs) = pass.grads[0].take() {
            let rows = GpuRows::new(dxs.len() / len.max(1), len);
            let numbers = [(&mut dxs).into(), dys.into(), xs.into(), pass.inputs[1].into()];
            let sizes = [len.into(), usize::from(CENTRED).into(), rows.width.into()];
            let args = [&numbers[..], &[saved.into()], &sizes].concat();
            gpu.launch_for(number, KERNELS, "input_gradient", rows.grid, &args)?;
        }
        let gradients = (pass.grads[1].take(), pass.grads[2].take());
        self.parameter_gradients(gpu, gradients, dys, xs, saved)
    }

    fn has_wide_gradient(&self, input: usize) -> bool {
        input > 0
    }
}

impl<const CENTRED: bool> RowNorm<CENTRED> {
    /// The gradients of the weight and of the bias, as far as they are wanted.
    fn parameter_gradients(
        &self,
        gpu: &Gpu,
        (mut dw, mut db): (Option<CudaNumbersMut<'_>>, Option<CudaNumbersMut<'_>>),
        dys: CudaNumbers<'_>,
        xs: Option<CudaNumbers<'_>>,
        saved: Option<CudaNumbers<'_>>,
    ) -> Result<()> {
        if dw.is_none() && db.is_none() {
            return Ok(());
        }
        if dys.is_empty() {
            for mut gradient in [dw, db].into_iter().flatten() {
                gradient.clear()?;
            }
            return Ok(());
        }
        let (number, rows) = (dys.element_type(), dys.len() / self.len);
        let groups = rows.div_ceil(ROWS);
        let launch = |dw: Option<&mut CudaNumbersMut<'_>>, db: Option<&mut CudaNumbersMut<'_>>| {
            let numbers = [dw.into(), db.into(), dys.into(), xs.into(), saved.into()];
            let args = [&numbers[..], &[rows.into(), self.len.into()]].concat();
            let grid = Grid::for_each(groups * self.len);
            gpu.launch_for(number, KERNELS, "parameter_gradients", grid, &args)
        };
        if groups == 1 && number == ElementType::F32 {
            return Ok(launch(dw.as_mut(), db.as_mut())?);
        }
        // The sums of the groups first, in f32, and then the sums of these.
        let len = groups * self.len;
        let mut memory = gpu.scratch(2 * len)?;
        {
            let (dws, dbs) = memory.span_mut().split_at(len);
            let (mut dws, mut dbs) = (dws.into(), dbs.into());
            launch(dw.is_some().then_some(&mut dws), db.is_some().then_some(&mut dbs))?;
        }
        for (gradient, range) in [(dw, 0..len), (db, len..2 * len)] {
            if let Some(gradient) = gradient {
                sum_rows(gpu, gradient, memory.span().range(range).into())?;
            }
        }
        Ok(())
    }
}
