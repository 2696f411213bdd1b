//! BERT (Devlin et al., arXiv:1810.04805) and RoBERTa (Liu et al., arXiv:1907.11692), and the smaller models of BERT's
//! structure, such as MiniLM.

use candelabrum_nn::layers::{Dropout, Linear};
use candelabrum_nn::{Activation, Scope};
use candle_core::{Module, Result as CandleResult, Tensor};

use super::common::{linear, new_layer_init};
use super::encoder_layer::{LayerNames, LayerSizes};
use super::head::first_token;
use super::text_encoder::{Family, TextEncoder};
use crate::config::Config;
use crate::error::Result;

const NAMES: LayerNames = LayerNames {
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    out: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    norm: "output.LayerNorm",
};

/// An encoder of BERT's structure: tokens `(N, T) -> (N, T, width)`. The probabilities of an attention have no dropout,
/// whatever `attention_probs_dropout_prob` says.
#[derive(Debug)]
pub(crate) struct Bert {
    scope: Scope,
    is_roberta: bool,
    width: usize,
    encoder: TextEncoder,
}

impl Bert {
    /// The network of this `config.json`, with names below `bert` or `roberta`, or, for an encoder `alone`, as it is saved
    /// without a head.
    ///
    /// # Errors
    /// A config that lacks a size, or has a variant that is not supported.
    pub(crate) fn new(scope: &Scope, config: &Config, alone: bool) -> Result<Self> {
        let is_roberta = config.model_type()? == "roberta";
        let width = config.needed("hidden_size")?;
        if let Some(kind) =
            config.text("position_embedding_type")?.filter(|kind| *kind != "absolute")
        {
            let what = format!("has position_embedding_type = {kind:?}: absolute is supported");
            return Err(config.fault(what));
        }
        let sizes = LayerSizes {
            width,
            hidden: config.needed("intermediate_size")?,
            heads: config.heads("num_attention_heads", width)?,
            eps: config.real("layer_norm_eps")?.unwrap_or(1e-12),
            activation: config.activation("hidden_act", "gelu")?,
            dropout: config.dropout_or("hidden_dropout_prob", 0.1)?,
            qkv_bias: true,
        };
        let family = Family {
            names: NAMES,
            layers: "encoder.layer",
            layer_count: "num_hidden_layers",
            has_types: true,
            counts_behind_padding: is_roberta,
        };
        let name = if is_roberta { "roberta" } else { "bert" };
        let scope = if alone { scope.clone() } else { scope.pp(name) };
        let encoder = TextEncoder::new(&scope, config, family, sizes)?;
        Ok(Self { scope, is_roberta, width, encoder })
    }

    /// The part below the heads alone.
    pub(crate) fn into_encoder(self) -> TextEncoder {
        self.encoder
    }

    /// The part below the heads.
    pub(crate) fn encoder(&self) -> &TextEncoder {
        &self.encoder
    }

    /// The part of BERT's classifiers between the states and the last layer, the pooler.
    fn pooler(&self) -> Linear {
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
            None => config.dropout_or("hidden_dropout_prob", 0.1)?,
        };
        let scope = scope.pp("classifier");
        // Adapters leave a head out, as those of Python's peft: it is trained as a whole.
        let out = |scope: &Scope| Linear::new(scope, classes).init(new_layer_init()).output();
        let (hidden, out) = if self.is_roberta {
            let dense = linear(&scope, "dense", self.width, true).activation(Activation::Tanh);
            (dense.output(), out(&scope.pp("out_proj")))
        } else {
            (self.pooler(), out(&scope))
        };
        let dropout = (p > 0.0).then(|| Dropout::new(&scope.pp("dropout"), p));
        Ok(BertHead { before_hidden: self.is_roberta, hidden, dropout, out })
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
