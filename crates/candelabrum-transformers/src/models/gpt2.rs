//! GPT-2 (Radford et al., 2019).

use candelabrum_nn::layers::{Blocks, Dropout, Embedding, LayerNorm, Linear};
use candelabrum_nn::ops::{self, AttentionConfig};
use candelabrum_nn::{Activation, Scope};
use candle_core::{Module, Result as CandleResult, Tensor, bail};

use super::common::{add_to_residual, linear, new_layer_init};
use super::head::LmHead;
use crate::cache::{Cache, LayerCache};
use crate::config::Config;
use crate::error::Result;

/// A decoder: tokens `(N, T) -> (N, T, width)`. The table of the tokens makes the logits. The probabilities of an
/// attention have no dropout.
#[derive(Debug)]
pub(crate) struct Gpt2 {
    vocabulary: usize,
    context: usize,
    wte: Embedding,
    wpe: Embedding,
    dropout: Option<Dropout>,
    blocks: Blocks<Gpt2Block>,
    ln_f: LayerNorm,
}

#[derive(Debug)]
struct Gpt2Block {
    config: AttentionConfig,
    ln_1: LayerNorm,
    c_attn: Linear,
    c_proj: Linear,
    ln_2: LayerNorm,
    c_fc: Linear,
    down: Linear,
    dropouts: Option<[Dropout; 2]>,
}

impl Gpt2 {
    /// The network of this `config.json`.
    ///
    /// # Errors
    /// A config that lacks a size, or has a variant that is not supported.
    pub(crate) fn new(scope: &Scope, config: &Config) -> Result<Self> {
        let width = config.needed("n_embd")?;
        let heads = config.heads("n_head", width)?;
        if config.flag("scale_attn_by_inverse_layer_idx")?.unwrap_or(false) {
            let what = "has scale_attn_by_inverse_layer_idx, which is not supported";
            return Err(config.fault(what.to_owned()));
        }
        if config.flag("tie_word_embeddings")? == Some(false) {
            return Err(config.fault("has a head of its own, which is not supported".to_owned()));
        }
        let hidden = config.size("n_inner")?.unwrap_or(4 * width);
        let eps = config.real("layer_norm_epsilon")?.unwrap_or(1e-5);
        let activation = config.activation("activation_function", "gelu_new")?;
        let residual_dropout = config.dropout_or("resid_pdrop", 0.1)?;
        let scales = config.flag("scale_attn_weights")?.unwrap_or(true);
        let scope = scope.pp("transformer");
        let sizes = BlockSizes { width, hidden, heads, eps, activation, residual_dropout, scales };
        let block = |number: usize| Gpt2Block::new(&scope.pp("h").pp(number), sizes);
        let (vocabulary, context) = (config.needed("vocab_size")?, config.needed("n_positions")?);
        let table = |name: &str, rows: usize| {
            Embedding::new(&scope.pp(name), rows, width).init(new_layer_init())
        };
        let p = config.dropout_or("embd_pdrop", 0.1)?;
        Ok(Self {
            vocabulary,
            context,
            wte: table("wte", vocabulary),
            wpe: table("wpe", context),
            dropout: (p > 0.0).then(|| Dropout::new(&scope.pp("drop"), p)),
            blocks: Blocks::new(&scope, (0..config.layers("n_layer")?).map(block)),
            ln_f: LayerNorm::new(&scope.pp("ln_f")).eps(eps),
        })
    }

    /// The rows of the table of tokens.
    pub(crate) fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The largest number of tokens of a sequence.
    pub(crate) fn context(&self) -> usize {
        self.context
    }

