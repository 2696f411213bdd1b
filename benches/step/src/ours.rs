//! The CNN as a user of this project writes it: the ready model and `DistOpt`, in a world of one.
//!
//! What makes training distributed stays in: buckets, the checks of every gradient, the collective.

use candelabrum::models;
use candelabrum::prelude::*;

use crate::{Train, problem};

/// The network and its optimizer.
pub(crate) struct Cnn {
    model: models::Cnn,
    opt: DistOpt,
}

impl Cnn {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let params = Params::new(0);
        let model = models::Cnn::new(&params.root(), 10);
        model.compile(&params, (1, 1, 28, 28))?;
        for (name, value) in problem::cnn_parameters()? {
            params.get(name)?.set(&value)?;
        }
        let sgd = Sgd::new(0.005).momentum(0.9).weight_decay(1e-5);
        let opt = DistOpt::new(sgd, &params, &World::single())?;
        Ok(Self { model, opt })
    }
}

impl Train for Cnn {
    fn step(&mut self, images: &Tensor, labels: &Tensor) -> anyhow::Result<Tensor> {
        let step =
            self.model.train_one_batch(&mut self.opt, images, labels, DistOption::Fp32, 0.0)?;
        Ok(step.1)
    }
}
