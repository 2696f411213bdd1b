//! What makes logits of states: a layer of its own, or the table of the tokens.

use candelabrum_nn::layers::Linear;
use candelabrum_nn::ops::CrossEntropyConfig;
use candelabrum_nn::{Weight, ops};
use candle_core::{Module, Result, Tensor};

/// The target of a token that does not count, as in PyTorch.
pub const IGNORED: i64 = -100;

/// The last layer of a language model.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LmHead<'a> {
    /// A layer of its own.
    Layer(&'a Linear),
    /// The table of the tokens, `(vocabulary, width)`: the weights are tied.
    Table(&'a Weight),
}

impl LmHead<'_> {
    /// The logits of `states`, `(.., width) -> (.., vocabulary)`.
    ///
    /// # Errors
    /// States of another width.
    pub(crate) fn logits(&self, states: &Tensor) -> Result<Tensor> {
        match self {
            Self::Layer(layer) => layer.forward(states),
            Self::Table(table) => table.linear(states, None, None),
        }
    }

    /// The mean cross entropy of `targets` (N, T), the tokens that follow, for `states` (N, T, width). Targets of
    /// [`IGNORED`] do not count.
    ///
    /// # Errors
    /// Shapes that do not fit together, or a target that is not in the vocabulary.
    pub(crate) fn loss(&self, states: &Tensor, targets: &Tensor, training: bool) -> Result<Tensor> {
        let config = CrossEntropyConfig { ignore_index: Some(IGNORED), ..Default::default() };
        match self {
            Self::Layer(layer) => layer.cross_entropy(states, targets, config),
            Self::Table(table) if training => table.cross_entropy(states, None, targets, config),
            Self::Table(table) => table.loss_alone(&states.detach(), None, targets, config),
        }
    }
}

/// The first of `(N, T, C)`'s T tokens, as `(N, C)`.
pub(super) fn first_token(states: &Tensor) -> Result<Tensor> {
    let (batch, _, width) = states.dims3()?;
    ops::narrow(states, 1, 0, 1)?.reshape((batch, width))
}
