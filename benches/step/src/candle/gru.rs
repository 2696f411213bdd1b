//! The sequence classifier in candle.

use candle_core::{Module, Result, Tensor};
use candle_nn::{Embedding, Linear, RNN, VarBuilder};

use crate::network::VOCABULARY;

pub(super) struct Gru {
    embedding: Embedding,
    gru: candle_nn::GRU,
    linear: Linear,
}

impl Gru {
    pub(super) fn new(vb: &VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            embedding: candle_nn::embedding(VOCABULARY, 64, vb.pp("embedding"))?,
            gru: candle_nn::gru(64, 128, Default::default(), vb.pp("gru"))?,
            linear: candle_nn::linear(128, 10, vb.pp("linear"))?,
        })
    }
}

impl Module for Gru {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let states = self.gru.seq(&self.embedding.forward(xs)?)?;
        let last = states.last().expect("a sequence has tokens");
        self.linear.forward(last.h())
    }
}
