//! Attention (Vaswani et al., arXiv:1706.03762), block by block, so that the matrix of all scores never
//! exists (Dao et al., "FlashAttention", arXiv:2205.14135, and Dao, arXiv:2307.08691).
//!
//! ```text
//! s = scale R(q) R(k)^T + mask      p = exp(s - max) / sum      y = p v
//! lse = max + ln(sum)               p = exp(s - lse)            in the backward pass
//! dv = p^T dy     dp = dy v^T       ds = p (dp - sum(dy y))     dq = scale ds k     dk = scale ds^T q
//! ```
//!
//! `R` rotates by the position, if the attention has a rotary embedding. A block is up to 128 queries of
//! one head and up to 256 keys, and the blocks of the same queries follow each other. The forward keeps
//! the largest score of each query and the sum of the exponentials so far, and corrects both and the
//! result by `exp(before - max)` when a block has a larger one (Milakov and Gimelshein,
//! arXiv:1805.02867). It saves one number per query and head, from which the backward computes the
//! probabilities again. The gradients of a head's keys and values are sums over all its queries.
//!
//! The scores of a block are transposed: a row has one key and all queries. So the passes over them
//! compute a vector of queries at a time, whatever the mask hides, without sums within a vector, and the
//! products read scores and heads where they are: nothing is packed. Where a causal mask divides a
//! block, its queries are stairs of 16, and each product ends at the last key that its stair sees.
//! Blocks that the mask hides are skipped.
//!
//! Queries, keys and values are read where a linear layer has written them, and their gradients are
//! written to the same places, so there is no transposed copy of anything. One thread computes all
//! heads of queries that share a head of keys and values in one sequence, in a fixed order. So the
//! bits do not depend on the number of threads.
//!
//! A GPU has kernels of its own (`gpu.rs`).

mod backward;
mod block;
mod composite;
mod forward;
mod geometry;
mod gpu;
mod head_rows;
mod mask;
mod matrix;
mod operands;
mod rotary;
mod scores;

use candle_core::{DType, Result, Tensor, bail};
use rayon::prelude::*;

use self::backward::{AttentionGradients, Results};
use self::geometry::{AttentionGeometry, HeadLayout};
use self::mask::MaskLayout;
use self::operands::Operands;
use self::rotary::RotaryTable;
pub use self::rotary::{Rotary, RotaryScaling};
use self::scores::Masking;
use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp, GpuKernels};
use crate::kernels::float::Float;
use crate::kernels::mat_mut::MatMut;
use crate::kernels::parallel::{for_each, worth_threads};
use crate::kernels::scratch::Pooled;

const NAME: &str = "attention";

/// The variants of attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionConfig {
    /// The number of heads of the queries.
    pub heads: usize,
    /// The number of heads of keys and values, which divides [`heads`](Self::heads). With fewer heads
    /// than the queries have, each serves a group of neighbours (Ainslie et al., arXiv:2305.13245).
    pub kv_heads: usize,
    /// Whether a query sees no key behind its own position. The last query is at the position of the
    /// last key.
    pub causal: bool,
    /// Rotates queries and keys by their positions.
    pub rotary: Option<Rotary>,
    /// The factor of the scores, `1 / sqrt(D)` if `None`.
    pub scale: Option<f64>,
}

impl AttentionConfig {
    /// As many heads of keys and values as of queries, every key visible, no rotation.
    #[must_use]
    pub fn new(heads: usize) -> Self {
        Self { heads, kv_heads: heads, causal: false, rotary: None, scale: None }
    }
}

/// Attention within each sequence, from queries, keys and values in one tensor, as one linear layer
/// writes them.
///
/// `mask` is added to the scores: minus infinity hides a key. A query that sees no key at all has the
/// result 0 and passes no gradient (PyTorch's result is NaN or 0, depending on its kernel).
///
/// # Shapes
///
/// `qkv` (N, T, (H + 2 G) D) with the columns of H heads of queries, of G heads of keys and of G heads
/// of values; `mask` (T, T) or (N, H, T, T), where each dimension but the last may be 1 -> (N, T, H D).
///
/// # Errors
///
/// If G does not divide H or the columns do not divide into heads, shapes or dtypes do not fit
/// together, the dtype is no float, the mask would need a gradient (detach it), or heads of odd size
/// are to be rotated.
pub fn attention(qkv: &Tensor, mask: Option<&Tensor>, config: AttentionConfig) -> Result<Tensor> {
    let (batch, length, columns) = rows_of("queries, keys and values", qkv)?;
    let all_heads = check_heads(&config)? + 2 * config.kv_heads;
    let dim = head_size(columns, all_heads, "queries, keys and values", qkv)?;
    let op = Attention::<true>::new((batch, length, length), dim, (mask, qkv.dtype()), config)?;
    fused::run(op, (batch, length, config.heads * dim), &[Some(qkv), mask])
}

