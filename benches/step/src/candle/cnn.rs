//! SINGA's network for MNIST in candle.

use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv2d, Linear, VarBuilder};

pub(super) struct Cnn {
    conv1: Conv2d,
    conv2: Conv2d,
    linear1: Linear,
    linear2: Linear,
}

impl Cnn {
    pub(super) fn new(vb: &VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            conv1: candle_nn::conv2d(1, 20, 5, Default::default(), vb.pp("conv1"))?,
            conv2: candle_nn::conv2d(20, 50, 5, Default::default(), vb.pp("conv2"))?,
            linear1: candle_nn::linear(800, 500, vb.pp("linear1"))?,
            linear2: candle_nn::linear(500, 10, vb.pp("linear2"))?,
        })
    }
}

impl Module for Cnn {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.conv1.forward(xs)?.relu()?.max_pool2d(2)?;
        let ys = self.conv2.forward(&ys)?.relu()?.max_pool2d(2)?;
        self.linear2.forward(&self.linear1.forward(&ys.flatten_from(1)?)?.relu()?)
    }
}
