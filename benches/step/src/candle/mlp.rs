//! The multilayer perceptron in candle.

use candle_core::{Module, Result, Tensor};
use candle_nn::{Linear, VarBuilder};

pub(super) struct Mlp {
    linear1: Linear,
    linear2: Linear,
    linear3: Linear,
}

impl Mlp {
    pub(super) fn new(vb: &VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            linear1: candle_nn::linear(784, 1024, vb.pp("linear1"))?,
            linear2: candle_nn::linear(1024, 1024, vb.pp("linear2"))?,
            linear3: candle_nn::linear(1024, 10, vb.pp("linear3"))?,
        })
    }
}

impl Module for Mlp {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.linear1.forward(xs)?.relu()?;
        self.linear3.forward(&self.linear2.forward(&ys)?.relu()?)
    }
}
