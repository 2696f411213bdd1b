//! A pretrained encoder of texts, whose embeddings can be compared.

use std::path::Path;

use candelabrum_nn::{LoadReport, Model, Params};
use candle_core::{DType, Result as CandleResult, Tensor};
use serde_json::json;

use crate::companions::{MODULES, TEXT_CONFIG};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::models::{TextEncoder, family};
use crate::networks::EncoderNet;
use crate::neutral::WITHOUT_CLASSES;
use crate::pooling::{Pooling, SENTENCE_CONFIG};
use crate::pretrained::{FolderTask, Pretrained};
use crate::source_files::SourceFiles;
use crate::tokenizer::Tokenizer;

/// A pretrained encoder of texts: tokens `(N, T)`, padded at the end, to embeddings `(N, width)`.
///
/// [`Pretrained::encoder`] makes one. A folder of sentence-transformers says how the states of a text's tokens become its
/// embedding (`modules.json`, `1_Pooling/config.json`): the first or last token's, the mean, the maximum, and whether an
/// embedding has length 1. Without these files an embedding is the mean, divided by its length, so the product of two
/// embeddings is the cosine of their angle.
#[derive(Debug)]
pub struct Encoder {
    params: Params,
    encoder: TextEncoder,
    pooling: Pooling,
    loaded: SourceFiles,
}

impl Pretrained {
    /// An encoder of texts, whose embeddings can be compared.
    ///
    /// # Errors
    /// As for [`causal_lm`](Self::causal_lm). A module of sentence-transformers that is not supported.
    pub fn encoder(self, params: &Params) -> Result<Encoder> {
        Encoder::load(self, params)
    }
}

impl Encoder {
    fn load(pretrained: Pretrained, params: &Params) -> Result<Self> {
        // No embedding needs the pooler, and a BertModel of transformers has one.
        let naming = family::naming(pretrained.config())?.keeping(|name| name.contains("pooler."));
        let token = Tensor::zeros((1, 1), DType::U32, params.device())?;
        let no_text = || Error::argument("a ViT as an encoder of texts: take it as a classifier");
        let (encoder, mut loaded) = pretrained.create(
            params,
            FolderTask {
                naming,
                neutral: WITHOUT_CLASSES,
                companions: &[MODULES, TEXT_CONFIG, SENTENCE_CONFIG],
            },
            |scope, config| EncoderNet::new(scope, config, true)?.into_text().ok_or_else(no_text),
            |encoder| encoder.states(&token).map(drop),
            |_| false,
        )?;
        let pooling = Pooling::from_companions(&mut loaded.companions, encoder.width())?;
        Ok(Self { params: params.clone(), encoder, pooling, loaded })
    }

    /// The config from which the model was made.
    pub fn config(&self) -> &Config {
        &self.loaded.config
    }

    /// What was loaded, and what the files have besides.
    pub fn report(&self) -> &LoadReport {
        &self.loaded.report
    }

    /// The parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The features of every token, `(N, T) -> (N, T, width)`.
    ///
    /// # Errors
    /// A token that is not in the vocabulary, or a text that is longer than the positions.
    pub fn states(&self, tokens: &Tensor) -> CandleResult<Tensor> {
        self.encoder.states(tokens)
    }

    /// The number of tokens that the model knows.
    pub fn vocabulary(&self) -> usize {
        self.encoder.vocabulary()
    }

    /// The embeddings of `texts`, \[texts, width\]. A text is cut at its first `longest` tokens, at the number of the
    /// model's positions, or where its folder says so (`max_seq_length`).
    ///
    /// # Errors
    /// A text that cannot be tokenised.
    pub fn embed(&self, tokenizer: &Tokenizer, texts: &[&str], longest: usize) -> Result<Tensor> {
        let longest = longest.min(self.encoder.longest()).min(self.pooling.longest);
        let rows = texts.iter().map(|text| tokenizer.encode_first(text, longest));
        let rows = rows.map(|row| row.map(|(tokens, _)| tokens)).collect::<Result<Vec<_>>>()?;
        let tokens =
            crate::data::padded(&rows, self.encoder.padding())?.to_device(self.params.device())?;
        Ok(self.params.in_mode(false, || self.forward(&tokens))?.detach())
    }

    /// Writes the model as a folder that Python's `transformers` opens. One rank calls this function.
    ///
    /// # Errors
    /// A folder or file that cannot be written.
    pub fn save(&self, folder: impl AsRef<Path>, tokenizer: Option<&Tokenizer>) -> Result<()> {
        let class = match self.config().model_type()? {
            "roberta" => "RobertaModel",
            "distilbert" => "DistilBertModel",
            _ => "BertModel",
        };
        self.loaded.save(
            &self.params,
            folder.as_ref(),
            tokenizer,
            [("architectures", json!([class]))],
        )
    }
}

impl Model for Encoder {
    fn forward(&self, tokens: &Tensor) -> CandleResult<Tensor> {
        let is_token = self.encoder.is_token(tokens)?.to_dtype(DType::F32)?;
        self.pooling.embeddings(&self.states(tokens)?, &is_token)
    }
}
