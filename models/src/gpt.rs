//! A language model that predicts the next token: GPT-2's structure (Radford et al., 2019), with rotary
//! positions as an option. Two details differ: GELU is the exact function instead of its approximation by
//! tanh, and the probabilities of an attention have no dropout.

use candelabrum_nn::layers::{Blocks, Dropout, LayerNorm, TransformerBlock};
use candelabrum_nn::ops::{self, CrossEntropyConfig, Rotary};
use candelabrum_nn::{Init, Model, Param, Scope};
use candle_core::{Module, Result, Tensor};
use once_cell::sync::OnceCell;

/// The deviation of the initial weights.
const STD: f64 = 0.02;

/// The sizes and variants of a [`Gpt`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GptConfig {
    /// The number of different tokens.
    pub vocabulary: usize,
    /// The largest number of tokens of a sequence, if the positions are learned.
    pub context: usize,
    /// The number of transformer blocks.
    pub layers: usize,
    /// The number of features of a token.
    pub width: usize,
    /// The number of heads of each attention, which divides `width`.
    pub heads: usize,
    /// Rotates queries and keys by their positions, instead of learning a row for each position.
    pub rotary: Option<Rotary>,
    /// Whether the last layer uses the table of the tokens as its weight.
    pub tied: bool,
    /// The probability of dropout after the embedding and in each branch of a block.
    pub dropout: f32,
}

impl Default for GptConfig {
    /// A model of characters: 10.8 million parameters, 6 blocks of 384 features and 6 heads, 256
    /// characters of 96 kinds.
    fn default() -> Self {
        Self {
            vocabulary: 96,
            context: 256,
            layers: 6,
            width: 384,
            heads: 6,
            rotary: None,
            tied: true,
            dropout: 0.0,
        }
    }
}

impl GptConfig {
    /// 0.8 million parameters: 4 blocks of 128 features and 4 heads, 64 characters.
    #[must_use]
    pub fn tiny() -> Self {
        Self { context: 64, layers: 4, width: 128, heads: 4, ..Self::default() }
    }
}

/// Tokens `(N, T) -> (N, T, vocabulary)`: the logits of the token that follows each token.
///
/// A training step computes the loss by [`loss_of`](Self::loss_of), without the tensor of all logits.
/// So the output of [`output_and_loss`](Model::output_and_loss) and of a training step is
/// [`states`](Self::states), of which [`logits`](Self::logits) makes logits.
///
/// The parameters are `tokens` `(vocabulary, width)`, `positions` `(context, width)` if they are
/// learned, `blocks.0` and so on (see [`TransformerBlock`]), `norm.weight`, `norm.bias`, and `head`
/// `(vocabulary, width)` if it is not tied. Weights start with deviation 0.02, those of the layers that
/// add to the residual with 0.02 divided by the square root of the number of these layers.
#[derive(Debug)]
pub struct Gpt {
    scope: Scope,
    config: GptConfig,
    tables: OnceCell<GptTables>,
    dropout: Option<Dropout>,
    blocks: Blocks<TransformerBlock>,
    norm: LayerNorm,
}

#[derive(Debug)]
struct GptTables {
    tokens: Param,
    positions: Option<Param>,
    head: Option<Param>,
}

impl Gpt {
    /// The network with the sizes of `config`.
    pub fn new(scope: &Scope, config: GptConfig) -> Self {
        let residual = Init::Normal { std: STD / (2.0 * config.layers as f64).sqrt() };
        let block = |number: usize| {
            let block = TransformerBlock::new(&scope.pp("blocks").pp(number), config.heads)
                .causal()
                .init(Init::Normal { std: STD })
                .residual_init(residual)
                .dropout(config.dropout);
            if let Some(rotary) = config.rotary { block.rotary(rotary) } else { block }
        };
        let drops = config.dropout != 0.0;
        Self {
            scope: scope.clone(),
            config,
            tables: OnceCell::new(),
            dropout: drops.then(|| Dropout::new(&scope.pp("dropout"), config.dropout)),
            blocks: Blocks::new(scope, (0..config.layers).map(block)),
            norm: LayerNorm::new(&scope.pp("norm")),
        }
    }

    /// The features of every token after the last block and its norm, `(N, T) -> (N, T, width)`.
    ///
    /// # Errors
    /// A token that is not in the vocabulary, or sequences that are longer than the context.
    pub fn states(&self, tokens: &Tensor) -> Result<Tensor> {
        let tables = self.tables()?;
        let rows = tables.tokens.tensor();
        let mut xs = match &tables.positions {
            Some(positions) => ops::embedding_with_positions(rows, positions.tensor(), tokens)?,
            None => ops::embedding(rows, tokens, None)?,
        };
        self.scope.pp("tokens").trace(&format!("Embedding {}", self.config.vocabulary), &xs);
        if let Some(dropout) = &self.dropout {
            xs = dropout.forward(&xs)?;
        }
        self.norm.forward(&self.blocks.forward(&xs)?)
    }

    /// The logits of `states`, `(.., width) -> (.., vocabulary)`.
    ///
    /// # Errors
    /// States of another width.
    pub fn logits(&self, states: &Tensor) -> Result<Tensor> {
        let head = self.head()?;
        let ys = ops::linear(states, head.tensor(), None, None)?;
        // The row of a summary has the name of the table that it uses.
        self.scope.pp(if self.config.tied { "tokens" } else { "head" }).trace("Linear", &ys);
        Ok(ys)
    }

