//! A classifier of token sequences: embedding, gated recurrent units (Cho et al., arXiv:1406.1078),
//! and a linear layer on the last hidden state.

use candelabrum_nn::layers::{Embedding, Gru, Linear};
use candelabrum_nn::{Model, Scope, ops};
use candle_core::{Module, Result, Tensor};

/// The sizes of a [`GruClassifier`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GruClassifierConfig {
    /// The number of different tokens.
    pub vocabulary: usize,
    /// The size of a token's embedding.
    pub embedding: usize,
    /// The size of the hidden state.
    pub hidden: usize,
    /// The number of outputs.
    pub classes: usize,
}

impl GruClassifierConfig {
    /// An embedding of 64 values and a hidden state of 128.
    pub fn new(vocabulary: usize, classes: usize) -> Self {
        Self { vocabulary, embedding: 64, hidden: 128, classes }
    }
}

/// Tokens `(N, length) -> (N, classes)`.
#[derive(Debug)]
pub struct GruClassifier {
    embedding: Embedding,
    gru: Gru,
    linear: Linear,
}

impl GruClassifier {
    /// The network with the sizes of `config`.
    pub fn new(scope: &Scope, config: GruClassifierConfig) -> Self {
        let GruClassifierConfig { vocabulary, embedding, hidden, classes } = config;
        Self {
            embedding: Embedding::new(&scope.pp("embedding"), vocabulary, embedding),
            gru: Gru::new(&scope.pp("gru"), hidden),
            linear: Linear::new(&scope.pp("linear"), classes),
        }
    }
}

impl Model for GruClassifier {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let states = self.gru.forward(&self.embedding.forward(xs)?)?; // (N, length, hidden)
        self.linear.forward(&ops::last_step(&states)?)
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_nn::Params;
    use candle_core::Device;

    use super::*;

    #[test]
    fn every_sequence_has_its_scores_and_every_parameter_its_place() -> Result<()> {
        let params = Params::new(0);
        let config =
            GruClassifierConfig { vocabulary: 64, embedding: 64, hidden: 128, classes: 10 };
        let model = GruClassifier::new(&params.root(), config);
        let tokens = Tensor::arange(0_u32, 15, &Device::Cpu)?.reshape((3, 5))?;
        let summary = model.compile_with(&params, &tokens)?;
        assert_eq!(summary.layers().last().map(|row| &row.output[..]), Some(&[3, 10][..]));
        assert_eq!(model.forward(&tokens)?.dims(), [3, 10]);
        assert_eq!(params.element_count(), 79_882);
        assert_eq!(params.get("gru.weight_ih").expect("it is there").var().dims(), [384, 64]);
        Ok(())
    }
}
