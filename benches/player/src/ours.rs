//! The contender of this project: the ready models and `DistOpt`, as a user writes them.
//!
//! A world of one rank also contains all parts of distributed training: buckets, the check of every
//! gradient, the collective.

use std::time::{Duration, Instant};

use candelabrum::dist::{DistOptConfig, Error, StepGraph};
use candelabrum::models::{self, GptConfig, Stem};
use candelabrum::nn::Summary;
use candelabrum::prelude::*;
use candelabrum::train::checkpoint::RunState;

use crate::contender::{Cost, Train};
use crate::problem::{GRU, LSTM, Network, initialise};
use crate::settings::Settings;

/// The loss of a model for a batch.
type Loss = Box<dyn Fn(&Tensor, &Tensor) -> candle_core::Result<Tensor>>;

/// A network and its optimizer.
pub(crate) struct Ours {
    loss: Loss,
    opt: DistOpt,
    strategy: DistOption,
    spars: f32,
    graph: Option<StepGraph<2, 1>>,
    saving: Option<Saving>,
    /// The time that the steps so far spent on the forward pass and the loss.
    forward: Duration,
}

/// Checkpoints every so many steps, in a directory that is removed at the end.
struct Saving {
    checkpoints: Checkpoints,
    state: RunState,
    _dir: tempfile::TempDir,
}

impl Saving {
    fn new(every: u64, opt: &DistOpt) -> anyhow::Result<Option<Self>> {
        if every == 0 {
            return Ok(None);
        }
        let dir = tempfile::tempdir()?;
        let config = CheckpointConfig { every: Some(every), keep: 1, resume: Resume::Never };
        let checkpoints = Checkpoints::open(dir.path(), opt.group(), config, true)?;
        Ok(Some(Self { checkpoints, state: RunState::default(), _dir: dir }))
    }

    fn after_step(&mut self, opt: &mut DistOpt) -> anyhow::Result<()> {
        self.state.position.step += 1;
        if self.checkpoints.is_due(self.state.position.step) {
            let saved = self.checkpoints.save(&mut [("", opt)], &self.state)?;
            if let Some(why) = saved.failed {
                anyhow::bail!(why);
            }
        }
        Ok(())
    }
}

/// A network with its initial values, and its layers. It infers its sizes from a batch of inputs.
pub(crate) fn model(
    network: Network,
    params: &Params,
    xs: &Tensor,
) -> anyhow::Result<(Loss, Summary)> {
    let (root, classes) = (&params.root(), network.classes());
    let model = match network {
        Network::Cnn => compiled(models::Cnn::new(root, classes), params, xs),
        Network::Mlp => compiled(models::Mlp::new(root, classes), params, xs),
        Network::Resnet18 | Network::Resnet18At224 => {
            compiled(models::ResNet18::new(root, classes), params, xs)
        }
        Network::Resnet18Small => {
            compiled(models::ResNet18::with_stem(root, classes, Stem::Small), params, xs)
        }
        Network::Resnet50At224 => compiled(models::ResNet50::new(root, classes), params, xs),
        // Its masks would differ from those of other libraries.
        Network::MobileNetV2At224 => {
            compiled(models::MobileNetV2::with_dropout(root, classes, 0.0), params, xs)
        }
        Network::Gru => compiled(models::GruClassifier::new(root, GRU), params, xs),
        Network::Lstm => compiled(models::CharLstm::new(root, LSTM), params, xs),
        Network::Gpt => {
            let gpt = models::Gpt::new(root, GptConfig::default());
            // The loss of its `train_one_batch`, which never has all logits at once.
            with_loss(gpt, |gpt, xs, ys| gpt.loss_of(&gpt.states(xs)?, ys), params, xs)
        }
    }?;
    initialise(params)?;
    Ok(model)
}

fn compiled<M: Model + 'static>(
    model: M,
    params: &Params,
    xs: &Tensor,
) -> candle_core::Result<(Loss, Summary)> {
    with_loss(model, |model, xs, ys| model.loss(&model.forward(xs)?, ys), params, xs)
}

fn with_loss<M: Model + 'static>(
    model: M,
    loss: impl Fn(&M, &Tensor, &Tensor) -> candle_core::Result<Tensor> + 'static,
    params: &Params,
    xs: &Tensor,
) -> candle_core::Result<(Loss, Summary)> {
    let summary = model.compile_with(params, xs)?;
    Ok((Box::new(move |xs, ys| loss(&model, xs, ys)), summary))
}

impl Ours {
    pub(crate) fn new(settings: &Settings, xs: &Tensor, world: &World) -> anyhow::Result<Self> {
        let &Settings { network, strategy, spars, overlap, strangers, .. } = settings;
        let params = settings.precision.params(0, world.device());
        let (loss, _) = model(network, &params, xs)?;
        let optimizer: Box<dyn Optimizer> = match settings.adamw {
            true => Box::new(AdamW::new(1e-3)),
            false => Box::new(Sgd::new(0.005).momentum(0.9).weight_decay(1e-5)),
        };
        let world = if strangers { &World::single() } else { world };
        let config = DistOptConfig { overlap, ..DistOptConfig::default() };
        let opt = DistOpt::with_config(optimizer, &params, world, config)?;
        let graph = settings.graph.then(StepGraph::default);
        let saving = Saving::new(settings.checkpoint_every, &opt)?;
        Ok(Self { loss, opt, strategy, spars, graph, saving, forward: Duration::ZERO })
    }
}

impl Train for Ours {
    fn step(&mut self, xs: &Tensor, ys: &Tensor) -> anyhow::Result<Tensor> {
        if let Some(saving) = &mut self.saving {
            saving.after_step(&mut self.opt)?;
        }
        let Self { loss, opt, graph, forward, .. } = self;
        let settings = (self.strategy, self.spars);
        // The work of `Model::train_one_batch`, with a clock around the forward pass.
        let mut step = |opt: &mut DistOpt, xs: &Tensor, ys: &Tensor| -> Result<Tensor, Error> {
            let start = Instant::now();
            let loss = loss(xs, ys)?;
            *forward += start.elapsed();
            opt.backward_and_update_with(&loss, settings.0, settings.1)?;
            Ok(loss.detach())
        };
        let Some(graph) = graph else { return Ok(step(opt, xs, ys)?) };
        let [loss] = graph
            .run(opt, [xs, ys], settings, |opt, [xs, ys]| Ok::<_, Error>([step(opt, xs, ys)?]))?;
        match opt.take_notes().pop() {
            Some(note) => anyhow::bail!(note),
            None => Ok(loss),
        }
    }

    fn elements(&self) -> usize {
        self.opt.params().element_count()
    }

    fn cost(&self) -> Option<Cost> {
        let has_residuals =
            matches!(self.strategy, DistOption::SparseTopK | DistOption::SparseThreshold);
        Some(Cost {
            forward: self.graph.is_none().then_some(self.forward),
            figures: self.opt.figures(self.strategy),
            residual_norm: has_residuals.then(|| self.opt.residual_norm()),
        })
    }
}
