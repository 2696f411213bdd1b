//! Attention by candle's own operations, with all scores at once.

use candle_core::{D, Result, Tensor};

use super::geometry::AttentionGeometry;
use super::rotary::RotaryTable;
use crate::autograd::fused;

/// Queries (N, Tq, H D), keys and values (N, Tk, G D) -> (N, Tq, H D).
pub(super) fn composite(
    [q, k, v]: [&Tensor; 3],
    mask: Option<&Tensor>,
    geometry: &AttentionGeometry,
    rotary: Option<&RotaryTable>,
) -> Result<Tensor> {
    let &AttentionGeometry { batch, queries, keys, heads, kv_heads, dim, .. } = geometry;
    let split = |xs: &Tensor, rows: usize, heads: usize| {
        fused::widen(xs)?.reshape((batch, rows, heads, dim))?.transpose(1, 2)?.contiguous()
    };
    let dtype = q.dtype();
    let (mut q, mut k) = (split(q, queries, heads)?, split(k, keys, kv_heads)?);
    let mut v = split(v, keys, kv_heads)?;
    if let Some(table) = rotary {
        (q, k) = (table.composite(&q, table.shift())?, table.composite(&k, 0)?);
    }
    if heads != kv_heads {
        let repeated = |xs: Tensor| {
            let shape = (batch, kv_heads, geometry.group(), keys, dim);
            xs.unsqueeze(2)?.broadcast_as(shape)?.reshape((batch, heads, keys, dim))
        };
        (k, v) = (repeated(k)?, repeated(v)?);
    }
    let mut scores = (q.matmul(&k.t()?.contiguous()?)? * geometry.scale)?; // (N, H, Tq, Tk)
    if let Some(mask) = mask {
        scores = scores.broadcast_add(&fused::widen(mask)?)?;
    }
    if geometry.causal {
        let hidden = (0..queries).flat_map(|query| {
            let visible = geometry.visible(query);
            (0..keys).map(move |key| u8::from(key >= visible))
        });
        let hidden = Tensor::from_iter(hidden, q.device())?.reshape((1, 1, queries, keys))?;
        let nothing = (scores.zeros_like()? + f64::NEG_INFINITY)?;
        scores = hidden.broadcast_as(scores.shape())?.where_cond(&nothing, &scores)?;
    }
    // The maximum of a row that sees no key is replaced by a number: then its exponentials are 0.
    let max = scores.detach().max_keepdim(D::Minus1)?;
    let max = max.eq(f64::NEG_INFINITY)?.where_cond(&max.zeros_like()?, &max)?;
    let exp = scores.broadcast_sub(&max)?.exp()?;
    let sum = exp.sum_keepdim(D::Minus1)?;
    let sum = sum.eq(0.0)?.where_cond(&sum.ones_like()?, &sum)?;
    let ys = exp.broadcast_div(&sum)?.matmul(&v)?; // (N, H, Tq, D)
    ys.transpose(1, 2)?.reshape((batch, queries, heads * dim))?.to_dtype(dtype)
}
