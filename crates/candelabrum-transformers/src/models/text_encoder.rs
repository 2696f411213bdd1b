//! The encoder of BERT and of the models of its structure: tables of words and positions, and layers of attention.

use candelabrum_nn::layers::{Blocks, Dropout, Embedding, LayerNorm};
use candelabrum_nn::{Scope, ops};
use candle_core::{DType, Module, Result as CandleResult, Tensor, bail};

use super::common::{
    is_token, new_layer_init, pad_token_id, padding_mask, positions_behind_padding,
};
use super::encoder_layer::{EncoderLayer, LayerNames, LayerSizes, NormOrder};
use crate::config::Config;
use crate::error::Result;

/// What a family says of its encoder beside the sizes of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    pub(super) names: LayerNames,
    /// The path of the layers, below the encoder.
    pub(super) layers: &'static str,
    /// The key of the number of layers.
    pub(super) layer_count: &'static str,
    /// Whether a token has a type: whether it is of the first or of the second text of a pair.
    pub(super) has_types: bool,
    /// Whether positions count from behind the number of the padding, as RoBERTa's do.
    pub(super) counts_behind_padding: bool,
}

/// Tokens `(N, T) -> (N, T, width)`. The padding behind a text is hidden from its tokens.
#[derive(Debug)]
pub(crate) struct TextEncoder {
    counts_behind_padding: bool,
    width: usize,
    vocabulary: usize,
    /// The rows of the table of positions.
    positions_count: usize,
    padding: u32,
    words: Embedding,
    positions: Embedding,
    token_types: Option<Embedding>,
    norm: LayerNorm,
    dropout: Option<Dropout>,
    layers: Blocks<EncoderLayer>,
}

impl TextEncoder {
    pub(super) fn new(
        scope: &Scope,
        config: &Config,
        family: Family,
        sizes: LayerSizes,
    ) -> Result<Self> {
        let embeddings = scope.pp("embeddings");
        let table = |name: &str, rows: usize| {
            Embedding::new(&embeddings.pp(name), rows, sizes.width).init(new_layer_init())
        };
        let layers = scope.pp(family.layers);
        let layer = |number: usize| {
            EncoderLayer::new(&layers.pp(number), family.names, sizes, NormOrder::Post)
        };
        let vocabulary = config.needed("vocab_size")?;
        let positions_count = config.needed("max_position_embeddings")?;
        let types = family.has_types.then(|| config.size("type_vocab_size")).transpose()?;
        let types = types.map(|types| types.unwrap_or(2));
        let padding = pad_token_id(config)?.unwrap_or(0);
        let too_large = |_| config.fault(format!("has pad_token_id = {padding}"));
        let drops = sizes.dropout > 0.0;
        Ok(Self {
            counts_behind_padding: family.counts_behind_padding,
            width: sizes.width,
            vocabulary,
            positions_count,
            padding: u32::try_from(padding).map_err(too_large)?,
            words: table("word_embeddings", vocabulary),
            positions: table("position_embeddings", positions_count),
            token_types: types.map(|types| table("token_type_embeddings", types)),
            norm: LayerNorm::new(&embeddings.pp("LayerNorm")).eps(sizes.eps),
            dropout: drops.then(|| Dropout::new(&embeddings.pp("dropout"), sizes.dropout)),
            layers: Blocks::new(scope, (0..config.layers(family.layer_count)?).map(layer)),
        })
    }

    /// The features of every token behind the last layer, `(N, T) -> (N, T, width)`. With the types of the tokens of pairs,
    /// `(N, 2, T)`: see [`tokens_and_types`].
    ///
    /// # Errors
    /// A token that is not in the vocabulary, a type that the model does not have, or a text that is longer than the
    /// positions.
    pub(crate) fn states(&self, xs: &Tensor) -> CandleResult<Tensor> {
        let (tokens, types) = tokens_and_types(xs)?;
        let tokens = &tokens;
        let (_, length) = tokens.dims2()?;
        let rows = self.words.forward(tokens)?;
        let positions = match self.counts_behind_padding {
            true => positions_behind_padding(tokens, self.padding)?,
            false => Tensor::arange(0, length as u32, tokens.device())?,
        };
        let mut places = self.positions.forward(&positions)?;
        let mut sum = rows;
        match (&self.token_types, types) {
            (Some(token_types), Some(types)) => {
                sum = ops::add(&sum, &token_types.forward(&types)?, None)?;
            }
            (Some(token_types), None) => {
                // All tokens are of the first text of a pair, which is type 0.
                let types = Tensor::zeros(1, DType::U32, tokens.device())?;
                places = ops::add(&places, &token_types.forward(&types)?, None)?;
            }
            (None, Some(_)) => {
                bail!("types of tokens, which this family does not have: leave them out")
            }
            (None, None) => {}
        }
        let mut xs = self.norm.forward(&ops::add(&sum, &places, None)?)?;
        if let Some(dropout) = &self.dropout {
            xs = dropout.forward(&xs)?;
        }
        let mask = padding_mask(tokens, self.padding, xs.dtype())?;
        self.layers.forward_by(&xs, move |layer, xs| layer.forward(xs, mask.as_ref()))
    }

    /// 1 for tokens and 0 for padding, `(N, T)`.
    pub(crate) fn is_token(&self, xs: &Tensor) -> CandleResult<Tensor> {
        let (tokens, _) = tokens_and_types(xs)?;
        is_token(&tokens, self.padding)
    }

    /// The number of features.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// The rows of the table of tokens.
    pub(crate) fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The largest number of tokens of a text.
    pub(crate) fn longest(&self) -> usize {
        let before = if self.counts_behind_padding { self.padding as usize + 1 } else { 0 };
        self.positions_count.saturating_sub(before)
    }

    /// The number of the padding token.
    pub(crate) fn padding(&self) -> u32 {
        self.padding
    }
}

/// The tokens (N, T) of an input, and their types if the input is `(N, 2, T)`: the tokens first, and then for each of them
/// whether it is of the first (0) or of the second text of a pair (1).
fn tokens_and_types(xs: &Tensor) -> CandleResult<(Tensor, Option<Tensor>)> {
    if xs.rank() != 3 {
        return Ok((xs.clone(), None));
    }
    let (_, rows, _) = xs.dims3()?;
    if rows != 2 {
        bail!("an input of {:?}: tokens are (N, T), and with their types (N, 2, T)", xs.dims())
    }
    let row = |row: usize| xs.narrow(1, row, 1)?.squeeze(1)?.contiguous();
    Ok((row(0)?, Some(row(1)?)))
}
