//! Layer normalisation and root-mean-square normalisation on a GPU.

use candelabrum_memory::cuda::{CudaNumbers, CudaNumbersMut, Gpu, Kernels, LaunchGrid};
use candelabrum_memory::{ElementType, FlatTensor};
use candle_core::Result;

use super::RowNorm;
use crate::autograd::fused::{GpuBackward, GpuForward, GpuKernels};
use crate::ops::gpu::columns::sum_rows;
use crate::ops::gpu::launch::launch;
use crate::ops::gpu::rows::GpuRows;

const KERNELS: Kernels = Kernels {
    name: "row_norm",
    text: concat!(include_str!("../gpu/rows.cu"), include_str!("row_norm.cu")),
};

/// `SCALE` in row_norm.cu.
const SCALE: usize = 3;

/// `ROWS` in row_norm.cu.
const ROWS: usize = 64;

impl<const CENTRED: bool> GpuKernels for RowNorm<CENTRED> {
    fn forward(&self, pass: GpuForward<'_>) -> Result<Option<FlatTensor>> {
        let GpuForward { gpu, inputs, mut ys } = pass;
        let &[xs, weight, bias] = inputs else { unreachable!("three inputs") };
        let (number, count) = (ys.element_type(), ys.len() / self.len.max(1));
        let rows = GpuRows::new(count, self.len);
        let mut saved = gpu.numbers(SCALE * count)?;
        launch!(gpu, number, KERNELS, "normalise", rows.grid;
            &mut ys, &mut saved.span_mut()?.cuda()?, xs, weight, bias, self.len, usize::from(CENTRED), self.eps,
            rows.width
        )?;
        Ok(Some(saved))
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        let (gpu, len, number) = (pass.gpu, self.len, pass.dys.element_type());
        let (xs, weight, dys, saved) =
            (pass.inputs[0], pass.inputs[1], pass.dys.as_numbers(), pass.saved);
        if let Some(mut dxs) = pass.grads[0].take() {
            let rows = GpuRows::new(dxs.len() / len.max(1), len);
            launch!(gpu, number, KERNELS, "input_gradient", rows.grid;
                &mut dxs, dys, xs, weight, saved, len, usize::from(CENTRED), rows.width
            )?;
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
        let sum_groups = |dw: Option<&mut CudaNumbersMut<'_>>,
                          db: Option<&mut CudaNumbersMut<'_>>| {
            let grid = LaunchGrid::for_each(groups * self.len);
            launch!(gpu, number, KERNELS, "parameter_gradients", grid; dw, db, dys, xs, saved, rows, self.len)
        };
        if groups == 1 && number == ElementType::F32 {
            return sum_groups(dw.as_mut(), db.as_mut());
        }
        // The sums of the groups first, in f32, and then the sums of these.
        let len = groups * self.len;
        let mut memory = gpu.scratch(2 * len)?;
        {
            let (dws, dbs) = memory.span_mut().split_at(len);
            let (mut dws, mut dbs) = (dws.into(), dbs.into());
            sum_groups(dw.is_some().then_some(&mut dws), db.is_some().then_some(&mut dbs))?;
        }
        for (gradient, range) in [(dw, 0..len), (db, len..2 * len)] {
            if let Some(gradient) = gradient {
                sum_rows(gpu, gradient, memory.span().range(range).into())?;
            }
        }
        Ok(())
    }
}
