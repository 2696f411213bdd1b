//! BERT (Devlin et al., arXiv:1810.04805) and RoBERTa (Liu et al., arXiv:1907.11692), and the smaller models of BERT's
//! structure, such as MiniLM.

use candelabrum_nn::layers::{Dropout, Embedding, LayerNorm, Linear};
use candelabrum_nn::{Activation, Scope, ops};
use candle_core::{Module, Result as CandleResult, Tensor};

use super::common::{linear, new_layer_init, padding_mask, positions_behind_padding};
use super::encoder_layer::{EncoderLayer, Names, Order, Sizes};
use super::head::first_token;
use crate::config::Config;
use crate::error::Result;

const NAMES: Names = Names {
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    out: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    norm: "output.LayerNorm",
};

/// An encoder of BERT's structure: tokens `(N, T) -> (N, T, width)`.
///
/// Tokens with the number of the padding are hidden from the others. The probabilities of an attention have no dropout,
/// whatever `attention_probs_dropout_prob` says.
#[derive(Debug)]
pub(crate) struct Bert {
    scope: Scope,
    kind: Kind,
    vocabulary: usize,
    /// The rows of the table of positions.
    longest: usize,
    padding: u32,
    width: usize,
    words: Embedding,
    positions: Embedding,
    token_types: Embedding,
    norm: LayerNorm,
    dropout: Option<Dropout>,
    layers: Vec<EncoderLayer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bert,
    Roberta,
}

impl Kind {
    /// The name of the part that all models of the family share.
    fn name(self) -> &'static str {
        match self {
            Self::Bert => "bert",
            Self::Roberta => "roberta",
        }
    }
}

impl Bert {
    /// The network of this `config.json`, with names below `bert` or `roberta`, or, for an encoder `alone`, as it is saved
    /// without a head.
    ///
    /// # Errors
    /// A config that lacks a size, or has a variant that is not supported.
    pub(crate) fn new(scope: &Scope, config: &Config, alone: bool) -> Result<Self> {
        let kind = if config.model_type()? == "bert" { Kind::Bert } else { Kind::Roberta };
        let width = config.needed("hidden_size")?;
        if !matches!(config.text("position_embedding_type")?, None | Some("absolute")) {
            return Err(config.fault("has positions that are not absolute".to_owned()));
        }
        let sizes = Sizes {
            width,
            hidden: config.needed("intermediate_size")?,
            heads: config.heads("num_attention_heads", width)?,
            eps: config.real("layer_norm_eps")?.unwrap_or(1e-12),
            activation: config.activation("hidden_act", "gelu")?,
            dropout: config.dropout("hidden_dropout_prob")?,
            qkv_bias: true,
        };
        let scope = if alone { scope.clone() } else { scope.pp(kind.name()) };
        let (embeddings, encoder) = (scope.pp("embeddings"), scope.pp("encoder"));
        let table = |name: &str, rows: usize| {
            Embedding::new(&embeddings.pp(name), rows, width).init(new_layer_init())
        };
        let layer = |number: usize| {
            EncoderLayer::new(&encoder.pp("layer").pp(number), NAMES, sizes, Order::Post)
        };
        let vocabulary = config.needed("vocab_size")?;
        let longest = config.needed("max_position_embeddings")?;
        let padding = config.size("pad_token_id")?.unwrap_or(match kind {
            Kind::Bert => 0,
            Kind::Roberta => 1,
        });
        let too_large = |_| config.fault(format!("has pad_token_id = {padding}"));
        Ok(Self {
            kind,
            vocabulary,
            longest,
            padding: u32::try_from(padding).map_err(too_large)?,
            width,
            words: table("word_embeddings", vocabulary),
            positions: table("position_embeddings", longest),
            token_types: table("token_type_embeddings", config.needed("type_vocab_size")?),
            norm: LayerNorm::new(&embeddings.pp("LayerNorm")).eps(sizes.eps),
            dropout: (sizes.dropout > 0.0)
                .then(|| Dropout::new(&embeddings.pp("dropout"), sizes.dropout)),
            layers: (0..config.needed("num_hidden_layers")?).map(layer).collect(),
            scope,
        })
    }

