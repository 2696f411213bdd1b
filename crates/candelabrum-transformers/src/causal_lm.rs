//! A language model that predicts the next token.

use std::path::Path;

use candelabrum_nn::{LoadReport, Model, Params};
use candle_core::{Device, Result as CandleResult, Tensor};

use crate::cache::Cache;
use crate::companions::GENERATION;
use crate::config::Config;
use crate::error::Result;
use crate::models::{LmHead, family};
use crate::networks::Decoder;
use crate::neutral::WITHOUT_CLASSES;
use crate::pretrained::{FolderTask, Pretrained};
use crate::source_files::SourceFiles;
use crate::tokenizer::Tokenizer;

/// A pretrained language model: tokens `(N, T) -> (N, T, vocabulary)`, the logits of the token that follows each token.
///
/// [`Pretrained::causal_lm`] makes one. A training step computes the loss without the tensor of all logits, so its output
/// is the [`states`](Self::states). Targets (N, T) are the tokens that follow; those of [`IGNORED`](crate::IGNORED) (as
/// i64) do not count.
#[derive(Debug)]
pub struct CausalLm {
    params: Params,
    decoder: Decoder,
    loaded: SourceFiles,
}

impl Pretrained {
    /// A language model that predicts the next token.
    ///
    /// # Errors
    /// A `model_type` that is no decoder, weights that are missing or have another shape (the error lists their names),
    /// or files that cannot be read.
    pub fn causal_lm(self, params: &Params) -> Result<CausalLm> {
        CausalLm::load(self, params)
    }
}

impl CausalLm {
    fn load(pretrained: Pretrained, params: &Params) -> Result<Self> {
        let naming = family::naming(pretrained.config())?;
        let token = Tensor::zeros((1, 1), candle_core::DType::U32, params.device())?;
        let (decoder, loaded) = pretrained.create(
            params,
            FolderTask { naming, neutral: WITHOUT_CLASSES, companions: &[GENERATION] },
            Decoder::new,
            |decoder| {
                states(decoder, &token, None).and_then(|xs| head(decoder)?.logits(&xs)).map(drop)
            },
            |_| false,
        )?;
        Ok(Self { params: params.clone(), decoder, loaded })
    }

    /// The config from which the model was made.
    pub fn config(&self) -> &Config {
        &self.loaded.config
    }

    /// What was loaded, and what the files have besides.
    pub fn report(&self) -> &LoadReport {
        &self.loaded.report
    }

    pub(crate) fn loaded(&self) -> &SourceFiles {
        &self.loaded
    }

    /// The parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The number of tokens that the model knows.
    pub fn vocabulary(&self) -> usize {
        match &self.decoder {
            Decoder::Llama(llama) => llama.vocabulary(),
            Decoder::Gpt2(gpt2) => gpt2.vocabulary(),
        }
    }

    /// The largest number of tokens of a sequence.
    pub fn context(&self) -> usize {
        match &self.decoder {
            Decoder::Llama(llama) => llama.context(),
            Decoder::Gpt2(gpt2) => gpt2.context(),
        }
    }

    /// The features of every token behind the last layer, `(N, T) -> (N, T, width)`.
    ///
    /// # Errors
    /// A token that is not in the vocabulary.
    pub fn states(&self, tokens: &Tensor) -> CandleResult<Tensor> {
        states(&self.decoder, tokens, None)
    }

    /// The states of `tokens` (1, T) that follow those in `cache`, which gets their keys and values.
    ///
    /// # Errors
    /// A token that is not in the vocabulary, or a full cache.
    pub fn states_cached(&self, tokens: &Tensor, cache: &mut Cache) -> CandleResult<Tensor> {
        states(&self.decoder, tokens, Some(cache))
    }

    /// The logits of `states`, `(.., width) -> (.., vocabulary)`.
    ///
    /// # Errors
    /// States of another width.
    pub fn logits(&self, states: &Tensor) -> CandleResult<Tensor> {
        head(&self.decoder)?.logits(states)
    }

    /// Writes the model as a folder that Python's `transformers` opens: config, weights, and the tokenizer if there is
    /// one. Adapters are left out: [`save_adapter`](crate::save_adapter) writes them, or merge them before. Quantised
    /// matrices are written in f32. One rank calls this function.
    ///
    /// # Errors
    /// A folder or file that cannot be written.
    pub fn save(&self, folder: impl AsRef<Path>, tokenizer: Option<&Tokenizer>) -> Result<()> {
        self.loaded.save(&self.params, folder.as_ref(), tokenizer, [])
    }

    pub(crate) fn device(&self) -> &Device {
        self.params.device()
    }
}

fn states(decoder: &Decoder, tokens: &Tensor, cache: Option<&mut Cache>) -> CandleResult<Tensor> {
    match decoder {
        Decoder::Llama(llama) => llama.states(tokens, cache),
        Decoder::Gpt2(gpt2) => gpt2.states(tokens, cache),
    }
}

fn head(decoder: &Decoder) -> CandleResult<LmHead<'_>> {
    match decoder {
        Decoder::Llama(llama) => llama.head(),
        Decoder::Gpt2(gpt2) => gpt2.head(),
    }
}

impl Model for CausalLm {
    fn forward(&self, tokens: &Tensor) -> CandleResult<Tensor> {
        self.logits(&self.states(tokens)?)
    }

    fn output_and_loss(&self, tokens: &Tensor, targets: &Tensor) -> CandleResult<(Tensor, Tensor)> {
        let states = self.states(tokens)?;
        let loss = head(&self.decoder)?.loss(&states, targets, self.params.is_training())?;
        Ok((states, loss))
    }
}
