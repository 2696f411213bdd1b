//! Attention on a GPU, block by block: FlashAttention-2 (Dao, arXiv:2307.08691; Dao et al.,
//! arXiv:2205.14135) in f32 arithmetic, without tensor cores.
//!
//! A block of threads computes the results of 64 queries of a head. It goes through the keys that these
//! queries see, 64 at a time, and keeps the largest score of each query and the sum of the exponentials so
//! far (Milakov and Gimelshein, arXiv:1805.02867). Of a query and head the forward saves one number, the
//! logarithm of this sum. The backward computes the probabilities again:
//!
//! ```text
//! attention_deltas             delta = sum of dy y, for each query and head
//! attention_key_gradients      dv = p^T dy, dk = scale ds^T q   64 values or keys, through all their queries
//! attention_query_gradients    dq = scale ds k                  64 queries, through all their keys
//! ```
//!
//! where `p = exp(s - lse)` and `ds = p (dy v^T - delta)`. The scores are computed for each of the three, so
//! that one block adds up a gradient in a fixed order: no atomic additions, and the same bits in every run.
//! Memory grows with the length of the sequences, not with its square. The mask is read where it lies, and a
//! causal one is not stored.
//!
//! Queries, keys and values of a packed projection are read in place, and their gradients are written there.
//! The angles of rotary positions are computed on the device by a launch of each forward pass, in f64 and
//! rounded to f32 as on the CPU. Heads may have any size. For more than 128 columns the scores are computed
//! again for each 128 columns of the result.

use candelabrum_memory::ElementType;
use candelabrum_memory::FlatTensor;
use candelabrum_memory::cuda::{CudaNumbers, KernelArg, Kernels, LaunchGrid};
use candle_core::{Result, bail};

use super::Attention;
use crate::autograd::fused::{GpuBackward, GpuForward, GpuKernels};
use crate::ops::gpu::launch::launch;

const KERNELS: Kernels = Kernels { name: "attention", text: include_str!("attention.cu") };

/// `SIDE` in attention.cu.
const SIDE: usize = 64;

/// `BLOCK / LANES` in attention.cu.
const ROWS: usize = 16;

/// The names of the kernels for heads of one or of more chunks of columns.
const FORWARD: [&str; 2] = ["attention_64", "attention_128"];
const KEY_GRADIENTS: [&str; 2] = ["attention_key_gradients_64", "attention_key_gradients_128"];
const QUERY_GRADIENTS: [&str; 2] =
    ["attention_query_gradients_64", "attention_query_gradients_128"];

impl<const PACKED: bool> GpuKernels for Attention<PACKED> {
    fn forward(&self, pass: GpuForward<'_>) -> Result<Option<FlatTensor>> {
        let GpuForward { gpu, inputs, mut ys } = pass;
        let geometry = &self.geometry;
        if geometry.queries.max(geometry.keys).max(geometry.dim) > i32::MAX as usize / 2 {
            bail!("attention: queries, keys or sizes of heads above 2^30, too many for a GPU");
        }
        let sums = geometry.batch * geometry.heads * geometry.queries;
        let mut saved = gpu.numbers(self.angles() + sums)?;
        {
            let mut saved = saved.span_mut()?.cuda()?;
            let saved = KernelArg::from(&mut saved);
            if let Some(table) = &self.rotary {
                let (rotary, slowing) = (table.rotary(), table.slowing());
                let factors = [slowing.factor, slowing.constant, slowing.by_speed, slowing.by_pair];
                let grid = LaunchGrid::for_each(self.angles() / 4);
                launch!(gpu, ElementType::F32, KERNELS, "attention_angles", grid;
                    saved, rotary.base, ..factors, rotary.offset, geometry.dim
                )?;
            }
            let (number, arguments) = (ys.element_type(), self.arguments(inputs, saved));
            let grid = self.grid(geometry.queries, geometry.heads);
            launch!(gpu, number, KERNELS, self.kernel(FORWARD), grid; &mut ys, ..arguments)?;
        }
        Ok(Some(saved))
    }

