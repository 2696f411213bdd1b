//! The first layer of a language model: the row of each token plus the row of its position.
//!
//! ```text
//! forward    y_nt = w[index_nt] + p[t]
//! backward   dw as in an embedding          dp[t] = sum over all n of dy_nt
//! ```

use candle_core::{Result, Tensor, bail};

use super::EmbeddingOp;
use crate::autograd::fused::{self, Backward, FusedOp, GpuKernels};
use crate::kernels::elementwise::add_assign;
use crate::kernels::float::Float;
use crate::kernels::scratch::Pooled;
use crate::ops::sizes::sizes;

const NAME: &str = "embedding_with_positions";

/// The rows of `weight` at `indices`, and the row of `positions` at the number of each token in its
/// sequence added to them.
///
/// # Shapes
///
/// `weight` (V, D), `positions` (P, D) with P at least T, `indices` (N, T) in u8, u32 or i64 ->
/// (N, T, D).
///
/// # Errors
///
/// Those of [`embedding`](crate::ops::embedding()), shapes that do not fit together, and sequences of more
/// than P tokens.
pub fn embedding_with_positions(
    weight: &Tensor,
    positions: &Tensor,
    indices: &Tensor,
) -> Result<Tensor> {
    let [_, dim] = sizes(NAME, "weight", weight.shape(), "(V, D)")?;
    let [limit, width] = sizes(NAME, "positions", positions.shape(), "(P, D)")?;
    let [batch, length] = sizes(NAME, "indices", indices.shape(), "(N, T)")?;
    if width != dim {
        let shape = positions.shape();
        bail!("{NAME}: positions of shape {shape:?} for a weight of {:?}", weight.shape());
    }
    if length > limit {
        bail!("{NAME}: sequences of {length} tokens, but there are {limit} positions");
    }
    let op = PositionEmbedding { embedding: EmbeddingOp::new(weight, indices, None)?, length };
    fused::run(op, (batch, length, dim), &[Some(weight), Some(positions)])
}

pub(super) struct PositionEmbedding {
    pub(super) embedding: EmbeddingOp,
    pub(super) length: usize,
}

impl FusedOp for PositionEmbedding {
    const NAME: &'static str = NAME;

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let &[weight, positions] = inputs else { unreachable!("two inputs") };
        self.embedding.look_up(weight, ys)?;
        let sequence = self.length * self.embedding.dim;
        for ys in ys.chunks_exact_mut(sequence.max(1)) {
            add_assign(ys, &positions[..sequence]);
        }
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let sequence = self.length * self.embedding.dim;
        if let Some(dp) = pass.grads.take(1) {
            dp.fill(T::zero());
            for dys in pass.dys.chunks_exact(sequence.max(1)) {
                add_assign(&mut dp[..sequence], dys);
            }
        }
        match pass.grads.take(0) {
            Some(dw) => self.embedding.add_rows(pass.dys, dw),
            None => Ok(()),
        }
    }

    fn on_gpu(&self) -> Option<&dyn GpuKernels> {
        Some(self)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(weight), Some(positions)] = inputs else { unreachable!("two inputs") };
        let rows = self.embedding.composite(&[Some(weight.clone())])?;
        let rows = rows.reshape(((), self.length, self.embedding.dim))?;
        // The gradient of a position is a sum over sequences, for which 16 bits are too few.
        let positions = fused::widen(positions)?.narrow(0, 0, self.length)?;
        fused::widen(&rows)?.broadcast_add(&positions)?.to_dtype(weight.dtype())
    }
}
