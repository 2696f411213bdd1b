//! Recurrent layers on a GPU: cuBLAS for the products, and one kernel for each step.
//!
//! The products with the input are one for all steps. Gates and cell states are f32, also beside 16-bit
//! numbers.

use candelabrum_memory::cuda::{
    self, CudaMatrix, CudaNumbers, CudaNumbersMut, CudaSpanMut, Gpu, Kernels, LaunchGrid,
};
use candelabrum_memory::{ElementType, FlatTensor, Location};
use candle_core::{DType, Result, Storage, Tensor, bail};

use super::{CellOutput, Recurrent, RecurrentCell};
use crate::autograd::fused::{GpuBackward, GpuForward, GpuKernels};
use crate::kernels::scratch::PooledValues;
use crate::ops::gpu::columns::sum_rows;
use crate::ops::gpu::launch::launch;

const KERNELS: Kernels = Kernels {
    name: "recurrent",
    text: concat!(include_str!("../gpu/sigmoid.cu"), include_str!("recurrent.cu")),
};

/// `len` zeros in f32.
fn zeros(gpu: &Gpu, len: usize) -> Result<FlatTensor> {
    Ok(FlatTensor::zeros_on(&Location::from_device(&gpu.device()), ElementType::F32, len)?)
}

/// Calls `f` with the elements of a tensor, to change them in place.
fn with_elements<R>(tensor: &Tensor, f: impl FnOnce(CudaSpanMut<'_>) -> Result<R>) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cuda(storage) => f(cuda::span_mut(storage, layout)?),
        _ => bail!("a cell state on the host for a kernel on the GPU, this is a bug"),
    }
}