fn rows_of(what: &str, xs: &Tensor) -> Result<(usize, usize, usize)> {
    match *xs.dims() {
        [batch, length, columns] => Ok((batch, length, columns)),
        _ => bail!(
            "{NAME}: {what} of shape {:?}, expected (sequences, length, heads · size): the heads are \
             neighbouring columns of a row",
            xs.shape()
        ),
    }
}

/// Attention of `q` to the rows of other tensors.
///
/// # Shapes
///
/// `q` (N, Tq, H D), `k` and `v` (N, Tk, G D), `mask` (Tq, Tk) or (N, H, Tq, Tk), where each dimension
/// but the last may be 1 -> (N, Tq, H D).
///
/// # Errors
///
/// Those of [`attention`], no keys, and more queries than keys in a causal attention.
pub fn cross_attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    config: AttentionConfig,
) -> Result<Tensor> {
    let (batch, queries, columns) = rows_of("queries", q)?;
    let (_, keys, _) = rows_of("keys", k)?;
    let dim = head_size(columns, check_heads(&config)?, "queries", q)?;
    let expected = [batch, keys, config.kv_heads * dim];
    for (what, xs) in [("keys", k), ("values", v)] {
        if xs.dims() != expected {
            bail!("{NAME}: {what} of shape {:?}, expected {expected:?}", xs.shape());
        }
    }
    if keys == 0 {
        bail!("{NAME}: no keys, of shape {:?}", k.shape());
    }
    if config.causal && queries > keys {
        bail!(
            "{NAME}: {queries} queries to {keys} keys, but a causal attention needs as many keys"
        );
    }
    let op = Attention::<false>::new((batch, queries, keys), dim, (mask, q.dtype()), config)?;
    fused::run(op, q.shape(), &[Some(q), Some(k), Some(v), mask])
}

fn check_heads(config: &AttentionConfig) -> Result<usize> {
    let &AttentionConfig { heads, kv_heads, .. } = config;
    if heads == 0 || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        bail!("{NAME}: {kv_heads} heads of keys and values do not divide {heads} heads of queries");
    }
    Ok(heads)
}

fn head_size(columns: usize, heads: usize, what: &str, xs: &Tensor) -> Result<usize> {
    if columns == 0 || !columns.is_multiple_of(heads) {
        bail!("{NAME}: {what} of shape {:?} do not divide into {heads} heads", xs.shape());
    }
    Ok(columns / heads)
}

/// `PACKED`: the inputs are queries, keys and values in one tensor, and the mask. Otherwise they are
/// three tensors, and the mask.
pub(super) struct Attention<const PACKED: bool> {
    pub(super) geometry: AttentionGeometry,
    pub(super) rotary: Option<RotaryTable>,
    pub(super) mask: Option<MaskLayout>,
}

impl<const PACKED: bool> Attention<PACKED> {
    fn new(
        (batch, queries, keys): (usize, usize, usize),
        dim: usize,
        (mask, dtype): (Option<&Tensor>, DType),
        config: AttentionConfig,
    ) -> Result<Self> {
        let AttentionConfig { heads, kv_heads, causal, rotary, scale } = config;
        let scale = scale.unwrap_or(1.0 / (dim as f64).sqrt());
        let geometry =
            AttentionGeometry { batch, queries, keys, heads, kv_heads, dim, causal, scale };
        let rotary = rotary.map(|rotary| RotaryTable::new(rotary, &geometry, NAME)).transpose()?;
        let mask = mask.map(|mask| MaskLayout::new(mask, dtype, &geometry, NAME)).transpose()?;
        Ok(Self { geometry, rotary, mask })
    }

    fn operands<'a, T: Float>(&'a self, inputs: &[&'a [T]]) -> Operands<'a, T> {
        let geometry = &self.geometry;
        let (heads, mask) = match (PACKED, inputs) {
            (true, &[qkv, mask]) => (HeadLayout::packed(qkv, geometry), mask),
            (false, &[q, k, v, mask]) => {
                let key =
                    |xs| HeadLayout::whole(xs, geometry.keys, geometry.key_columns(), geometry.dim);
                ([self.results(q), key(k), key(v)], mask)
            }
            _ => unreachable!("two inputs, or four"),
        };
        let masking = Masking { mask: self.mask.map(|layout| (layout, mask)) };
        Operands { geometry, rotary: self.rotary.as_ref(), masking, heads }
    }

    fn results<'a, T>(&self, ys: &'a [T]) -> HeadLayout<'a, T> {
        let geometry = &self.geometry;
        HeadLayout::whole(ys, geometry.queries, geometry.query_columns(), geometry.dim)
    }

    /// Calls `run` for each sequence and head of keys and values, with what belongs to it.
    fn for_each<X: Send>(&self, parts: Vec<X>, run: impl Fn((usize, usize), X) + Sync) {
        let &AttentionGeometry { batch, queries, keys, heads, kv_heads, .. } = &self.geometry;
        let place = |task: usize| (task / kv_heads, task % kv_heads);
        let threads = worth_threads(batch * heads * queries * keys);
        let parts = parts.into_par_iter().enumerate();
        for_each(threads, parts, |(task, part)| run(place(task), part));
    }

    /// The columns of each head of keys and values in a tensor of `batch` times `rows` rows, where the
    /// widths of a head are given for each kind of columns. By kind, then by sequence and head.
    fn columns<'a, T, const KINDS: usize>(
        &self,
        data: &'a mut [T],
        rows: usize,
        widths: [usize; KINDS],
    ) -> [Vec<MatMut<'a, T>>; KINDS] {
        let row = self.geometry.kv_heads * widths.iter().sum::<usize>();
        let mut parts = [const { Vec::new() }; KINDS];
        if rows * row == 0 {
            return parts;
        }
        for sequence in data.chunks_exact_mut(rows * row) {
            let mut rest = MatMut::new(sequence, rows, row);
            for (parts, width) in parts.iter_mut().zip(widths) {
                for _ in 0..self.geometry.kv_heads {
                    let (part, others) = rest.split_columns(width);
                    parts.push(part);
                    rest = others;
                }
            }
        }
        parts
    }
}

