//! Rows of a table by index on a GPU.

use candelabrum_memory::cuda::{
    Arg, CudaIndices, CudaNumbers, CudaNumbersMut, Gpu, Grid, Kernels, Scratch,
};
use candelabrum_memory::{ElementType, Flat};
use candle_core::{Result, Tensor, bail};

use super::indices::with_indices;
use crate::ops::embedding::{Embedding, Indices};
use crate::ops::fused::{GpuBackward, OnGpu};

const KERNELS: Kernels = Kernels {
    name: "embedding",
    text: concat!(include_str!("indices.cu"), include_str!("embedding.cu")),
};

/// `TILE` in embedding.cu.
const TILE: usize = 2048;

impl OnGpu for Embedding {
    fn forward(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaNumbers<'_>>],
        mut ys: CudaNumbersMut<'_>,
    ) -> Result<Option<Flat>> {
        let (number, grid) = (ys.element_type(), Grid::for_each(ys.len()));
        with_indices(self.on_device()?, |indices| {
            let numbers = [(&mut ys).into(), inputs[0].into(), indices.into()];
            let sizes = [indices.element_size(), self.vocabulary, self.dim].map(Arg::from);
            let args = [&numbers, &sizes[..]].concat();
            Ok(gpu.launch_for(number, KERNELS, "select_rows", grid, &args)?)
        })?;
        Ok(None)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        let Some(mut dw) = pass.grads[0].take() else { return Ok(()) };
        dw.clear()?;
        if pass.dys.is_empty() {
            return Ok(());
        }
        let (number, positions) = (pass.dys.element_type(), pass.dys.len() / self.dim);
        let keys = with_indices(self.on_device()?, |indices| self.sort(pass.gpu, indices))?;
        let is_wide = dw.element_type() == ElementType::F32;
        let (dw, nothing) = (Arg::from(&mut dw), Arg::from(None::<CudaNumbers<'_>>));
        let places = if is_wide { [dw, nothing] } else { [nothing, dw] };
        let numbers = [pass.dys.as_numbers().into(), keys.span().into()];
        let args = [&places[..], &numbers, &[positions.into(), self.dim.into()]].concat();
        let grid = Grid::for_each(pass.dys.len());
        Ok(pass.gpu.launch_for(number, KERNELS, "sum_positions", grid, &args)?)
    }

    fn has_wide_gradient(&self, input: usize) -> bool {
        input == 0
    }
}

impl Embedding {
    fn on_device(&self) -> Result<&Tensor> {
        match &self.indices {
            Indices::OnDevice(indices) => Ok(indices),
            Indices::Checked(_) => bail!("indices on the host for a GPU, this is a bug"),
        }
    }

    /// The positions in the order of their indices, as keys of 64 bits, in a memory of f32 numbers
    /// twice as many. A sorting network: the keys do not change the kernels that run.
    fn sort(&self, gpu: &Gpu, indices: CudaIndices<'_>) -> Result<Scratch> {
        let positions = indices.len();
        if positions.max(self.vocabulary) > u32::MAX as usize {
            bail!("embedding: more than 2^32 - 1 indices or rows, too many for a GPU");
        }
        let len = positions.next_power_of_two().max(2);
        let mut memory = gpu.scratch(2 * len)?;
        let mut keys = memory.span_mut();
        let tile = len.min(TILE);
        let padding = self.padding_index.unwrap_or(usize::MAX);
        let sizes = [indices.element_size(), self.vocabulary, padding, positions, tile];
        let args = [&[(&mut keys).into(), indices.into()], &sizes.map(Arg::from)[..]].concat();
        gpu.launch(KERNELS, "sort_tiles", Grid::by_share(len, tile), &args)?;
        let mut run = 2 * TILE;
        while run <= len {
            let mut distance = run / 2;
            while distance >= TILE {
                let args = [(&mut keys).into(), run.into(), distance.into()];
                gpu.launch(KERNELS, "merge_step", Grid::for_each(len / 2), &args)?;
                distance /= 2;
            }
            let args = [(&mut keys).into(), run.into()];
            gpu.launch(KERNELS, "merge_tiles", Grid::by_share(len, TILE), &args)?;
            run *= 2;
        }
        Ok(memory)
    }
}
