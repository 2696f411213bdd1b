//! The backward pass of the heads that share one head of keys and values. The scores are computed
//! again, block by block.

use candelabrum_memory::simd::simd;

use super::super::float::Float;
use super::super::mat_mut::MatMut;
use super::super::matmul::{Dst, Mat, matmul_into};
use super::super::pool::Pooled;
use super::forward::{Operands, score_scratch};
use super::geometry::{Geometry, Heads, KEYS};
use super::scores::{Block, dot};

/// The gradients of the operands that the task writes: those of the queries (queries, group · D), of
/// the keys and of the values (keys, D).
pub(super) struct Gradients<'a, T> {
    pub(super) queries: Option<MatMut<'a, T>>,
    pub(super) keys: Option<MatMut<'a, T>>,
    pub(super) values: Option<MatMut<'a, T>>,
}

/// What the backward pass reads beside the operands.
#[derive(Clone, Copy)]
pub(super) struct Results<'a, T> {
    pub(super) ys: Heads<'a, T>,
    pub(super) dys: Heads<'a, T>,
}

/// Writes all `gradients` of the heads that use head `kv_head`. `lse` is what the forward saved for
/// them.
///
/// Keys are the outer loop, because their gradients are sums over all queries and heads, and queries
/// run from the last to the first: with a causal mask the last block of queries sees all keys, so its
/// products overwrite every row of the gradients and nothing has to be cleared.
pub(super) fn backward<T: Float>(
    operands: &Operands<'_, T>,
    results: Results<'_, T>,
    (sequence, kv_head): (usize, usize),
    lse: &[T],
    mut gradients: Gradients<'_, T>,
) {
    let geometry = operands.geometry;
    let &Geometry { queries, dim, .. } = geometry;
    let scale = T::from_f64(geometry.scale);
    let group = geometry.group();
    let delta = deltas(results, geometry, (sequence, kv_head));
    let keys = operands.keys(sequence, kv_head);
    let (mut scores, mut dp) = (score_scratch(geometry), score_scratch(geometry));
    let mut scratch = operands.query_scratch();
    for key in (0..geometry.keys).step_by(KEYS) {
        let panel = KEYS.min(geometry.keys - key);
        let mut dst = Dst::Overwrite;
        for member in 0..group {
            let head = kv_head * group + member;
            for query in (0..queries).step_by(geometry.block()).rev() {
                let count = geometry.block().min(queries - query);
                let visible = geometry.visible(query + count - 1).saturating_sub(key).min(panel);
                if visible == 0 {
                    continue;
                }
                let block = Block { sequence, head, query, queries: count, key, keys: visible };
                let (q_rows, k_rows) = (query..query + count, key..key + visible);
                let (scores, dp) = (&mut scores[..count * visible], &mut dp[..count * visible]);
                let q = operands.queries(&block, &mut scratch);
                let k = keys.rows((sequence, kv_head), k_rows.clone(), dim);
                let v = operands.heads[2].rows(sequence, kv_head, k_rows.clone());
                let dy = results.dys.rows(sequence, head, q_rows.clone());
                matmul_into(MatMut::new(scores, count, visible), Dst::Overwrite, scale, q, k.t());
                matmul_into(MatMut::new(dp, count, visible), Dst::Overwrite, T::one(), dy, v.t());
                let rows = member * queries + query..member * queries + query + count;
                let sums = (&lse[rows.clone()], &delta[rows]);
                operands.masking.gradients(&block, (scores, dp), sums);
                let (p, ds) = (Mat::new(scores, count, visible), Mat::new(dp, count, visible));
                if let Some(dv) = &mut gradients.values {
                    matmul_into(dv.part(k_rows.clone(), 0..dim), dst, T::one(), p.t(), dy);
                }
                if let Some(dk) = &mut gradients.keys {
                    matmul_into(dk.part(k_rows, 0..dim), dst, scale, ds.t(), q);
                }
                if let Some(dq) = &mut gradients.queries {
                    let dst = if key == 0 { Dst::Overwrite } else { Dst::Add };
                    let dq = dq.part(q_rows, member * dim..(member + 1) * dim);
                    matmul_into(dq, dst, scale, ds, k);
                }
                dst = Dst::Add;
            }
        }
    }
    let Some(table) = operands.rotary else { return };
    simd(
        #[inline(always)]
        || {
            if let Some(dq) = &mut gradients.queries {
                for member in 0..group {
                    let dq = dq.part(0..queries, member * dim..(member + 1) * dim);
                    table.turn_back(table.shift(), dq);
                }
            }
            if let Some(dk) = &mut gradients.keys {
                table.turn_back(0, dk.part(0..geometry.keys, 0..dim));
            }
        },
    );
}

/// For each head of the group and each query: the sum of `dy y`, which is also the sum over all keys of
/// the probabilities times their gradients (FlashAttention-2, section 3.1.2).
fn deltas<T: Float>(
    Results { ys, dys }: Results<'_, T>,
    geometry: &Geometry,
    (sequence, kv_head): (usize, usize),
) -> Pooled<T> {
    let (group, queries) = (geometry.group(), geometry.queries);
    let mut deltas = Pooled::new(group * queries);
    simd(
        #[inline(always)]
        || {
            for (index, delta) in deltas.iter_mut().enumerate() {
                let (head, query) = (kv_head * group + index / queries, index % queries);
                *delta = dot(ys.row(sequence, head, query), dys.row(sequence, head, query));
            }
        },
    );
    deltas
}
