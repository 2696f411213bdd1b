//! The networks as a user of this project writes them, with the ready models and `DistOpt`.
//!
//! A world of one rank also contains all parts of distributed training: buckets, the check of every
//! gradient, the collective.

use candelabrum::dist::{Error, StepFigures, StepGraph};
use candelabrum::models;
use candelabrum::prelude::*;

use crate::Train;
use crate::network::{Network, VOCABULARY};
use crate::problem;

/// A network and its optimizer.
pub(crate) struct Ours<M> {
    model: M,
    opt: DistOpt,
    graph: Option<StepGraph<2, 1>>,
}

/// The initial state of a network.
struct Start<'a> {
    network: Network,
    params: &'a Params,
    xs: &'a Tensor,
    world: &'a World,
    use_graph: bool,
}

/// The network, with parameters of this type, perhaps as CUDA graphs. It infers its sizes from a batch of
/// inputs.
pub(crate) fn new(
    network: Network,
    xs: &Tensor,
    world: &World,
    (dtype, use_graph): (DType, bool),
) -> anyhow::Result<Box<dyn Train>> {
    let params = Params::on(0, dtype, world.device());
    let root = params.root();
    let start = Start { network, params: &params, xs, world, use_graph };
    match network {
        Network::Cnn => Ours::boxed(models::Cnn::new(&root, 10), &start),
        Network::Mlp => Ours::boxed(models::Mlp::new(&root, 10), &start),
        Network::Resnet18 => Ours::boxed(models::ResNet18::new(&root, 10), &start),
        Network::Gru => {
            let config = models::GruClassifierConfig {
                vocabulary: VOCABULARY,
                embedding: 64,
                hidden: 128,
                classes: 10,
            };
            Ours::boxed(models::GruClassifier::new(&root, config), &start)
        }
    }
}

impl<M: Model + 'static> Ours<M> {
    fn boxed(model: M, start: &Start<'_>) -> anyhow::Result<Box<dyn Train>> {
        let &Start { network, params, xs, world, use_graph } = start;
        model.compile_with(params, xs)?;
        for (name, value) in problem::parameters(network)? {
            let param = params.get(&name)?;
            param.set(&value.to_device(world.device())?.to_dtype(param.var().dtype())?)?;
        }
        let sgd = Sgd::new(0.005).momentum(0.9).weight_decay(1e-5);
        let opt = DistOpt::new(sgd, params, world)?;
        Ok(Box::new(Self { model, opt, graph: use_graph.then(StepGraph::default) }))
    }
}

impl<M: Model> Train for Ours<M> {
    fn step(&mut self, xs: &Tensor, ys: &Tensor) -> anyhow::Result<Tensor> {
        let Self { model, opt, graph } = self;
        let settings = (DistOption::Fp32, 0.0);
        let Some(graph) = graph else {
            return Ok(model.train_one_batch(opt, xs, ys, settings.0, settings.1)?.1);
        };
        let [loss] = graph.run(opt, [xs, ys], settings, |opt, [xs, ys]| {
            let (_, loss) = model.train_one_batch(opt, xs, ys, settings.0, settings.1)?;
            Ok::<_, Error>([loss])
        })?;
        match opt.take_notices().pop() {
            Some(notice) => anyhow::bail!(notice),
            None => Ok(loss),
        }
    }

    fn figures(&self) -> Option<StepFigures> {
        Some(self.opt.figures(DistOption::Fp32))
    }
}
