//! The sizes of networks that their batches and their programs in candle must know.

use candelabrum::models::{CharLstmConfig, GruClassifierConfig};

/// The sizes of a network that depend on its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkSizes {
    pub(crate) vocabulary: usize,
    pub(crate) classes: usize,
}

/// The network gru.
pub(crate) const GRU: GruClassifierConfig =
    GruClassifierConfig { vocabulary: 64, embedding: 64, hidden: 128, classes: 10 };

/// The network lstm.
pub(crate) const LSTM: CharLstmConfig =
    CharLstmConfig { vocabulary: 96, embedding: 64, hidden: 256 };

/// The characters in a text of the networks lstm and char-rnn.
pub(crate) const TEXT: usize = 64;
