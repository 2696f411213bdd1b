//! Rows of a table by index on a GPU.

use candelabrum_memory::Flat;
use candelabrum_memory::cuda::{
    Arg, CudaIndices, CudaNumbers, CudaNumbersMut, Gpu, Grid, Kernels, Scratch,
};
use candle_core::{Result, Tensor, bail};

use super::gradient::places;
use super::indices::with_indices;
use crate::autograd::fused::{GpuBackward, OnGpu};
use crate::ops::embedding::{EmbeddingOp, Indices};
use crate::ops::position_embedding::PositionEmbedding;

const KERNELS: Kernels = Kernels {
    name: "embedding",
    text: concat!(
        include_str!("indices.cu"),
        include_str!("gradient.cu"),
        include_str!("embedding.cu")
    ),
};

/// `TILE` in embedding.cu.
const TILE: usize = 2048;

impl OnGpu for EmbeddingOp {
    fn forward(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaNumbers<'_>>],
        ys: CudaNumbersMut<'_>,
    ) -> Result<Option<Flat>> {
        self.select_rows(gpu, inputs[0], (None, 1), ys)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        let Some(dw) = pass.grads[0].take() else { return Ok(()) };
        self.add_rows_on_gpu(pass.gpu, pass.dys.as_numbers(), dw)
    }

    fn has_wide_gradient(&self, input: usize) -> bool {
        input == 0
    }
}

impl OnGpu for PositionEmbedding {
    fn forward(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaNumbers<'_>>],
        ys: CudaNumbersMut<'_>,
    ) -> Result<Option<Flat>> {
        self.embedding.select_rows(gpu, inputs[0], (inputs[1], self.length), ys)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        let (gpu, dys, dim) = (pass.gpu, pass.dys.as_numbers(), self.embedding.dim);
        if let Some(mut dp) = pass.grads[1].take() {
            let (grid, sequence) = (Grid::for_each(dp.len()), self.length * dim);
            let sequences = dys.len().checked_div(sequence).unwrap_or_default();
            let sizes = [sequences, self.length, dim].map(Arg::from);
            let args = [&places(Some(&mut dp))[..], &[dys.into()], &sizes].concat();
            gpu.launch_for(dys.element_type(), KERNELS, "sum_sequences", grid, &args)?;
        }
        match pass.grads[0].take() {
            Some(dw) => self.embedding.add_rows_on_gpu(gpu, dys, dw),
            None => Ok(()),
        }
    }

    fn has_wide_gradient(&self, _input: usize) -> bool {
        true
    }
}

impl EmbeddingOp {
    /// Writes the rows of `weight`, and adds to those of each sequence of a length the rows of `others`.
    fn select_rows(
        &self,
        gpu: &Gpu,
        weight: Option<CudaNumbers<'_>>,
        (others, length): (Option<CudaNumbers<'_>>, usize),
        mut ys: CudaNumbersMut<'_>,
    ) -> Result<Option<Flat>> {
        let (number, grid) = (ys.element_type(), Grid::for_each(ys.len()));
        with_indices(self.on_device()?, |indices| {
            let numbers = [(&mut ys).into(), weight.into(), others.into(), indices.into()];
            let sizes = [indices.element_size(), self.vocabulary, self.dim, length].map(Arg::from);
            let args = [&numbers, &sizes[..]].concat();
            Ok(gpu.launch_for(number, KERNELS, "select_rows", grid, &args)?)
        })?;
        Ok(None)
    }

    /// The gradient of the table.
    fn add_rows_on_gpu(
        &self,
        gpu: &Gpu,
        dys: CudaNumbers<'_>,
        mut dw: CudaNumbersMut<'_>,
    ) -> Result<()> {
        dw.clear()?;
        if dys.is_empty() {
            return Ok(());
        }
        let positions = dys.len() / self.dim;
        let keys = with_indices(self.on_device()?, |indices| self.sort(gpu, indices))?;
        let numbers = [dys.into(), keys.span().into()];
        let sizes = [positions.into(), self.dim.into()];
        let args = [&places(Some(&mut dw))[..], &numbers, &sizes].concat();
        let grid = Grid::for_each(dys.len());
        Ok(gpu.launch_for(dys.element_type(), KERNELS, "sum_positions", grid, &args)?)
    }

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
