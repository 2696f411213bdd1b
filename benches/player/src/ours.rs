//! The contender of this project: the ready models and `DistOpt`, as a user writes them.
//!
//! A world of one rank also contains all parts of distributed training: buckets, the check of every
//! gradient, the collective.

use std::time::{Duration, Instant};

use candelabrum::dist::{DistOptConfig, Error, StepGraph};
use candelabrum::prelude::*;
use candelabrum::train::checkpoint::RunState;

use crate::contender::{Evaluation, StepCost, TrainableNetwork};
use crate::network::{BuiltNetwork, build};
use crate::problem::ProblemBatches;
use crate::settings::TrainingSettings;
use crate::sizes::NetworkSizes;

/// A network and its optimizer.
pub(crate) struct OurContender {
    network: BuiltNetwork,
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

impl OurContender {
    pub(crate) fn new(
        settings: &TrainingSettings,
        sizes: NetworkSizes,
        xs: &Tensor,
        world: &World,
    ) -> anyhow::Result<Self> {
        let &TrainingSettings {
            network, blocks, strategy, spars, overlap, strangers, shard, ..
        } = settings;
        let params = settings.precision.params(0, world.device());
        params.set_recompute(settings.recompute.into());
        let network = build(network, blocks, sizes, &params, xs)?;
        let optimizer: Box<dyn Optimizer> = match settings.adamw {
            true => Box::new(AdamW::new(settings.lr.unwrap_or(1e-3))),
            false => {
                let lr = settings.lr.unwrap_or(0.005);
                Box::new(Sgd::new(lr).momentum(0.9).weight_decay(1e-5))
            }
        };
        let world = if strangers { &World::single() } else { world };
        let config = DistOptConfig { overlap, shard, ..DistOptConfig::default() };
        let opt = DistOpt::with_config(optimizer, &params, world, config)?;
        let graph = settings.graph.then(StepGraph::default);
        let saving = Saving::new(settings.checkpoint_every, &opt)?;
        Ok(Self { network, opt, strategy, spars, graph, saving, forward: Duration::ZERO })
    }
}

impl TrainableNetwork for OurContender {
    fn step(&mut self, xs: &Tensor, ys: &Tensor) -> anyhow::Result<Tensor> {
        if let Some(saving) = &mut self.saving {
            saving.after_step(&mut self.opt)?;
        }
        let Self { network, opt, graph, forward, .. } = self;
        let settings = (self.strategy, self.spars);
        // The work of `Model::train_one_batch`, with a clock around the forward pass.
        let mut step = |opt: &mut DistOpt, xs: &Tensor, ys: &Tensor| -> Result<Tensor, Error> {
            let start = Instant::now();
            let loss = (network.loss)(xs, ys)?;
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

    fn evaluate(&self, tests: &ProblemBatches) -> anyhow::Result<Option<Evaluation>> {
        let params = self.opt.params();
        params.eval();
        let mut sum = Evaluation::default();
        for (xs, ys) in tests {
            let scores = self.network.model.forward(xs)?;
            let loss = self.network.model.loss(&scores, ys)?.to_dtype(DType::F32)?;
            let right = scores.argmax(scores.rank() - 1)?.eq(ys)?.to_dtype(DType::F32)?;
            let count = ys.elem_count();
            sum.loss += f64::from(loss.to_scalar::<f32>()?) * count as f64;
            sum.right += f64::from(right.sum_all()?.to_scalar::<f32>()?);
            sum.count += count;
        }
        params.train();
        Ok(Some(sum))
    }

    fn elements(&self) -> usize {
        self.opt.params().element_count()
    }

    fn cost(&self) -> Option<StepCost> {
        let has_residuals =
            matches!(self.strategy, DistOption::SparseTopK | DistOption::SparseThreshold);
        Some(StepCost {
            forward: self.graph.is_none().then_some(self.forward),
            figures: self.opt.figures(self.strategy),
            residual_norm: has_residuals.then(|| self.opt.residual_norm()),
        })
    }
}
