//! Llama (Touvron et al., arXiv:2302.13971) and the models of its structure: Llama 2 and 3, Mistral, Qwen 2 and 3,
//! SmolLM.

use candelabrum_nn::Scope;
use candelabrum_nn::layers::{Blocks, Embedding, Linear, RmsNorm};
use candelabrum_nn::ops::{self, AttentionConfig};
use candle_core::{Module, Result as CandleResult, Tensor};

use super::common::{causal_window, linear, new_layer_init};
use super::head::LmHead;
use super::llama_config::LlamaConfig;
use crate::cache::{Cache, LayerCache};
use crate::config::Config;
use crate::error::Result;

/// A decoder of the Llama family: tokens `(N, T) -> (N, T, width)`, and the head that makes logits of the states.
#[derive(Debug)]
pub(crate) struct Llama {
    config: LlamaConfig,
    embed_tokens: Embedding,
    layers: Blocks<Layer>,
    norm: RmsNorm,
    lm_head: Option<Linear>,
}

#[derive(Debug)]
struct Layer {
    input_layernorm: RmsNorm,
    attention: LlamaAttention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
    window: Option<usize>,
}

#[derive(Debug)]
struct LlamaAttention {
    config: AttentionConfig,
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    /// Of each head of queries and of keys.
    norms: Option<[RmsNorm; 2]>,
}

#[derive(Debug)]
struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl Llama {
    /// The network of this `config.json`.
    ///
    /// # Errors
    /// A config that lacks a size, or has a variant that is not supported.
    pub(crate) fn new(scope: &Scope, config: &Config) -> Result<Self> {
        let config = LlamaConfig::new(config)?;
        let model = scope.pp("model");
        let norm = |scope: &Scope, name: &str| RmsNorm::new(&scope.pp(name)).eps(config.eps);
        let layer = |number: usize| {
            let scope = model.pp("layers").pp(number);
            Layer {
                input_layernorm: norm(&scope, "input_layernorm"),
                attention: LlamaAttention::new(&scope.pp("self_attn"), &config),
                post_attention_layernorm: norm(&scope, "post_attention_layernorm"),
                mlp: Mlp::new(&scope.pp("mlp"), &config),
                window: config.windows[number],
            }
        };
        let head = || linear(scope, "lm_head", config.vocabulary, false).output();
        Ok(Self {
            embed_tokens: Embedding::new(
                &model.pp("embed_tokens"),
                config.vocabulary,
                config.width,
            )
            .init(new_layer_init()),
            layers: Blocks::new(scope, (0..config.layers).map(layer)),
            norm: norm(&model, "norm"),
            lm_head: (!config.tied).then(head),
            config,
        })
    }

    /// The rows of the table of tokens.
    pub(crate) fn vocabulary(&self) -> usize {
        self.config.vocabulary
    }

    /// The largest number of tokens of a sequence.
    pub(crate) fn context(&self) -> usize {
        self.config.context.unwrap_or(usize::MAX)
    }

    /// The features of every token behind the last layer and its norm, `(N, T) -> (N, T, width)`. With a cache, `tokens`
    /// (1, T) follow those that the cache has.
    ///
    /// # Errors
    /// A token that is not in the vocabulary.
    pub(crate) fn states(
        &self,
        tokens: &Tensor,
        cache: Option<&mut Cache>,
    ) -> CandleResult<Tensor> {
        let mut caches = cache.map(|cache| cache.layers(self.layers.len())).transpose()?;
        let mut xs = self.embed_tokens.forward(tokens)?;
        let Some(caches) = &mut caches else {
            let xs = self.layers.forward_by(&xs, |layer, xs| layer.forward(xs, None))?;
            return self.norm.forward(&xs);
        };
        self.layers.try_for_each(|number, layer| {
            xs = layer.forward(&xs, Some(&mut caches[number]))?;
            Ok(())
        })?;
        self.norm.forward(&xs)
    }

    /// The matrix that makes logits of states, `(vocabulary, width)`.
    ///
    /// # Errors
    /// Only candle's own.
    pub(crate) fn head(&self) -> CandleResult<LmHead<'_>> {
        Ok(match &self.lm_head {
            Some(head) => LmHead::Layer(head),
            None => LmHead::Table(self.embed_tokens.table()?),
        })
    }
}

impl Layer {
    fn forward(&self, xs: &Tensor, cache: Option<&mut LayerCache>) -> CandleResult<Tensor> {
        let normed = self.input_layernorm.forward(xs)?;
        let xs = self.attention.forward_add(&normed, self.window, xs, cache)?;
        self.mlp.forward_add(&self.post_attention_layernorm.forward(&xs)?, &xs)
    }
}

impl LlamaAttention {
    fn new(scope: &Scope, config: &LlamaConfig) -> Self {
        let &LlamaConfig { heads, kv_heads, head_dim, qkv_bias, out_bias, eps, .. } = config;
        let norm = |name: &str| RmsNorm::new(&scope.pp(name)).eps(eps);
        Self {
            config: config.attention(),
            q_proj: linear(scope, "q_proj", heads * head_dim, qkv_bias),
            k_proj: linear(scope, "k_proj", kv_heads * head_dim, qkv_bias),
            v_proj: linear(scope, "v_proj", kv_heads * head_dim, qkv_bias),
            o_proj: linear(scope, "o_proj", config.width, out_bias),
            norms: config.head_norms.then(|| [norm("q_norm"), norm("k_norm")]),
        }
    }

    /// The result of the attention within `xs`, added to `residual`.
    fn forward_add(
        &self,
        xs: &Tensor,
        window: Option<usize>,
        residual: &Tensor,
        cache: Option<&mut LayerCache>,
    ) -> CandleResult<Tensor> {
        let mut q = self.q_proj.forward(xs)?;
        let mut k = self.k_proj.forward(xs)?;
        let mut v = self.v_proj.forward(xs)?;
        if let Some([q_norm, k_norm]) = &self.norms {
            q = normed_heads(q_norm, &q, self.config.heads)?;
            k = normed_heads(k_norm, &k, self.config.kv_heads)?;
        }
        if let Some(cache) = cache {
            (k, v) = cache.append(&k, &v)?;
        }
        let mask = window.map(|window| causal_window(&q, &k, window)).transpose()?.flatten();
        let ys = ops::cross_attention(&q, &k, &v, mask.as_ref(), self.config)?;
        self.o_proj.forward_add(&ys, residual)
    }
}

/// Each head of `xs` (N, T, heads · D), normalised for itself.
fn normed_heads(norm: &RmsNorm, xs: &Tensor, heads: usize) -> CandleResult<Tensor> {
    let (batch, length, columns) = xs.dims3()?;
    let heads = xs.reshape((batch, length, heads, columns / heads))?;
    norm.forward(&heads)?.reshape((batch, length, columns))
}

impl Mlp {
    fn new(scope: &Scope, config: &LlamaConfig) -> Self {
        let &LlamaConfig { hidden, width, mlp_bias, .. } = config;
        Self {
            gate_proj: linear(scope, "gate_proj", hidden, mlp_bias),
            up_proj: linear(scope, "up_proj", hidden, mlp_bias),
            down_proj: linear(scope, "down_proj", width, mlp_bias),
        }
    }

    fn forward_add(&self, xs: &Tensor, residual: &Tensor) -> CandleResult<Tensor> {
        let hidden = ops::silu_mul(&self.gate_proj.forward(xs)?, &self.up_proj.forward(xs)?)?;
        self.down_proj.forward_add(&hidden, residual)
    }
}

/// The tensors that files of Llamas have besides parameters.
pub(crate) fn is_known(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq")
}
