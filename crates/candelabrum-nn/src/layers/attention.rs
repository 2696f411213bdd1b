//! Attention with its projections (Vaswani et al., arXiv:1706.03762).

use candle_core::{Module, Result, Tensor};
use once_cell::sync::OnceCell;

use super::{Dropout, Linear, sizes};
use crate::ops::{self, AttentionConfig, Rotary};
use crate::{Init, Scope};

/// Attention of several heads, `(N, T, C) -> (N, T, C)`, with the projections of its input and of its
/// result. The operation is [`ops::attention()`].
///
/// Within one sequence ([`forward`](Module::forward), [`forward_masked`](Self::forward_masked)) one
/// linear layer `qkv` projects to queries, keys and values together, in this order: its weight is
/// `((heads + 2 kv_heads) D, C)` with D = C / heads. To another sequence
/// ([`forward_to`](Self::forward_to)) there are three, `q`, `k` and `v`. The layer `out` projects the
/// result. The first call decides which of the two kinds a layer is. All weights start Glorot-normal,
/// all biases at zero.
#[derive(Debug)]
pub struct MultiHeadAttention {
    scope: Scope,
    config: AttentionConfig,
    bias: bool,
    init: Option<Init>,
    out_init: Option<Init>,
    dropout: Option<Dropout>,
    projections: OnceCell<Projections>,
}

#[derive(Debug)]
struct Projections {
    inputs: ProjectionInputs,
    out: Linear,
}

#[derive(Debug)]
enum ProjectionInputs {
    Packed(Box<Linear>),
    Separate(Box<[Linear; 3]>),
}

impl MultiHeadAttention {
    /// `heads` heads, every key visible, with biases.
    pub fn new(scope: &Scope, heads: usize) -> Self {
        Self {
            scope: scope.clone(),
            config: AttentionConfig::new(heads),
            bias: true,
            init: None,
            out_init: None,
            dropout: None,
            projections: OnceCell::new(),
        }
    }

    builder! { layer:
        /// The number of heads of keys and values, which divides the number of heads.
        kv_heads(kv_heads: usize) => layer.config.kv_heads = kv_heads;
        /// Hides from each query the keys behind its own position.
        causal() => layer.config.causal = true;
        /// Rotates queries and keys by their positions.
        rotary(rotary: Rotary) => layer.config.rotary = Some(rotary);
        /// The factor of the scores, instead of `1 / sqrt(D)`.
        scale(scale: f64) => layer.config.scale = Some(scale);
        /// Makes projections without biases.
        no_bias() => layer.bias = false;
        /// Drops each element of the projected result with probability `p` in training.
        dropout(p: f32) => {
            layer.dropout = (p != 0.0).then(|| Dropout::new(&layer.scope.pp("dropout"), p));
        };
        /// The distribution of the initial weights of the projections of the input.
        init(init: Init) => layer.init = Some(init);
        /// The distribution of the initial weight of `out`.
        out_init(init: Init) => layer.out_init = Some(init);
    }

    /// Attention within `xs`, with `mask` added to the scores as [`ops::attention()`] does.
    ///
    /// # Errors
    /// Shapes that do not fit together, or a layer that was made for another sequence.
    pub fn forward_masked(&self, xs: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (ys, out) = self.attend(xs, mask)?;
        self.drop_out(out.forward(&ys)?)
    }

    /// Attention of `xs` `(N, Tq, C)` to `memory` `(N, Tk, M)`, with `mask` added to the scores.
    ///
    /// # Errors
    /// Shapes that do not fit together, or a layer that was made for one sequence.
    pub fn forward_to(
        &self,
        xs: &Tensor,
        memory: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let Projections { inputs, out } = self.projections(xs, false)?;
        let ProjectionInputs::Separate(layers) = inputs else {
            candle_core::bail!(
                "layer `{}` projects queries, keys and values of one sequence together",
                self.scope.path()
            )
        };
        let [q, k, v] = &**layers;
        let (q, k, v) = (q.forward(xs)?, k.forward(memory)?, v.forward(memory)?);
        let ys = ops::cross_attention(&q, &k, &v, mask, self.config)?;
        self.trace(&ys);
        self.drop_out(out.forward(&ys)?)
    }

    /// The result of attention within `xs`, added to `residual`.
    pub(super) fn forward_add(
        &self,
        xs: &Tensor,
        mask: Option<&Tensor>,
        residual: &Tensor,
    ) -> Result<Tensor> {
        let (ys, out) = self.attend(xs, mask)?;
        add_to_residual(out, self.dropout.as_ref(), &ys, residual)
    }

    /// The result of attention before its projection.
    fn attend(&self, xs: &Tensor, mask: Option<&Tensor>) -> Result<(Tensor, &Linear)> {
        let Projections { inputs, out } = self.projections(xs, true)?;
        let ProjectionInputs::Packed(qkv) = inputs else {
            candle_core::bail!(
                "layer `{}` projects queries, keys and values of two sequences apart",
                self.scope.path()
            )
        };
        let ys = ops::attention(&qkv.forward(xs)?, mask, self.config)?;
        self.trace(&ys);
        Ok((ys, out))
    }

    /// The layers around the attention. The first call makes them for the input `xs`.
    fn projections(&self, xs: &Tensor, packed: bool) -> Result<&Projections> {
        let [_, _, features] = sizes(&self.scope, xs, "(N, T, C)")?;
        self.projections.get_or_try_init(|| {
            let AttentionConfig { heads, kv_heads, .. } = self.config;
            if heads == 0 || features == 0 || !features.is_multiple_of(heads) {
                candle_core::bail!(
                    "layer `{}`: {features} features do not divide into {heads} heads",
                    self.scope.path()
                )
            }
            let dim = features / heads;
            let linear =
                |name, outputs, init| Linear::with(&self.scope.pp(name), outputs, self.bias, init);
            let input = |name, heads: usize| linear(name, heads * dim, self.init);
            let inputs = if packed {
                ProjectionInputs::Packed(Box::new(input("qkv", heads + 2 * kv_heads)))
            } else {
                let layers = [input("q", heads), input("k", kv_heads), input("v", kv_heads)];
                ProjectionInputs::Separate(Box::new(layers))
            };
            Ok(Projections { inputs, out: linear("out", features, self.out_init) })
        })
    }

    fn drop_out(&self, ys: Tensor) -> Result<Tensor> {
        if let Some(dropout) = &self.dropout { dropout.forward(&ys) } else { Ok(ys) }
    }

    fn trace(&self, ys: &Tensor) {
        let AttentionConfig { heads, causal, .. } = self.config;
        let causal = if causal { ", causal" } else { "" };
        self.scope.trace(&format!("Attention, {heads} heads{causal}"), ys);
    }
}

impl Module for MultiHeadAttention {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.forward_masked(xs, None)
    }
}

/// `residual + dropout(linear(xs))`, in one operation if nothing is dropped.
fn add_to_residual(
    linear: &Linear,
    dropout: Option<&Dropout>,
    xs: &Tensor,
    residual: &Tensor,
) -> Result<Tensor> {
    match dropout {
        None => linear.forward_add(xs, residual),
        Some(dropout) => ops::add(&dropout.forward(&linear.forward(xs)?)?, residual, None),
    }
}
