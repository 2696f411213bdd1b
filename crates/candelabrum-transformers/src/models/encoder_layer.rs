//! The layer of an encoder: attention between all tokens and a feed-forward network, under the names of a family.

use candelabrum_nn::layers::{Dropout, LayerNorm, Linear};
use candelabrum_nn::ops::{self, AttentionConfig};
use candelabrum_nn::{Activation, Scope};
use candle_core::{Module, Result, Tensor};

use super::common::{add_to_residual, linear};

/// The names of a layer's parts, below the layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerNames {
    pub(super) query: &'static str,
    pub(super) key: &'static str,
    pub(super) value: &'static str,
    pub(super) out: &'static str,
    pub(super) attention_norm: &'static str,
    pub(super) up: &'static str,
    pub(super) down: &'static str,
    pub(super) norm: &'static str,
}

/// The sizes of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerSizes {
    pub(super) width: usize,
    pub(super) hidden: usize,
    pub(super) heads: usize,
    pub(super) eps: f64,
    pub(super) activation: Activation,
    /// The probability of dropout of both branches' results.
    pub(super) dropout: f32,
    /// Whether queries, keys and values have biases.
    pub(super) qkv_bias: bool,
}

/// Where the normalisations are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NormOrder {
    /// Behind the sum of each branch and its input, as in BERT.
    Post,
    /// Before each branch, as in GPT-2 and ViT.
    Pre,
}

/// `(N, T, width) -> (N, T, width)`.
#[derive(Debug)]
pub(super) struct EncoderLayer {
    order: NormOrder,
    config: AttentionConfig,
    qkv: [Linear; 3],
    out: Linear,
    attention_norm: LayerNorm,
    up: Linear,
    down: Linear,
    norm: LayerNorm,
    dropouts: Option<[Dropout; 2]>,
}

impl EncoderLayer {
    pub(super) fn new(
        scope: &Scope,
        names: LayerNames,
        sizes: LayerSizes,
        order: NormOrder,
    ) -> Self {
        let LayerSizes { width, hidden, heads, eps, activation, dropout, qkv_bias } = sizes;
        let norm = |name: &str| LayerNorm::new(&scope.pp(name)).eps(eps);
        let qkv = [names.query, names.key, names.value];
        let drop = |name: &str| Dropout::new(&scope.pp(name), dropout);
        Self {
            order,
            config: AttentionConfig::new(heads),
            qkv: qkv.map(|name| linear(scope, name, width, qkv_bias)),
            out: linear(scope, names.out, width, true),
            attention_norm: norm(names.attention_norm),
            up: linear(scope, names.up, hidden, true).activation(activation),
            down: linear(scope, names.down, width, true),
            norm: norm(names.norm),
            dropouts: (dropout > 0.0).then(|| [drop("attention_dropout"), drop("output_dropout")]),
        }
    }

    /// `mask` is added to the scores of the attention.
    pub(super) fn forward(&self, xs: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        match self.order {
            NormOrder::Post => {
                let xs = self.attention_norm.forward(&self.attend(xs, mask, xs)?)?;
                self.norm.forward(&self.feed(&xs, &xs)?)
            }
            NormOrder::Pre => {
                let xs = self.attend(&self.attention_norm.forward(xs)?, mask, xs)?;
                self.feed(&self.norm.forward(&xs)?, &xs)
            }
        }
    }

    /// The result of attention within `xs`, added to `residual`.
    fn attend(&self, xs: &Tensor, mask: Option<&Tensor>, residual: &Tensor) -> Result<Tensor> {
        let [q, k, v] = &self.qkv;
        let (q, k, v) = (q.forward(xs)?, k.forward(xs)?, v.forward(xs)?);
        let ys = ops::cross_attention(&q, &k, &v, mask, self.config)?;
        self.add(0, &self.out, &ys, residual)
    }

    /// The result of the feed-forward network of `xs`, added to `residual`.
    fn feed(&self, xs: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.add(1, &self.down, &self.up.forward(xs)?, residual)
    }

    fn add(&self, branch: usize, layer: &Linear, xs: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let dropout = self.dropouts.as_ref().map(|dropouts| &dropouts[branch]);
        add_to_residual(layer, dropout, xs, residual)
    }
}
