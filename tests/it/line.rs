//! A line through points: a model whose steps take no time, and its data.

use candelabrum::prelude::*;
use candelabrum_testkit::uniform;

pub(crate) const SAMPLES: usize = 96;

/// Points of six features, whose value is half of the first one.
pub(crate) fn data() -> TensorDataset<(Tensor, Tensor)> {
    let xs = uniform((SAMPLES, 6), 1, -1.0, 1.0, DType::F32).unwrap();
    let ys = (xs.narrow(1, 0, 1).unwrap() * 0.5).unwrap();
    TensorDataset::pair(xs, ys).unwrap()
}

pub(crate) struct Line {
    pub(crate) out: Linear,
}

impl Model for Line {
    fn forward(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        self.out.forward(xs)
    }

    fn loss(&self, output: &Tensor, ys: &Tensor) -> candelabrum::candle::Result<Tensor> {
        (output - ys)?.to_dtype(DType::F32)?.sqr()?.mean_all()
    }
}
