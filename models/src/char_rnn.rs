//! SINGA's language model of characters (its `examples/rnn`, after Graves, arXiv:1308.0850, section 2): characters
//! as one-hot vectors, a recurrent layer, and a linear layer that predicts the next character at every position.
//!
//! SINGA's layer is an LSTM of 32 units. The cell, the size and the number of layers are settings here. A one-hot
//! vector only chooses a column of the first layer's weight, so there is no table of embeddings to train
//! ([`CharLstm`](crate::CharLstm) has one). SINGA carries the state from batch to batch over one long text;
//! [`CharRnn::forward_from`] does that.

use std::str::FromStr;

use candelabrum_nn::layers::{Gru, Linear, Lstm, Rnn};
use candelabrum_nn::{Model, Params, Scope, ops};
use candle_core::{Module, Result, Tensor, bail};

/// The cell of a [`CharRnn`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CharCell {
    /// [`Rnn`].
    Rnn,
    /// [`Gru`].
    Gru,
    /// [`Lstm`], which SINGA has.
    #[default]
    Lstm,
}

/// `rnn`, `gru` or `lstm`, as in a command line.
impl FromStr for CharCell {
    type Err = candle_core::Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "rnn" => Ok(Self::Rnn),
            "gru" => Ok(Self::Gru),
            "lstm" => Ok(Self::Lstm),
            _ => bail!("no cell {name:?}, expected rnn, gru or lstm"),
        }
    }
}

/// The sizes of a [`CharRnn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CharRnnConfig {
    /// The number of different characters.
    pub vocabulary: usize,
    /// The size of the hidden state. SINGA's is 32.
    pub hidden: usize,
    /// The number of recurrent layers. SINGA's is 1.
    pub layers: usize,
    /// The cell.
    pub cell: CharCell,
}

impl CharRnnConfig {
    /// The sizes of SINGA's model: one layer of LSTM with a hidden state of 32 values.
    pub fn new(vocabulary: usize) -> Self {
        Self { vocabulary, hidden: 32, layers: 1, cell: CharCell::Lstm }
    }
}

/// Characters `(N, length) -> (N, length, vocabulary)`: at each position, the scores of the character
/// that follows. The targets of its loss are `(N, length)`.
#[derive(Debug)]
pub struct CharRnn {
    params: Params,
    vocabulary: usize,
    cell: CharRnnCell,
    linear: Linear,
}

#[derive(Debug)]
enum CharRnnCell {
    Rnn(Rnn),
    Gru(Gru),
    Lstm(Lstm),
}

/// Where a [`CharRnn`] is in a text.
#[derive(Clone, Debug)]
pub struct CharState {
    hidden: Tensor,
    /// Of an LSTM.
    cell: Option<Tensor>,
}

impl CharState {
    /// The same state outside of the graph. So gradients end at the beginning of the next piece of text.
    #[must_use]
    pub fn detach(&self) -> Self {
        Self { hidden: self.hidden.detach(), cell: self.cell.as_ref().map(Tensor::detach) }
    }
}

impl CharRnn {
    /// The network with the sizes of `config`.
    pub fn new(scope: &Scope, config: CharRnnConfig) -> Self {
        let CharRnnConfig { vocabulary, hidden, layers, cell } = config;
        let at = scope.pp("rnn");
        let cell = match cell {
            CharCell::Rnn => CharRnnCell::Rnn(Rnn::new(&at, hidden).layers(layers)),
            CharCell::Gru => CharRnnCell::Gru(Gru::new(&at, hidden).layers(layers)),
            CharCell::Lstm => CharRnnCell::Lstm(Lstm::new(&at, hidden).layers(layers)),
        };
        let linear = Linear::new(&scope.pp("linear"), vocabulary);
        Self { params: scope.params().clone(), vocabulary, cell, linear }
    }

