//! A language model of characters: embedding, long short-term memory (Hochreiter and Schmidhuber, Neural
//! Computation 9(8), 1997), and a linear layer that predicts the next character at every position
//! (Graves, arXiv:1308.0850, section 2).

use candelabrum_nn::layers::{Embedding, Linear, Lstm};
use candelabrum_nn::{Model, Scope};
use candle_core::{Module, Result, Tensor};

/// The sizes of a [`CharLstm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CharLstmConfig {
    /// The number of different characters.
    pub vocabulary: usize,
    /// The size of a character's embedding.
    pub embedding: usize,
    /// The size of the hidden state.
    pub hidden: usize,
}

impl CharLstmConfig {
    /// An embedding of 64 values and a hidden state of 256.
    pub fn new(vocabulary: usize) -> Self {
        Self { vocabulary, embedding: 64, hidden: 256 }
    }
}

/// Characters `(N, length) -> (N, length, vocabulary)`: at each position, the scores of the character
/// that follows. The targets of its loss are `(N, length)`.
#[derive(Debug)]
pub struct CharLstm {
    embedding: Embedding,
    lstm: Lstm,
    linear: Linear,
}

impl CharLstm {
    /// The network with the sizes of `config`.
    pub fn new(scope: &Scope, config: CharLstmConfig) -> Self {
        let CharLstmConfig { vocabulary, embedding, hidden } = config;
        Self {
            embedding: Embedding::new(&scope.pp("embedding"), vocabulary, embedding),
            lstm: Lstm::new(&scope.pp("lstm"), hidden),
            linear: Linear::new(&scope.pp("linear"), vocabulary),
        }
    }
}

impl Model for CharLstm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.linear.forward(&self.lstm.forward(&self.embedding.forward(xs)?)?)
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_nn::Params;
    use candle_core::{DType, Device};

    use super::*;

    const CONFIG: CharLstmConfig = CharLstmConfig { vocabulary: 96, embedding: 64, hidden: 256 };

    #[test]
    fn every_position_has_its_scores_and_every_parameter_its_place() -> Result<()> {
        let params = Params::new(0);
        let model = CharLstm::new(&params.root(), CONFIG);
        let characters = Tensor::arange(0_u32, 15, &Device::Cpu)?.reshape((3, 5))?;
        model.compile_with(&params, &characters)?;
        assert_eq!(model.forward(&characters)?.dims(), [3, 5, 96]);
        // 96 * 64 + 4 * 256 * (64 + 256 + 2) + 256 * 96 + 96
        assert_eq!(params.element_count(), 360_544);
        assert_eq!(params.get("lstm.weight_hh").expect("it is there").var().dims(), [1024, 256]);
        Ok(())
    }

    #[test]
    fn the_loss_is_the_mean_over_all_positions() -> Result<()> {
        let model = CharLstm::new(&Params::new(0).root(), CONFIG);
        let targets = Tensor::zeros((2, 3), DType::U32, &Device::Cpu)?;
        // One position is certain of its character, the others hold 96 for equally likely.
        let mut scores = vec![0_f32; 2 * 3 * 96];
        scores[4 * 96] = 100.0;
        let scores = Tensor::from_vec(scores, (2, 3, 96), &Device::Cpu)?;
        let loss = model.loss(&scores, &targets)?.to_scalar::<f32>()?;
        assert!((loss - 5.0 / 6.0 * 96_f32.ln()).abs() < 1e-5, "{loss}");
        Ok(())
    }
}