    fn backward(&self, pass: GpuBackward<'_>) -> Result<()> {
        let GpuBackward { gpu, inputs, ys, saved, dys, mut grads } = pass;
        let geometry = &self.geometry;
        let number = dys.element_type();
        let mut wanted = grads.iter_mut().take(if PACKED { 1 } else { 3 }).map(Option::take);
        let mut wanted = [(); 3].map(|()| wanted.next().flatten());
        let places = wanted.each_mut().map(|gradient| KernelArg::from(gradient.as_mut()));
        let [dq, dk, dv] = if PACKED { [places[0]; 3] } else { places };
        let is_wanted = |place: KernelArg<'_>| !matches!(place, KernelArg::Nothing);
        if ![dq, dk, dv].into_iter().any(is_wanted) {
            return Ok(());
        }
        let (dys, arguments) = (dys.as_numbers(), self.arguments(inputs, saved.into()));
        let rows = geometry.batch * geometry.queries * geometry.heads;
        let mut deltas = gpu.scratch(rows)?;
        let (sizes, grid) =
            ([geometry.queries, geometry.heads, geometry.dim], LaunchGrid::by_share(rows, ROWS));
        launch!(gpu, number, KERNELS, "attention_deltas", grid; &mut deltas.span_mut(), ys, dys, ..sizes)?;
        let deltas = deltas.span();
        if is_wanted(dk) || is_wanted(dv) {
            // Blocks for the keys and blocks for the values.
            let grid = self.grid(geometry.keys, 2 * geometry.kv_heads);
            let kernel = self.kernel(KEY_GRADIENTS);
            launch!(gpu, number, KERNELS, kernel, grid; dk, dv, dys, deltas, ..arguments)?;
        }
        if is_wanted(dq) {
            let grid = self.grid(geometry.queries, geometry.heads);
            let kernel = self.kernel(QUERY_GRADIENTS);
            launch!(gpu, number, KERNELS, kernel, grid; dq, dys, deltas, ..arguments)?;
        }
        Ok(())
    }
}

impl<const PACKED: bool> Attention<PACKED> {
    /// The cosines and sines of all positions: two of each for two neighbouring elements of a half head.
    fn angles(&self) -> usize {
        let row = 4 * self.geometry.dim.div_ceil(4);
        self.rotary.as_ref().map_or(0, |table| table.positions() * row)
    }

    /// `PARAMETERS` in attention.cu.
    fn arguments<'a>(
        &self,
        inputs: &[Option<CudaNumbers<'a>>],
        saved: KernelArg<'a>,
    ) -> Vec<KernelArg<'a>> {
        let geometry = &self.geometry;
        let (queries, keys) = (geometry.query_columns(), geometry.key_columns());
        let (operands, steps) = if PACKED {
            let row = queries + 2 * keys;
            ([inputs[0]; 3], [row, row, queries, queries + keys])
        } else {
            ([inputs[0], inputs[1], inputs[2]], [queries, keys, 0, 0])
        };
        let mask = inputs[if PACKED { 1 } else { 3 }];
        let layout = self.mask.map_or([0; 3], |layout| layout.steps());
        let sizes = [geometry.batch, geometry.queries, geometry.keys, geometry.heads];
        let more = [geometry.group(), geometry.dim, usize::from(geometry.causal)];
        let places = operands.into_iter().chain([mask]).map(KernelArg::from).chain([saved]);
        let numbers = [&[self.angles()], &steps[..], &layout, &sizes, &more].concat();
        let scale = KernelArg::from(geometry.scale as f32);
        places.chain(numbers.into_iter().map(KernelArg::from)).chain([scale]).collect()
    }

    /// The kernel for this size of a head.
    fn kernel(&self, names: [&'static str; 2]) -> &'static str {
        names[usize::from(self.geometry.dim > SIDE)]
    }

    /// A block for each sequence and head, each tile of rows, and each part of the columns.
    fn grid(&self, rows: usize, heads: usize) -> LaunchGrid {
        let width = if self.geometry.dim > SIDE { 2 * SIDE } else { SIDE };
        let tiles = rows.div_ceil(SIDE) * self.geometry.dim.div_ceil(width);
        LaunchGrid::by_share(self.geometry.batch * heads * tiles, 1)
    }
}
