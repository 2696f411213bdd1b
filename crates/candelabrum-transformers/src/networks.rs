//! The networks by the `model_type` of a config.

use candelabrum_nn::Scope;
use candle_core::{DType, Result as CandleResult, Tensor};

use crate::config::Config;
use crate::error::Result;
use crate::models::family::{DECODERS, ENCODERS, unknown};
use crate::models::{Bert, DistilBert, Gpt2, Llama, TextEncoder, Vit};

/// The network of a decoder.
#[derive(Debug)]
pub(crate) enum Decoder {
    Llama(Llama),
    Gpt2(Gpt2),
}

/// The network of an encoder.
#[derive(Debug)]
pub(crate) enum EncoderNet {
    Bert(Bert),
    DistilBert(DistilBert),
    Vit(Vit),
}

impl Decoder {
    pub(crate) fn new(scope: &Scope, config: &Config) -> Result<Self> {
        match config.model_type()? {
            "llama" | "mistral" | "qwen2" | "qwen3" => Llama::new(scope, config).map(Self::Llama),
            "gpt2" => Gpt2::new(scope, config).map(Self::Gpt2),
            other => Err(unknown(config, other, DECODERS)),
        }
    }
}

impl EncoderNet {
    pub(crate) fn new(scope: &Scope, config: &Config, alone: bool) -> Result<Self> {
        match config.model_type()? {
            "bert" | "roberta" => Bert::new(scope, config, alone).map(Self::Bert),
            "distilbert" => DistilBert::new(scope, config, alone).map(Self::DistilBert),
            "vit" => Vit::new(scope, config, alone).map(Self::Vit),
            other => Err(unknown(config, other, ENCODERS)),
        }
    }

    /// The features of every token or patch.
    pub(crate) fn states(&self, xs: &Tensor) -> CandleResult<Tensor> {
        match self {
            Self::Bert(bert) => bert.encoder().states(xs),
            Self::DistilBert(bert) => bert.encoder().states(xs),
            Self::Vit(vit) => vit.states(xs),
        }
    }

    /// A smallest input.
    pub(crate) fn example(
        &self,
        dtype: DType,
        device: &candle_core::Device,
    ) -> CandleResult<Tensor> {
        match self {
            Self::Vit(vit) => {
                vit.check_positions()?; // before memory is taken for an image
                let [channels, height, width] = vit.image();
                Tensor::zeros((1, channels, height, width), dtype, device)
            }
            _ => Tensor::zeros((1, 1), DType::U32, device),
        }
    }

    /// The encoder of a text alone. `None` for a model of images.
    pub(crate) fn into_text(self) -> Option<TextEncoder> {
        match self {
            Self::Bert(bert) => Some(bert.into_encoder()),
            Self::DistilBert(bert) => Some(bert.into_encoder()),
            Self::Vit(_) => None,
        }
    }

    /// The encoder of a text. `None` for a model of images.
    pub(crate) fn of_text(&self) -> Option<&TextEncoder> {
        match self {
            Self::Bert(bert) => Some(bert.encoder()),
            Self::DistilBert(bert) => Some(bert.encoder()),
            Self::Vit(_) => None,
        }
    }
}
