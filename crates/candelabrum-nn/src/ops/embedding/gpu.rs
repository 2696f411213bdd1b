//! Rows of a table by index on a GPU.

use candelabrum_memory::cuda::{
    CudaIndices, CudaNumbers, CudaNumbersMut, Gpu, Kernels, LaunchGrid, Scratch,
};
use candelabrum_memory::{ElementType, FlatTensor};
use candle_core::{Result, Tensor, bail};

use super::positions::PositionEmbedding;
use super::{EmbeddingOp, Indices};
use crate::autograd::fused::{GpuBackward, GpuForward, GpuKernels};
use crate::ops::gpu::gradient::places;
use crate::ops::gpu::indices::with_indices;
use crate::ops::gpu::launch::launch;

const KERNELS: Kernels = Kernels {
    name: "embedding",
    text: concat!(
        include_str!("../gpu/indices.cu"),
        include_str!("../gpu/gradient.cu"),
        include_str!("embedding.cu")
    ),
};

/// `TILE` in embedding.cu.
const TILE: usize = 2048;

impl GpuKernels for EmbeddingOp {
    fn forward(&self, pass: GpuForward<'_>) -> Result<Option<FlatTensor>> {
        self.select_rows(pass, 1)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        let Some(dw) = pass.grads[0].take() else { return Ok(()) };
        self.add_rows_on_gpu(pass.gpu, pass.dys.as_numbers(), dw)
    }

    fn has_wide_gradient(&self, input: usize) -> bool {
        input == 0
    }
}

impl GpuKernels for PositionEmbedding {
    fn forward(&self, pass: GpuForward<'_>) -> Result<Option<FlatTensor>> {
        self.embedding.select_rows(pass, self.length)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        let (gpu, dys, dim) = (pass.gpu, pass.dys.as_numbers(), self.embedding.dim);
        if let Some(mut dp) = pass.grads[1].take() {
            let (grid, sequence) = (LaunchGrid::for_each(dp.len()), self.length * dim);
            let sequences = dys.len().checked_div(sequence).unwrap_or_default();
            let (number, dp) = (dys.element_type(), places(Some(&mut dp)));
            launch!(gpu, number, KERNELS, "sum_sequences", grid; ..dp, dys, sequences, self.length, dim)?;
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
    /// Writes the rows of input 0, and adds to those of each sequence of a length the rows of input 1, if there is
    /// one.
    fn select_rows(&self, pass: GpuForward<'_>, length: usize) -> Result<Option<FlatTensor>> {
        let GpuForward { gpu, inputs, mut ys } = pass;
        let (number, grid) = (ys.element_type(), LaunchGrid::for_each(ys.len()));
        let others = inputs.get(1).copied().flatten();
        with_indices(self.on_device()?, |indices| {
            let sizes = [indices.element_size(), self.vocabulary, self.dim, length];
            launch!(gpu, number, KERNELS, "select_rows", grid; &mut ys, inputs[0], others, indices, ..sizes)
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
        let (number, grid, dw) =
            (dys.element_type(), LaunchGrid::for_each(dys.len()), places(Some(&mut dw)));
        launch!(gpu, number, KERNELS, "sum_positions", grid; ..dw, dys, keys.span(), positions, self.dim)
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
        let (number, grid) = (ElementType::F32, LaunchGrid::by_share(len, tile));
        let sizes = [indices.element_size(), self.vocabulary, padding, positions, tile];
        launch!(gpu, number, KERNELS, "sort_tiles", grid; &mut keys, indices, ..sizes)?;
        let mut run = 2 * TILE;
        while run <= len {
            let mut distance = run / 2;
            while distance >= TILE {
                let grid = LaunchGrid::for_each(len / 2);
                launch!(gpu, number, KERNELS, "merge_step", grid; &mut keys, run, distance)?;
                distance /= 2;
            }
            launch!(gpu, number, KERNELS, "merge_tiles", LaunchGrid::by_share(len, TILE); &mut keys, run)?;
            run *= 2;
        }
        Ok(memory)
    }
}