    /// The features of every token behind the last layer, `(N, T) -> (N, T, width)`.
    ///
    /// # Errors
    /// A token that is not in the vocabulary, or a text that is longer than the positions.
    pub(crate) fn states(&self, tokens: &Tensor) -> CandleResult<Tensor> {
        let (_, length) = tokens.dims2()?;
        let rows = self.words.forward(tokens)?;
        let positions = match self.kind {
            Kind::Bert => Tensor::arange(0, length as u32, tokens.device())?,
            Kind::Roberta => positions_behind_padding(tokens, self.padding)?,
        };
        // All tokens are of the first text of a pair, which is type 0.
        let types = Tensor::zeros(1, candle_core::DType::U32, tokens.device())?;
        let places = ops::add(
            &self.positions.forward(&positions)?,
            &self.token_types.forward(&types)?,
            None,
        )?;
        let mut xs = self.norm.forward(&ops::add(&rows, &places, None)?)?;
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
        match self.kind {
            Kind::Bert => self.longest,
            // Positions count behind that of the padding.
            Kind::Roberta => self.longest.saturating_sub(self.padding as usize + 1),
        }
    }

    /// The number of the padding token.
    pub(crate) fn padding(&self) -> u32 {
        self.padding
    }

    /// The part of BERT's classifiers between the states and the last layer, the pooler.
    pub(crate) fn pooler(&self) -> Linear {
        linear(&self.scope.pp("pooler"), "dense", self.width, true).activation(Activation::Tanh)
    }

    /// The head of a classifier.
    pub(crate) fn classifier(
        &self,
        scope: &Scope,
        config: &Config,
        classes: usize,
    ) -> Result<BertHead> {
        let p = match config.get("classifier_dropout") {
            Some(_) => config.dropout("classifier_dropout")?,
            None => config.dropout("hidden_dropout_prob")?,
        };
        let scope = scope.pp("classifier");
        let out = |scope: &Scope| Linear::new(scope, classes).init(new_layer_init());
        let (hidden, out) = match self.kind {
            Kind::Bert => (self.pooler(), out(&scope)),
            Kind::Roberta => {
                let dense = linear(&scope, "dense", self.width, true).activation(Activation::Tanh);
                (dense, out(&scope.pp("out_proj")))
            }
        };
        let dropout = (p > 0.0).then(|| Dropout::new(&scope.pp("dropout"), p));
        Ok(BertHead { before_hidden: self.kind == Kind::Roberta, hidden, dropout, out })
    }
}

/// The head of a classifier: of the first token's state.
#[derive(Debug)]
pub(crate) struct BertHead {
    /// Whether there is dropout before the hidden layer, too.
    before_hidden: bool,
    hidden: Linear,
    dropout: Option<Dropout>,
    out: Linear,
}

impl BertHead {
    /// `(N, T, width) -> (N, classes)`.
    pub(crate) fn forward(&self, states: &Tensor) -> CandleResult<Tensor> {
        let drop = |xs: Tensor| match &self.dropout {
            Some(dropout) => dropout.forward(&xs),
            None => Ok(xs),
        };
        let mut xs = first_token(states)?;
        if self.before_hidden {
            xs = drop(xs)?;
        }
        self.out.forward(&drop(self.hidden.forward(&xs)?)?)
    }
}

/// What files of BERTs have besides the parameters of an encoder and of a classifier: buffers, and the heads of the
/// pretraining.
pub(crate) fn is_known(name: &str) -> bool {
    name.ends_with("embeddings.position_ids")
        || name.starts_with("cls.")
        || name.starts_with("lm_head.")
        || name.contains("pooler.dense.")
}
