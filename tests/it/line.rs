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

/// A trainer of the line with this learning rate, which measures the errors of a regression.
pub(crate) fn trainer(world: &World, rate: f64) -> Trainer<Line> {
    let params = Params::new(1);
    trainer_with(&params, DistOpt::new(Sgd::new(rate), &params, world).unwrap())
}

pub(crate) fn trainer_with(params: &Params, opt: DistOpt) -> Trainer<Line> {
    let model = Line { out: Linear::new(&params.root().pp("out"), 1) };
    let mut trainer = Trainer::new(model, opt).with_score(RegressionErrors);
    trainer.compile((1, 6)).unwrap();
    trainer
}