impl<C: RecurrentCell> Recurrent<C> {
    /// (N T, width) or (N, width).
    fn matrix(values: CudaNumbers<'_>, width: usize) -> CudaMatrix<'_> {
        CudaMatrix { values, size: (values.len() / width, width), transposed: false }
    }

    fn kernels() -> Result<[&'static str; 2]> {
        match C::GPU_KERNELS {
            Some(kernels) => Ok(kernels),
            None => bail!("{}: no kernels for a GPU, this is a bug", C::NAME),
        }
    }

    /// The steps of the forward. `c` is the cell state before the first step, and after the last one.
    fn steps(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaNumbers<'_>>],
        [gates, extra]: [&mut CudaSpanMut<'_>; 2],
        mut c: Option<CudaSpanMut<'_>>,
        mut ys: CudaNumbersMut<'_>,
    ) -> Result<()> {
        let &[_, _, Some(w_hh), b_ih, b_hh, h0, _] = inputs else {
            bail!("{}: an input is missing, this is a bug", C::NAME)
        };
        let [step, _] = Self::kernels()?;
        let (units, _, gate_width) = self.sizes();
        let (number, grid) = (ys.element_type(), LaunchGrid::for_each(units));
        let w_hh = CudaMatrix { transposed: true, ..Self::matrix(w_hh, self.hidden) };
        let mut h = gpu.numbers_of(number, units)?;
        match h0 {
            Some(h0) => h.cuda_numbers_mut()?.copy_from(h0)?,
            None => h.cuda_numbers_mut()?.clear()?,
        }
        let mut b = gpu.numbers(gate_width)?;
        for t in 0..self.steps {
            let is_zero = t == 0 && h0.is_none();
            if !is_zero {
                let h = Self::matrix(h.cuda_numbers()?, self.hidden);
                gpu.matmul(b.cuda_numbers_mut()?, false, h, w_hh)?;
            }
            let b = if is_zero { None } else { Some(b.span()?.cuda()?) };
            let sizes = [t, self.steps, self.hidden];
            launch!(gpu, number, KERNELS, step, grid;
                &mut *gates, &mut *extra, c.as_mut(), b, b_ih, b_hh, &mut h.cuda_numbers_mut()?, &mut ys, ..sizes
            )?;
        }
        Ok(())
    }
}

impl<C: RecurrentCell> GpuKernels for Recurrent<C> {
    fn forward(&self, pass: GpuForward<'_>) -> Result<Option<FlatTensor>> {
        let GpuForward { gpu, inputs, ys } = pass;
        let (Some(xs), Some(w_ih)) = (inputs[0], inputs[1]) else {
            bail!("{}: an input is missing, this is a bug", C::NAME)
        };
        let (units, _, gate_width) = self.sizes();
        let mut saved = gpu.numbers(self.steps * (gate_width + units))?;
        let all = saved.span_mut()?.cuda()?;
        let (mut gates, mut extra) = all.split_at(self.steps * gate_width);
        let w_ih = CudaMatrix { transposed: true, ..Self::matrix(w_ih, self.inputs) };
        let xs = Self::matrix(xs, self.inputs);
        gpu.matmul(gates.reborrow().into(), false, xs, w_ih)?;
        let kept = [&mut gates, &mut extra];
        if !C::HAS_CELL_STATE {
            self.steps(gpu, inputs, kept, None, ys)?;
            return Ok(Some(saved));
        }
        let c = Tensor::zeros((self.batch, self.hidden), DType::F32, &gpu.device())?;
        with_elements(&c, |mut c| {
            if let Some(c0) = inputs[6] {
                c.widen_from(c0)?;
            }
            self.steps(gpu, inputs, kept, Some(c), ys)
        })?;
        self.final_cell.state.get_or_init(|| c);
        Ok(Some(saved))
    }

    fn backward(&self, pass: GpuBackward<'_>) -> Result<()> {
        let GpuBackward { gpu, inputs, ys, saved, dys, mut grads } = pass;
        let (&[Some(xs), Some(w_ih), Some(w_hh), _, _, h0, _], Some(ys), Some(saved)) =
            (inputs, ys, saved)
        else {
            bail!("{}: an input is missing, this is a bug", C::NAME)
        };
        let [_, step_back] = Self::kernels()?;
        let (units, width, gate_width) = self.sizes();
        let (number, rows) = (ys.element_type(), self.steps * self.batch);
        let saved = saved.as_f32()?;
        let gates = saved.range(0..self.steps * gate_width);
        let extra = saved.range(self.steps * gate_width..saved.len());
        let mut h_prev = gpu.numbers_of(number, ys.len())?;
        let grid = LaunchGrid::for_each(ys.len());
        launch!(gpu, number, KERNELS, "previous", grid;
            &mut h_prev.cuda_numbers_mut()?, ys, h0, self.steps, self.hidden
        )?;
        let h_prev = h_prev.cuda_numbers()?;
        let mut dc = match self.final_cell.gradient.take() {
            Some(PooledValues::Gpu(dc)) => dc,
            _ => zeros(gpu, if C::HAS_CELL_STATE { units } else { 0 })?,
        };
        let mut dh = zeros(gpu, units)?;
        let mut da = gpu.numbers_of(number, rows * width)?;
        let mut all_db = gpu.numbers_of(number, if C::SPLIT { rows * width } else { 0 })?;
        let mut db = gpu.numbers_of(number, gate_width)?;
        let w_hh = Self::matrix(w_hh, self.hidden);
        let dh0 = grads[5].take();
        for t in (0..self.steps).rev() {
            launch!(gpu, number, KERNELS, step_back, LaunchGrid::for_each(units);
                &mut da.cuda_numbers_mut()?, &mut all_db.cuda_numbers_mut()?, &mut db.cuda_numbers_mut()?,
                &mut dh.span_mut()?.cuda()?, &mut dc.span_mut()?.cuda()?, dys.as_numbers(), gates, extra, h_prev, t,
                self.steps, self.hidden
            )?;
            if t > 0 || dh0.is_some() {
                let db = Self::matrix(db.cuda_numbers()?, width);
                gpu.matmul(dh.cuda_numbers_mut()?, true, db, w_hh)?;
            }
        }
        for (gradient, sum) in [(dh0, &dh), (grads[6].take(), &dc)] {
            if let Some(mut gradient) = gradient {
                gradient.round_from(sum.span()?.cuda()?)?;
            }
        }

        let da = da.cuda_numbers()?;
        let db = if C::SPLIT { all_db.cuda_numbers()? } else { da };
        let [da_matrix, db_matrix] = [da, db].map(|values| Self::matrix(values, width));
        let turned = |matrix| CudaMatrix { transposed: true, ..matrix };
        if let Some(dw_hh) = grads[2].take() {
            gpu.matmul(dw_hh, false, turned(db_matrix), Self::matrix(h_prev, self.hidden))?;
        }
        if let Some(dw_ih) = grads[1].take() {
            gpu.matmul(dw_ih, false, turned(da_matrix), Self::matrix(xs, self.inputs))?;
        }
        if let Some(dxs) = grads[0].take() {
            gpu.matmul(dxs, false, da_matrix, Self::matrix(w_ih, self.inputs))?;
        }
        for (input, values) in [(3, da), (4, db)] {
            if let Some(sums) = grads[input].take() {
                sum_rows(gpu, sums, values)?;
            }
        }
        Ok(())
    }

    fn has_wide_gradient(&self, input: usize) -> bool {
        (1..5).contains(&input)
    }
}

impl GpuKernels for CellOutput {
    fn forward(&self, mut pass: GpuForward<'_>) -> Result<Option<FlatTensor>> {
        let &[_, Some(state)] = pass.inputs else { unreachable!("two inputs") };
        pass.ys.copy_from(state)?;
        Ok(None)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        self.final_cell.gradient.deliver_on_gpu(pass.dys.as_numbers().to_flat()?)?;
        match pass.grads[0].take() {
            Some(mut dhs) => Ok(dhs.clear()?),
            None => Ok(()),
        }
    }
}
