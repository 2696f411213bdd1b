//! A classifier of texts of different lengths: embedding, gated recurrent units (Cho et al., arXiv:1406.1078) up to
//! the last word of each text, and a linear layer on the hidden state there.

use candelabrum_nn::layers::{Embedding, Gru, Linear};
use candelabrum_nn::{Model, Scope};
use candle_core::{Module, Result, Tensor};

use crate::padding::{PADDING, trimmed};

/// The sizes of a [`TextGru`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextGruConfig {
    /// The number of different tokens, with the padding.
    pub vocabulary: usize,
    /// The size of a token's embedding.
    pub embedding: usize,
    /// The size of the hidden state.
    pub hidden: usize,
    /// The number of outputs.
    pub classes: usize,
}

impl TextGruConfig {
    /// An embedding of 64 values and a hidden state of 64.
    pub fn new(vocabulary: usize, classes: usize) -> Self {
        Self { vocabulary, embedding: 64, hidden: 64, classes }
    }
}

/// Tokens `(N, length) -> (N, classes)`. A text ends before the tokens 0 at its end, which are padding: how long
/// the padding is changes nothing.
#[derive(Debug)]
pub struct TextGru {
    embedding: Embedding,
    gru: Gru,
    linear: Linear,
}

impl TextGru {
    /// The network with the sizes of `config`.
    pub fn new(scope: &Scope, config: TextGruConfig) -> Self {
        let TextGruConfig { vocabulary, embedding, hidden, classes } = config;
        let words = Embedding::new(&scope.pp("embedding"), vocabulary, embedding);
        Self {
            embedding: words.padding_index(PADDING as usize),
            gru: Gru::new(&scope.pp("gru"), hidden),
            linear: Linear::new(&scope.pp("linear"), classes),
        }
    }
}

impl Model for TextGru {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (tokens, lengths) = trimmed(xs)?;
        let words = self.embedding.forward(&tokens)?; // (N, T, embedding)
        let (_, state) = self.gru.forward_lengths(&words, &lengths, None)?;
        self.linear.forward(&state)
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_nn::Params;
    use candle_core::Device;

    use super::*;

    #[test]
    fn padding_changes_nothing_and_every_parameter_has_its_place() -> Result<()> {
        let params = Params::new(0);
        let config = TextGruConfig { vocabulary: 20, embedding: 6, hidden: 5, classes: 3 };
        let model = TextGru::new(&params.root(), config);
        let scores = |rows: &[&[u32]], length: usize| {
            let padded = rows
                .iter()
                .flat_map(|row| row.iter().copied().chain(std::iter::repeat(0)).take(length));
            let tokens = Tensor::from_iter(padded, &Device::Cpu)?.reshape((rows.len(), length))?;
            model.forward(&tokens)?.to_vec2::<f32>()
        };
        let (short, long): (&[u32], &[u32]) = (&[3, 4], &[7, 8, 9, 19, 1]);
        let both = scores(&[short, long, &[]], 9)?;
        assert_eq!(both.len(), 3);
        for (row, alone) in both.iter().zip([scores(&[short], 2)?, scores(&[long], 5)?]) {
            assert!(row.iter().zip(&alone[0]).all(|(a, b)| (a - b).abs() < 1e-6), "{row:?}");
        }
        // A rank may have no texts in a step.
        let none = Tensor::zeros((0, 4), candle_core::DType::U32, &Device::Cpu)?;
        let scores = model.forward(&none)?;
        assert_eq!(scores.dims(), [0, 3]);
        scores.sum_all()?.backward()?;
        // 20 * 6 + 3 * 5 * (6 + 5 + 2) + 3 * 5 + 3
        assert_eq!(params.element_count(), 333);
        Ok(())
    }
}