impl<const PACKED: bool> FusedOp for Attention<PACKED> {
    const NAME: &'static str = NAME;

    fn reads(&self) -> BackwardReads {
        let inputs = if PACKED {
            BackwardReads::inputs(&[0, 1])
        } else {
            BackwardReads::inputs(&[0, 1, 2, 3])
        };
        inputs.and_output(true)
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let geometry = &self.geometry;
        let (queries, group) = (geometry.queries, geometry.group());
        let mut lse = Pooled::new(geometry.batch * geometry.heads * queries);
        if ys.is_empty() {
            return Ok(lse);
        }
        let operands = self.operands(inputs);
        let [columns] = self.columns(ys, queries, [group * geometry.dim]);
        let parts = columns.into_iter().zip(lse.chunks_exact_mut(group * queries)).collect();
        self.for_each(parts, |place, (ys, lse)| forward::forward(&operands, place, ys, lse));
        Ok(lse)
    }

    fn backward<T: Float>(&self, pass: Backward<'_, T>) -> Result<()> {
        let Backward { inputs, ys, saved, dys, mut grads, .. } = pass;
        let geometry = &self.geometry;
        let &AttentionGeometry { batch, queries, keys, kv_heads, dim, .. } = geometry;
        let (tasks, group) = (batch * kv_heads, geometry.group());
        let mut gradients: [Vec<Option<MatMut<'_, T>>>; 3] =
            [const { Vec::new() }; 3].map(|mut none: Vec<_>| {
                none.resize_with(tasks, || None);
                none
            });
        let wanted: Vec<_> = (0..3).map(|number| grads.take(number)).collect();
        if dys.is_empty() {
            wanted.into_iter().flatten().for_each(|gradient| gradient.fill(T::zero()));
            return Ok(());
        }
        if PACKED {
            let Some(dqkv) = wanted.into_iter().next().flatten() else { return Ok(()) };
            let columns = self.columns(dqkv, keys, [group * dim, dim, dim]);
            gradients = columns.map(|parts| parts.into_iter().map(Some).collect());
        } else {
            let sizes = [(queries, group * dim), (keys, dim), (keys, dim)];
            for ((gradients, wanted), (rows, width)) in gradients.iter_mut().zip(wanted).zip(sizes)
            {
                let Some(gradient) = wanted else { continue };
                let [columns] = self.columns(gradient, rows, [width]);
                *gradients = columns.into_iter().map(Some).collect();
            }
        }
        let operands = self.operands(inputs);
        let results = Results { ys: self.results(ys), dys: self.results(dys) };
        let [queries_of, keys_of, values_of] = gradients;
        let parts = queries_of.into_iter().zip(keys_of).zip(values_of);
        let parts = parts.zip(saved.chunks_exact(group * queries)).collect();
        self.for_each(parts, |place, (((queries, keys), values), lse): (_, &[T])| {
            let gradients = AttentionGradients { queries, keys, values };
            backward::backward(&operands, results, place, lse, gradients);
        });
        Ok(())
    }

    fn on_gpu(&self) -> Option<&dyn GpuKernels> {
        Some(self)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let geometry = &self.geometry;
        let rotary = self.rotary.as_ref();
        match (PACKED, inputs) {
            (true, [Some(qkv), mask]) => {
                let (queries, keys) = (geometry.query_columns(), geometry.key_columns());
                let q = qkv.narrow(2, 0, queries)?;
                let k = qkv.narrow(2, queries, keys)?;
                let v = qkv.narrow(2, queries + keys, keys)?;
                composite::composite([&q, &k, &v], mask.as_ref(), geometry, rotary)
            }
            (false, [Some(q), Some(k), Some(v), mask]) => {
                composite::composite([q, k, v], mask.as_ref(), geometry, rotary)
            }
            _ => unreachable!("two inputs, or four"),
        }
    }
}
