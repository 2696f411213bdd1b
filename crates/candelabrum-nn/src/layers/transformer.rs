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
    feed_forward: FeedForward,
    parts: OnceCell<Parts>,
}

#[derive(Debug)]
struct Parts {
    norm1: Norm,
    norm2: Norm,
}

#[derive(Debug)]
enum Norm {
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
            feed_forward: FeedForward::new(scope),
            parts: OnceCell::new(),
        }
    }

    /// Hides from each position those behind it.
    #[must_use]
    pub fn causal(mut self) -> Self {
        self.attention = self.attention.causal();
        self
    }

    /// The number of heads of keys and values, which divides the number of heads.
    #[must_use]
    pub fn kv_heads(mut self, kv_heads: usize) -> Self {
        self.attention = self.attention.kv_heads(kv_heads);
        self
    }

    /// Rotates queries and keys by their positions.
    #[must_use]
    pub fn rotary(mut self, rotary: Rotary) -> Self {
        self.attention = self.attention.rotary(rotary);
        self
    }

    /// Normalises by the root mean square instead of mean and variance.
    #[must_use]
    pub fn rms_norm(mut self) -> Self {
        self.rms = true;
        self
    }

    /// The number of hidden units of the feed-forward branch, instead of `4 C`, or of `8 C / 3` with
    /// SwiGLU, which then has as many parameters.
    #[must_use]
    pub fn hidden(mut self, hidden: usize) -> Self {
        self.feed_forward = self.feed_forward.hidden(hidden);
        self
    }

    /// The activation of the hidden units, instead of GELU.
    #[must_use]
    pub fn activation(mut self, activation: Activation) -> Self {
        self.feed_forward = self.feed_forward.activation(activation);
        self
    }

    /// Gates the hidden units: [`swiglu`](crate::ops::swiglu).
    #[must_use]
    pub fn swiglu(mut self) -> Self {
        self.feed_forward = self.feed_forward.swiglu();
        self
    }

    /// Makes linear layers without biases.
    #[must_use]
    pub fn no_bias(mut self) -> Self {
        self.attention = self.attention.no_bias();
        self.feed_forward = self.feed_forward.no_bias();
        self
    }

    /// Drops each element of both branches' results with probability `p` in training.
    #[must_use]
    pub fn dropout(mut self, p: f32) -> Self {
        self.attention = self.attention.dropout(p);
        self.feed_forward = self.feed_forward.dropout(p);
        self
    }

    /// The distribution of the initial weights of all linear layers.
    #[must_use]
    pub fn init(mut self, init: Init) -> Self {
        self.attention = self.attention.init(init).out_init(init);
        self.feed_forward = self.feed_forward.init(init);
        self
    }

    /// The distribution of the initial weights of `attention.out` and `down`, whose results are added
    /// to the residual. Call it after [`init`](Self::init).
    #[must_use]
    pub fn residual_init(mut self, init: Init) -> Self {
        self.attention = self.attention.out_init(init);
        self.feed_forward = self.feed_forward.residual_init(init);
        self
    }

    /// The block with `mask` added to the scores of its attention, as [`attention`](crate::ops::attention()) does.
    ///
    /// # Errors
    /// Shapes that do not fit together.
    pub fn forward_masked(&self, xs: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let [_, _, _] = sizes(&self.scope, xs, "(N, T, C)")?;
        let Parts { norm1, norm2 } = self.parts.get_or_init(|| self.create());
        let xs = self.attention.forward_add(&norm1.forward(xs)?, mask, xs)?;
        self.feed_forward.forward_add(&norm2.forward(&xs)?, &xs)
    }

    fn create(&self) -> Parts {
        let norm = |name| {
            let scope = self.scope.pp(name);
            if self.rms {
                Norm::Rms(RmsNorm::new(&scope))
            } else {
                Norm::Layer(LayerNorm::new(&scope))
            }
        };
        Parts { norm1: norm("norm1"), norm2: norm("norm2") }
    }
}

impl Module for TransformerBlock {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.forward_masked(xs, None)
    }
}

impl Module for Norm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::Layer(norm) => norm.forward(xs),
            Self::Rms(norm) => norm.forward(xs),
        }
    }
}
