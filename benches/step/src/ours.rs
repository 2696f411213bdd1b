//! The networks as a user of this project writes them: the ready models and `DistOpt`, in a world
//! of one.
//!
//! What makes training distributed stays in: buckets, the checks of every gradient, the collective.

use candelabrum::dist::StepFigures;
use candelabrum::models;
use candelabrum::prelude::*;

use crate::Train;
use crate::network::Network;
use crate::problem::{self, VOCABULARY};

/// A network and its optimizer.
pub(crate) struct Ours<M> {
    model: M,
    opt: DistOpt,
}

/// The network; a batch of inputs tells it its sizes.
pub(crate) fn new(network: Network, xs: &Tensor) -> anyhow::Result<Box<dyn Train>> {
    let params = Params::new(0);
    let root = params.root();
    match network {
        Network::Cnn => Ours::boxed(models::Cnn::new(&root, 10), network, &params, xs),
        Network::Mlp => Ours::boxed(models::Mlp::new(&root, 10), network, &params, xs),
        Network::Resnet18 => Ours::boxed(models::ResNet18::new(&root, 10), network, &params, xs),
        Network::Gru => {
            let config = models::GruClassifierConfig {
                vocabulary: VOCABULARY,
                embedding: 64,
                hidden: 128,
                classes: 10,
            };
            Ours::boxed(models::GruClassifier::new(&root, config), network, &params, xs)
        }
    }
}

impl<M: Model + 'static> Ours<M> {
    fn boxed(
        model: M,
        network: Network,
        params: &Params,
        xs: &Tensor,
    ) -> anyhow::Result<Box<dyn Train>> {
        params.eval();
        model.forward(xs)?;
        params.train();
        for (name, value) in problem::parameters(network)? {
            params.get(&name)?.set(&value)?;
        }
        let sgd = Sgd::new(0.005).momentum(0.9).weight_decay(1e-5);
        let opt = DistOpt::new(sgd, params, &World::single())?;
        Ok(Box::new(Self { model, opt }))
    }
}

impl<M: Model> Train for Ours<M> {
    fn step(&mut self, xs: &Tensor, ys: &Tensor) -> anyhow::Result<Tensor> {
        let step = self.model.train_one_batch(&mut self.opt, xs, ys, DistOption::Fp32, 0.0)?;
        Ok(step.1)
    }

    fn figures(&self) -> Option<StepFigures> {
        Some(self.opt.figures(DistOption::Fp32))
    }
}
