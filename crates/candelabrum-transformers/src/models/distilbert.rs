//! DistilBERT (Sanh et al., arXiv:1910.01108): BERT with half of the layers, and without types of tokens.

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

/// An encoder: tokens `(N, T) -> (N, T, width)`. The probabilities of an attention have no dropout.
#[derive(Debug)]
pub(crate) struct DistilBert {
    width: usize,
    encoder: TextEncoder,
}

impl DistilBert {
    /// The network of this `config.json`, with names below `distilbert`, or, for an encoder `alone`, as it is saved
    /// without a head.
    ///
    /// # Errors
    /// A config that lacks a size, or has a variant that is not supported.
    pub(crate) fn new(scope: &Scope, config: &Config, alone: bool) -> Result<Self> {
        let width = config.needed("dim")?;
        let sizes = LayerSizes {
            width,
            hidden: config.needed("hidden_dim")?,
            heads: config.heads("n_heads", width)?,
            eps: EPS,
            activation: config.activation("activation", "gelu")?,
            dropout: config.dropout_or("dropout", 0.1)?,
            qkv_bias: true,
        };
        let family = Family {
            names: NAMES,
            layers: "transformer.layer",
            layer_count: "n_layers",
            has_types: false,
            counts_behind_padding: false,
        };
        let scope = if alone { scope.clone() } else { scope.pp("distilbert") };
        Ok(Self { width, encoder: TextEncoder::new(&scope, config, family, sizes)? })
    }

    /// The part below the head alone.
    pub(crate) fn into_encoder(self) -> TextEncoder {
        self.encoder
    }

    /// The part below the head.
    pub(crate) fn encoder(&self) -> &TextEncoder {
        &self.encoder
    }

    /// The head of a classifier.
    pub(crate) fn classifier(
        &self,
        scope: &Scope,
        config: &Config,
        classes: usize,
    ) -> Result<DistilBertHead> {
        let p = config.dropout_or("seq_classif_dropout", 0.2)?;
        // Adapters leave a head out, as those of Python's peft: it is trained as a whole.
        let hidden = linear(scope, "pre_classifier", self.width, true).activation(Activation::Relu);
        Ok(DistilBertHead {
            hidden: hidden.output(),
            dropout: (p > 0.0).then(|| Dropout::new(&scope.pp("dropout"), p)),
            out: Linear::new(&scope.pp("classifier"), classes).init(new_layer_init()).output(),
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