    /// The features of every token behind the last block and its norm, `(N, T) -> (N, T, width)`. With a cache, `tokens`
    /// (1, T) follow those that the cache has.
    ///
    /// # Errors
    /// A token that is not in the vocabulary, or more tokens than positions.
    pub(crate) fn states(
        &self,
        tokens: &Tensor,
        cache: Option<&mut Cache>,
    ) -> CandleResult<Tensor> {
        let (_, length) = tokens.dims2()?;
        let first = cache.as_ref().map_or(0, |cache| cache.len());
        let end = first + length;
        if end > self.context {
            bail!("a sequence of {end} tokens, but the model has {} positions", self.context)
        }
        let mut caches = cache.map(|cache| cache.layers(self.blocks.len())).transpose()?;
        let positions = Tensor::arange(first as u32, end as u32, tokens.device())?;
        let rows = self.wte.forward(tokens)?;
        let mut xs = ops::add(&rows, &self.wpe.forward(&positions)?, None)?;
        if let Some(dropout) = &self.dropout {
            xs = dropout.forward(&xs)?;
        }
        let Some(caches) = &mut caches else {
            let xs = self.blocks.forward_by(&xs, |block, xs| block.forward(xs, None))?;
            return self.ln_f.forward(&xs);
        };
        self.blocks.try_for_each(|number, block| {
            xs = block.forward(&xs, Some(&mut caches[number]))?;
            Ok(())
        })?;
        self.ln_f.forward(&xs)
    }

    /// What makes logits of states.
    ///
    /// # Errors
    /// Only candle's own.
    pub(crate) fn head(&self) -> CandleResult<LmHead<'_>> {
        Ok(LmHead::Table(self.wte.table()?))
    }
}

#[derive(Clone, Copy)]
struct BlockSizes {
    width: usize,
    hidden: usize,
    heads: usize,
    eps: f64,
    activation: Activation,
    residual_dropout: f32,
    /// Whether the scores are divided by the square root of a head's size.
    scales: bool,
}

impl Gpt2Block {
    fn new(scope: &Scope, sizes: BlockSizes) -> Self {
        let BlockSizes { width, hidden, heads, eps, activation, residual_dropout: p, scales } =
            sizes;
        let (attn, mlp) = (scope.pp("attn"), scope.pp("mlp"));
        let norm = |name: &str| LayerNorm::new(&scope.pp(name)).eps(eps);
        let drop = |scope: &Scope| Dropout::new(&scope.pp("dropout"), p);
        let scale = if scales { None } else { Some(1.0) };
        Self {
            config: AttentionConfig { causal: true, scale, ..AttentionConfig::new(heads) },
            ln_1: norm("ln_1"),
            c_attn: linear(&attn, "c_attn", 3 * width, true),
            c_proj: linear(&attn, "c_proj", width, true),
            ln_2: norm("ln_2"),
            c_fc: linear(&mlp, "c_fc", hidden, true).activation(activation),
            down: linear(&mlp, "c_proj", width, true),
            dropouts: (p > 0.0).then(|| [drop(&attn), drop(&mlp)]),
        }
    }

    fn forward(&self, xs: &Tensor, cache: Option<&mut LayerCache>) -> CandleResult<Tensor> {
        let qkv = self.c_attn.forward(&self.ln_1.forward(xs)?)?;
        let ys = match cache {
            None => ops::attention(&qkv, None, self.config)?,
            Some(cache) => {
                let width = qkv.dim(2)? / 3;
                let [q, k, v] = [0, 1, 2].map(|part| qkv.narrow(2, part * width, width));
                let (k, v) = cache.append(&k?, &v?)?;
                ops::cross_attention(&q?, &k, &v, None, self.config)?
            }
        };
        let xs = self.add(0, &self.c_proj, &ys, xs)?;
        let hidden = self.c_fc.forward(&self.ln_2.forward(&xs)?)?;
        self.add(1, &self.down, &hidden, &xs)
    }

    fn add(
        &self,
        branch: usize,
        layer: &Linear,
        xs: &Tensor,
        residual: &Tensor,
    ) -> CandleResult<Tensor> {
        let dropout = self.dropouts.as_ref().map(|dropouts| &dropouts[branch]);
        add_to_residual(layer, dropout, xs, residual)
    }
}

/// GPT-2's files have the weights of linear layers as `(inputs, outputs)`.
pub(crate) fn is_transposed(name: &str) -> bool {
    ["c_attn.weight", "c_proj.weight", "c_fc.weight"].iter().any(|part| name.ends_with(part))
}

/// What files of GPT-2 have besides parameters: masks.
pub(crate) fn is_known(name: &str) -> bool {
    name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")
}
