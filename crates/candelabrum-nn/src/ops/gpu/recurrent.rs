//! Recurrent layers on a GPU: cuBLAS for the products, and one kernel for each step.
//!
//! The products with the input are one for all steps. Gates and cell states are f32, also beside 16-bit
//! numbers.

use candelabrum_memory::cuda::{
    self, Arg, CudaNumbers, CudaNumbersMut, CudaSpanMut, Gpu, Grid, Kernels, Matrix,
};
use candelabrum_memory::{ElementType, Flat, Location};
use candle_core::{DType, Result, Storage, Tensor, bail};

use super::columns::sum_rows;
use crate::autograd::fused::{GpuBackward, OnGpu};
use crate::kernels::scratch::Values;
use crate::ops::recurrent::{Cell, CellOutput, Recurrent};

const KERNELS: Kernels = Kernels {
    name: "recurrent",
    text: concat!(include_str!("sigmoid.cu"), include_str!("recurrent.cu")),
};

/// `len` zeros in f32.
fn zeros(gpu: &Gpu, len: usize) -> Result<Flat> {
    Ok(Flat::zeros_on(&Location::of(&gpu.device()), ElementType::F32, len)?)
}

/// Calls `f` with the elements of a tensor, to change them in place.
fn with_elements<R>(tensor: &Tensor, f: impl FnOnce(CudaSpanMut<'_>) -> Result<R>) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cuda(storage) => f(cuda::span_mut(storage, layout)?),
        _ => bail!("a cell state on the host for a kernel on the GPU, this is a bug"),
    }
}

impl<C: Cell> Recurrent<C> {
    /// (N T, width) or (N, width).
    fn matrix(values: CudaNumbers<'_>, width: usize) -> Matrix<'_> {
        Matrix { values, size: (values.len() / width, width), transposed: false }
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
        let (number, grid) = (ys.element_type(), Grid::for_each(units));
        let w_hh = Matrix { transposed: true, ..Self::matrix(w_hh, self.hidden) };
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
            let mut h = h.cuda_numbers_mut()?;
            let states = [(&mut *gates).into(), (&mut *extra).into(), c.as_mut().into(), b.into()];
            let biases = [b_ih.into(), b_hh.into(), (&mut h).into(), (&mut ys).into()];
            let sizes = [t, self.steps, self.hidden].map(Arg::from);
            let args = [&states[..], &biases, &sizes].concat();
            gpu.launch_for(number, KERNELS, step, grid, &args)?;
        }
        Ok(())
    }
}

impl<C: Cell> OnGpu for Recurrent<C> {
    fn forward(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaNumbers<'_>>],
        ys: CudaNumbersMut<'_>,
    ) -> Result<Option<Flat>> {
        let (Some(xs), Some(w_ih)) = (inputs[0], inputs[1]) else {
            bail!("{}: an input is missing, this is a bug", C::NAME)
        };
        let (units, _, gate_width) = self.sizes();
        let mut saved = gpu.numbers(self.steps * (gate_width + units))?;
        let all = saved.span_mut()?.cuda()?;
        let (mut gates, mut extra) = all.split_at(self.steps * gate_width);
        let w_ih = Matrix { transposed: true, ..Self::matrix(w_ih, self.inputs) };
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
        {
            let mut to = h_prev.cuda_numbers_mut()?;
            let numbers = [(&mut to).into(), ys.into(), h0.into()];
            let sizes = [self.steps, self.hidden].map(Arg::from);
            let grid = Grid::for_each(ys.len());
            gpu.launch_for(number, KERNELS, "previous", grid, &[&numbers[..], &sizes].concat())?;
        }
        let h_prev = h_prev.cuda_numbers()?;
        let mut dc = match self.final_cell.gradient.take() {
            Some(Values::Gpu(dc)) => dc,
            _ => zeros(gpu, if C::HAS_CELL_STATE { units } else { 0 })?,
        };
        let mut dh = zeros(gpu, units)?;
        let mut da = gpu.numbers_of(number, rows * width)?;
        let mut all_db = gpu.numbers_of(number, if C::SPLIT { rows * width } else { 0 })?;
        let mut db = gpu.numbers_of(number, gate_width)?;
        let w_hh = Self::matrix(w_hh, self.hidden);
        let dh0 = grads[5].take();
        for t in (0..self.steps).rev() {
            {
                let (mut da, mut all_db) = (da.cuda_numbers_mut()?, all_db.cuda_numbers_mut()?);
                let mut db = db.cuda_numbers_mut()?;
                let (mut dh, mut dc) = (dh.span_mut()?.cuda()?, dc.span_mut()?.cuda()?);
                let gradients = [(&mut da).into(), (&mut all_db).into(), (&mut db).into()];
                let states = [(&mut dh).into(), (&mut dc).into(), dys.as_numbers().into()];
                let kept = [gates.into(), extra.into(), h_prev.into()];
                let sizes = [t, self.steps, self.hidden].map(Arg::from);
                let args = [&gradients[..], &states, &kept, &sizes].concat();
                let grid = Grid::for_each(units);
                gpu.launch_for(number, KERNELS, step_back, grid, &args)?;
            }
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
        let turned = |matrix| Matrix { transposed: true, ..matrix };
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

impl OnGpu for CellOutput {
    fn forward(
        &self,
        _gpu: &Gpu,
        inputs: &[Option<CudaNumbers<'_>>],
        mut c: CudaNumbersMut<'_>,
    ) -> Result<Option<Flat>> {
        let &[_, Some(state)] = inputs else { bail!("cell_state: an input is missing") };
        c.copy_from(state)?;
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