    /// The mean cross entropy of the tokens that follow, `targets` `(N, T)`, for [`states`](Self::states)
    /// `(N, T, width)`: [`ops::linear_cross_entropy`]. In f32 also for states in f16 and bf16.
    ///
    /// # Errors
    /// Shapes that do not fit together, or a target that is not in the vocabulary.
    pub fn loss_of(&self, states: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let (mut states, mut head) = (states.clone(), self.head()?.tensor().clone());
        if !self.scope.is_training() {
            (states, head) = (states.detach(), head.detach());
        }
        ops::linear_cross_entropy(&states, &head, None, targets, CrossEntropyConfig::default())
    }

    fn head(&self) -> Result<&Param> {
        let tables = self.tables()?;
        Ok(tables.head.as_ref().unwrap_or(&tables.tokens))
    }

    fn tables(&self) -> Result<&GptTables> {
        self.tables.get_or_try_init(|| {
            let GptConfig { vocabulary, context, width, rotary, tied, .. } = self.config;
            let table = |name, rows: usize| {
                self.scope.param(name, (rows, width), Init::Normal { std: STD })
            };
            let tokens = table("tokens", vocabulary)?;
            let positions = rotary.is_none().then(|| table("positions", context)).transpose()?;
            let head = (!tied).then(|| table("head", vocabulary)).transpose()?;
            Ok(GptTables { tokens, positions, head })
        })
    }
}

impl Model for Gpt {
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        self.logits(&self.states(tokens)?)
    }

    fn output_and_loss(&self, tokens: &Tensor, targets: &Tensor) -> Result<(Tensor, Tensor)> {
        let states = self.states(tokens)?;
        let loss = self.loss_of(&states, targets)?;
        Ok((states, loss))
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_nn::Params;
    use candle_core::Device;

    use super::*;

    fn tokens(shape: (usize, usize), step: usize) -> Result<Tensor> {
        let count = shape.0 * shape.1;
        let tokens = (0..count).map(|i| (i * i + step * i) as u32 % 11);
        Tensor::from_iter(tokens, &Device::Cpu)?.reshape(shape)
    }

    fn small() -> GptConfig {
        GptConfig {
            vocabulary: 11,
            context: 9,
            layers: 2,
            width: 12,
            heads: 3,
            ..Default::default()
        }
    }

    #[test]
    fn every_parameter_has_its_place_and_its_count() -> Result<()> {
        let params = Params::new(0);
        let model = Gpt::new(&params.root(), GptConfig::tiny());
        let summary = model.compile_with(&params, &tokens((2, 64), 1)?)?;
        let block = 2 * 2 * 128 + (384 + 128 + 512) * 128 + 384 + 128 + 512 + 128 * 512 + 128;
        assert_eq!(summary.parameter_count(), 4 * block + 2 * 128 + (96 + 64) * 128);
        let last = summary.layers().last().map(|row| (&*row.name, &row.output[..]));
        assert_eq!(last, Some(("tokens", &[2, 64, 96][..])));
        for name in ["tokens", "positions", "blocks.3.attention.qkv.weight", "norm.bias"] {
            assert!(params.get(name).is_ok(), "no parameter {name}");
        }
        Ok(())
    }

    #[test]
    fn the_loss_without_logits_is_the_loss_of_the_logits() -> Result<()> {
        for (tied, rotary) in [(true, None), (false, Some(Rotary::default()))] {
            let params = Params::new(3);
            let model = Gpt::new(&params.root(), GptConfig { tied, rotary, ..small() });
            let (xs, ys) = (tokens((2, 9), 1)?, tokens((2, 9), 2)?);
            let loss = model.loss_of(&model.states(&xs)?, &ys)?;
            let plain = model.loss(&model.forward(&xs)?, &ys)?;
            let difference = (loss.to_scalar::<f32>()? - plain.to_scalar::<f32>()?).abs();
            assert!(difference < 1e-6, "{difference}");
            // A new model knows nothing: about ln 11.
            assert!((loss.to_scalar::<f32>()? - 11_f32.ln()).abs() < 0.05);
            let (grads, plain) = (loss.backward()?, plain.backward()?);
            for param in params.list() {
                let gradient = |grads: &candle_core::backprop::GradStore| {
                    grads.get(param.var()).expect("every parameter has a gradient").clone()
                };
                let difference = (gradient(&grads) - gradient(&plain))?.abs()?.max_all()?;
                let difference = difference.to_scalar::<f32>()?;
                assert!(difference < 1e-6, "{difference} in {}", param.name());
            }
        }
        Ok(())
    }

    #[test]
    fn no_token_sees_the_tokens_behind_it() -> Result<()> {
        let params = Params::new(1);
        let model = Gpt::new(&params.root(), small());
        let xs = tokens((1, 8), 1)?;
        let changed = Tensor::cat(&[xs.narrow(1, 0, 5)?, tokens((1, 3), 5)?], 1)?;
        let logits = |xs: &Tensor| model.forward(xs)?.flatten_to(1)?.to_vec2::<f32>();
        let (before, after) = (logits(&xs)?, logits(&changed)?);
        assert_eq!(before[..5], after[..5]);
        assert_ne!(before[7], after[7]);
        Ok(())
    }

    #[test]
    fn a_sequence_beyond_the_context_is_refused() -> Result<()> {
        let params = Params::new(1);
        let error = Gpt::new(&params.root(), small()).forward(&tokens((1, 10), 1)?).unwrap_err();
        assert!(error.to_string().contains("sequences of 10 tokens, but there are 9 positions"));
        Ok(())
    }
}
