//! A block of a transformer, with the normalisation before each branch (Xiong et al., arXiv:2002.04745).

use candle_core::{Module, Result, Tensor};
use once_cell::sync::OnceCell;

use super::{FeedForward, LayerNorm, MultiHeadAttention, RmsNorm, sizes};
use crate::ops::Rotary;
use crate::{Activation, Init, Scope};

/// `(N, T, C) -> (N, T, C)`: `x + attention(norm1(x))`, and then `x + down(act(up(norm2(x))))`.
///
/// The parameters are `norm1.weight`, `norm1.bias`, those of the
/// [`MultiHeadAttention`] `attention`, `norm2.weight`, `norm2.bias`, `up.weight`, `up.bias`,
/// `down.weight` and `down.bias`. Root-mean-square norms have no bias. With SwiGLU, `up` computes the
/// gates first and then the gated values.
#[derive(Debug)]
pub struct TransformerBlock {
    scope: Scope,
    attention: MultiHeadAttention,
    rms: bool,
    eps: Option<f64>,
    feed_forward: FeedForward,
    parts: OnceCell<LayerParts>,
}

#[derive(Debug)]
struct LayerParts {
    norm1: NormLayer,
    norm2: NormLayer,
}

#[derive(Debug)]
enum NormLayer {
    Layer(LayerNorm),
    Rms(RmsNorm),
}

impl TransformerBlock {
    /// A block of `heads` heads with layer norms and `4 C` hidden units with GELU.
    pub fn new(scope: &Scope, heads: usize) -> Self {
        Self {
            scope: scope.clone(),
            attention: MultiHeadAttention::new(&scope.pp("attention"), heads),
            rms: false,
            eps: None,
            feed_forward: FeedForward::new(scope),
            parts: OnceCell::new(),
        }
    }

    builder! { layer:
        /// Hides from each position those behind it.
        causal() => layer.attention = layer.attention.causal();
        /// The number of heads of keys and values, which divides the number of heads.
        kv_heads(kv_heads: usize) => layer.attention = layer.attention.kv_heads(kv_heads);
        /// Rotates queries and keys by their positions.
        rotary(rotary: Rotary) => layer.attention = layer.attention.rotary(rotary);
        /// Normalises by the root mean square instead of mean and variance.
        rms_norm() => layer.rms = true;
        /// The constant of both normalisations, instead of that of [`LayerNorm`] or [`RmsNorm`].
        eps(eps: f64) => layer.eps = Some(eps);
        /// The number of hidden units of the feed-forward branch, instead of `4 C`, or of `8 C / 3` with
        /// SwiGLU, which then has as many parameters.
        hidden(hidden: usize) => layer.feed_forward = layer.feed_forward.hidden(hidden);
        /// The activation of the hidden units, instead of GELU.
        activation(activation: Activation) => {
            layer.feed_forward = layer.feed_forward.activation(activation);
        };
        /// Gates the hidden units: [`swiglu`](crate::ops::swiglu).
        swiglu() => layer.feed_forward = layer.feed_forward.swiglu();
        /// Makes linear layers without biases.
        no_bias() => {
            layer.attention = layer.attention.no_bias();
            layer.feed_forward = layer.feed_forward.no_bias();
        };
        /// Drops each element of both branches' results with probability `p` in training.
        dropout(p: f32) => {
            layer.attention = layer.attention.dropout(p);
            layer.feed_forward = layer.feed_forward.dropout(p);
        };
        /// The distribution of the initial weights of all linear layers.
        init(init: Init) => {
            layer.attention = layer.attention.init(init).out_init(init);
            layer.feed_forward = layer.feed_forward.init(init);
        };
        /// The distribution of the initial weights of `attention.out` and `down`, whose results are added
        /// to the residual. Call it after [`init`](Self::init).
        residual_init(init: Init) => {
            layer.attention = layer.attention.out_init(init);
            layer.feed_forward = layer.feed_forward.residual_init(init);
        };
    }

    /// The block with `mask` added to the scores of its attention, as [`attention`](crate::ops::attention()) does.
    ///
    /// # Errors
    /// Shapes that do not fit together.
    pub fn forward_masked(&self, xs: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let [_, _, _] = sizes(&self.scope, xs, "(N, T, C)")?;
        let LayerParts { norm1, norm2 } = self.parts.get_or_init(|| self.create());
        let xs = self.attention.forward_add(&norm1.forward(xs)?, mask, xs)?;
        self.feed_forward.forward_add(&norm2.forward(&xs)?, &xs)
    }

    fn create(&self) -> LayerParts {
        let norm = |name| {
            let scope = self.scope.pp(name);
            match (self.rms, self.eps) {
                (true, None) => NormLayer::Rms(RmsNorm::new(&scope)),
                (true, Some(eps)) => NormLayer::Rms(RmsNorm::new(&scope).eps(eps)),
                (false, None) => NormLayer::Layer(LayerNorm::new(&scope)),
                (false, Some(eps)) => NormLayer::Layer(LayerNorm::new(&scope).eps(eps)),
            }
        };
        LayerParts { norm1: norm("norm1"), norm2: norm("norm2") }
    }
}

impl Module for TransformerBlock {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.forward_masked(xs, None)
    }
}

impl Module for NormLayer {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::Layer(norm) => norm.forward(xs),
            Self::Rms(norm) => norm.forward(xs),
        }
    }
}