    /// The scores, and the state after the last character. The state is that after the text before these
    /// characters, `None` at the beginning.
    ///
    /// # Errors
    /// A character that is not below the vocabulary, or a state of another shape.
    pub fn forward_from(
        &self,
        xs: &Tensor,
        state: Option<&CharState>,
    ) -> Result<(Tensor, CharState)> {
        let xs = self.one_hot(xs)?;
        let hidden = state.map(|state| &state.hidden);
        let lengths = full_lengths(&xs)?;
        let (ys, hidden, cell) = match &self.cell {
            CharRnnCell::Rnn(layer) => {
                let (ys, hidden) = layer.forward_lengths(&xs, &lengths, hidden)?;
                (ys, hidden, None)
            }
            CharRnnCell::Gru(layer) => {
                let (ys, hidden) = layer.forward_lengths(&xs, &lengths, hidden)?;
                (ys, hidden, None)
            }
            CharRnnCell::Lstm(layer) => {
                let cell = state.map(|state| state.cell.as_ref());
                let state = hidden.zip(cell.flatten());
                let (ys, (hidden, cell)) = layer.forward_lengths(&xs, &lengths, state)?;
                (ys, hidden, Some(cell))
            }
        };
        Ok((self.linear.forward(&ys)?, CharState { hidden, cell }))
    }

    /// `(N, length) -> (N, length, vocabulary)`
    fn one_hot(&self, xs: &Tensor) -> Result<Tensor> {
        if xs.rank() != 2 {
            bail!("characters of shape {:?}, expected (N, length)", xs.shape())
        }
        let table = Tensor::eye(self.vocabulary, self.params.dtype(), self.params.device())?;
        ops::embedding(&table, xs, None)
    }
}

/// Every sequence has all its steps.
fn full_lengths(xs: &Tensor) -> Result<Tensor> {
    let (batch, steps, _) = xs.dims3()?;
    Tensor::full(steps as u32, batch, &candle_core::Device::Cpu)
}

impl Model for CharRnn {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.one_hot(xs)?;
        let ys = match &self.cell {
            CharRnnCell::Rnn(layer) => layer.forward(&xs)?,
            CharRnnCell::Gru(layer) => layer.forward(&xs)?,
            CharRnnCell::Lstm(layer) => layer.forward(&xs)?,
        };
        self.linear.forward(&ys)
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_nn::Params;
    use candle_core::Device;

    use super::*;

    #[test]
    fn a_text_in_pieces_has_the_scores_of_the_whole() -> Result<()> {
        for cell in [CharCell::Rnn, CharCell::Gru, CharCell::Lstm] {
            let config = CharRnnConfig { vocabulary: 11, hidden: 6, layers: 2, cell };
            let model = CharRnn::new(&Params::new(0).root(), config);
            let text =
                Tensor::arange(0_u32, 22, &Device::Cpu)?.affine(0.5, 0.0)?.reshape((2, 11))?;
            let whole = model.forward(&text)?;
            let (first, state) = model.forward_from(&text.narrow(1, 0, 4)?, None)?;
            let rest = text.narrow(1, 4, 7)?;
            let (second, _) = model.forward_from(&rest, Some(&state.detach()))?;
            let pieces = Tensor::cat(&[first, second], 1)?;
            let difference = (whole - pieces)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
            assert!(difference < 1e-6, "{cell:?}: {difference}");
        }
        Ok(())
    }

    #[test]
    fn every_parameter_has_its_place() -> Result<()> {
        let params = Params::new(0);
        let config = CharRnnConfig { vocabulary: 96, hidden: 32, layers: 1, cell: CharCell::Lstm };
        let model = CharRnn::new(&params.root(), config);
        let characters = Tensor::arange(0_u32, 15, &Device::Cpu)?.reshape((3, 5))?;
        model.compile_with(&params, &characters)?;
        assert_eq!(model.forward(&characters)?.dims(), [3, 5, 96]);
        // 4 * 32 * (96 + 32 + 2) + 96 * 32 + 96
        assert_eq!(params.element_count(), 19_808);
        assert!(model.forward(&Tensor::new(&[[96_u32]], &Device::Cpu)?).is_err());
        Ok(())
    }
}
