//! DistilBERT (Sanh et al., arXiv:1910.01108): BERT with half of the layers, and without types of tokens.

use candelabrum_nn::layers::{Dropout, Embedding, LayerNorm, Linear};
use candelabrum_nn::{Activation, Scope, ops};
use candle_core::{Module, Result as CandleResult, Tensor};

use super::common::{linear, new_layer_init, padding_mask};
use super::encoder_layer::{EncoderLayer, Names, Order, Sizes};
use super::head::first_token;
use crate::config::Config;
use crate::error::Result;

const NAMES: Names = Names {
    query: "attention.q_lin",
    key: "attention.k_lin",
    value: "attention.v_lin",
    out: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    up: "ffn.lin1",
    down: "ffn.lin2",
    norm: "output_layer_norm",
};

/// The constant of all normalisations, which the config does not say.
const EPS: f64 = 1e-12;

/// An encoder: tokens `(N, T) -> (N, T, width)`. Tokens with the number of the padding are hidden from the others. The
/// probabilities of an attention have no dropout.
#[derive(Debug)]
pub(crate) struct DistilBert {
    vocabulary: usize,
    /// The rows of the table of positions.
    longest: usize,
    padding: u32,
    width: usize,
    words: Embedding,
    positions: Embedding,
    norm: LayerNorm,
    dropout: Option<Dropout>,
    layers: Vec<EncoderLayer>,
}

impl DistilBert {
    /// The network of this `config.json`, with names below `distilbert`, or, for an encoder `alone`, as it is saved
    /// without a head.
    ///
    /// # Errors
    /// A config that lacks a size, or has a variant that is not supported.
    pub(crate) fn new(scope: &Scope, config: &Config, alone: bool) -> Result<Self> {
        let width = config.needed("dim")?;
        let sizes = Sizes {
            width,
            hidden: config.needed("hidden_dim")?,
            heads: config.heads("n_heads", width)?,
            eps: EPS,
            activation: config.activation("activation", "gelu")?,
            dropout: config.dropout("dropout")?,
            qkv_bias: true,
        };
        let scope = if alone { scope.clone() } else { scope.pp("distilbert") };
        let (embeddings, transformer) = (scope.pp("embeddings"), scope.pp("transformer"));
        let table = |name: &str, rows: usize| {
            Embedding::new(&embeddings.pp(name), rows, width).init(new_layer_init())
        };
        let layer = |number: usize| {
            EncoderLayer::new(&transformer.pp("layer").pp(number), NAMES, sizes, Order::Post)
        };
        let vocabulary = config.needed("vocab_size")?;
        let longest = config.needed("max_position_embeddings")?;
        let padding = config.size("pad_token_id")?.unwrap_or(0);
        let too_large = |_| config.fault(format!("has pad_token_id = {padding}"));
        Ok(Self {
            vocabulary,
            longest,
            padding: u32::try_from(padding).map_err(too_large)?,
            width,
            words: table("word_embeddings", vocabulary),
            positions: table("position_embeddings", longest),
            norm: LayerNorm::new(&embeddings.pp("LayerNorm")).eps(EPS),
            dropout: (sizes.dropout > 0.0)
                .then(|| Dropout::new(&embeddings.pp("dropout"), sizes.dropout)),
            layers: (0..config.needed("n_layers")?).map(layer).collect(),
        })
    }

    /// The features of every token behind the last layer, `(N, T) -> (N, T, width)`.
    ///
    /// # Errors
    /// A token that is not in the vocabulary, or a text that is longer than the positions.
    pub(crate) fn states(&self, tokens: &Tensor) -> CandleResult<Tensor> {
        let (_, length) = tokens.dims2()?;
        let places = self.positions.forward(&Tensor::arange(0, length as u32, tokens.device())?)?;
        let mut xs = self.norm.forward(&ops::add(&self.words.forward(tokens)?, &places, None)?)?;
        if let Some(dropout) = &self.dropout {
            xs = dropout.forward(&xs)?;
        }
        let mask = padding_mask(tokens, self.padding, xs.dtype())?;
        for layer in &self.layers {
            xs = layer.forward(&xs, mask.as_ref())?;
        }
        Ok(xs)
    }

    /// The rows of the table of tokens.
    pub(crate) fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The largest number of tokens of a text.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// The number of the padding token.
    pub(crate) fn padding(&self) -> u32 {
        self.padding
    }

    /// The head of a classifier.
    pub(crate) fn classifier(
        &self,
        scope: &Scope,
        config: &Config,
        classes: usize,
    ) -> Result<DistilBertHead> {
        let p = config.dropout("seq_classif_dropout")?;
        Ok(DistilBertHead {
            hidden: linear(scope, "pre_classifier", self.width, true).activation(Activation::Relu),
            dropout: (p > 0.0).then(|| Dropout::new(&scope.pp("dropout"), p)),
            out: Linear::new(&scope.pp("classifier"), classes).init(new_layer_init()),
        })
    }
}

/// The head of a classifier: of the first token's state.
#[derive(Debug)]
pub(crate) struct DistilBertHead {
    hidden: Linear,
    dropout: Option<Dropout>,
    out: Linear,
}

impl DistilBertHead {
    /// `(N, T, width) -> (N, classes)`.
    pub(crate) fn forward(&self, states: &Tensor) -> CandleResult<Tensor> {
        let mut xs = self.hidden.forward(&first_token(states)?)?;
        if let Some(dropout) = &self.dropout {
            xs = dropout.forward(&xs)?;
        }
        self.out.forward(&xs)
    }
}

/// What files of DistilBERTs have besides: the head of the pretraining.
pub(crate) fn is_known(name: &str) -> bool {
    name.starts_with("vocab_")
}
