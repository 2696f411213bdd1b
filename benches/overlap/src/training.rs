//! One copy of the network in training.

use std::time::{Duration, Instant};

use candelabrum::dist::{DistOptConfig, StepFigures};
use candelabrum::models;
use candelabrum::prelude::*;

use crate::talk::{Event, Parts, Timed};
use crate::{Name, repeat};

/// The number of batches that are used in turn.
const BATCHES: usize = 4;

pub(crate) struct Training {
    model: Box<dyn Forward>,
    opt: DistOpt,
    world: World,
    batches: Vec<(Tensor, Tensor)>,
    taken: usize,
    /// Time that the steps spent on the forward pass and the loss.
    forward: Duration,
    /// Seconds of a step, as measured so far.
    last: f64,
}

/// A model chosen at run time.
trait Forward {
    fn loss(&self, xs: &Tensor, ys: &Tensor) -> anyhow::Result<Tensor>;
}

impl<M: Model> Forward for M {
    fn loss(&self, xs: &Tensor, ys: &Tensor) -> anyhow::Result<Tensor> {
        Ok(Model::loss(self, &Model::forward(self, xs)?, ys)?)
    }
}

/// A user's settings, except for the overlap, which is measured.
fn config(overlap: bool) -> DistOptConfig {
    DistOptConfig { overlap, ..DistOptConfig::default() }
}

impl Training {
    pub(crate) fn new(
        network: Name,
        batch_size: usize,
        world: &World,
        overlap: bool,
    ) -> anyhow::Result<Self> {
        let params = Params::new(0);
        let root = params.root();
        let shape = match network {
            Name::Cnn | Name::Mlp => (1, 28),
            Name::Resnet18 => (3, 32),
        };
        let model: Box<dyn Forward> = match network {
            Name::Cnn => compiled(models::Cnn::new(&root, 10), &params, shape)?,
            Name::Mlp => compiled(models::Mlp::new(&root, 10), &params, shape)?,
            Name::Resnet18 => compiled(models::ResNet18::new(&root, 10), &params, shape)?,
        };
        let sgd = Sgd::new(0.005).momentum(0.9).weight_decay(1e-5);
        let opt = DistOpt::with_config(sgd, &params, world, config(overlap))?;
        Ok(Self {
            model,
            opt,
            world: world.clone(),
            batches: batches(world, batch_size, shape)?,
            taken: 0,
            forward: Duration::ZERO,
            last: 1.0,
        })
    }

    /// The number of elements of the whole network's gradient.
    pub(crate) fn elements(&self) -> usize {
        self.opt.params().element_count()
    }

    pub(crate) fn step(&mut self) -> anyhow::Result<()> {
        let (xs, ys) = &self.batches[self.taken % BATCHES];
        let start = Instant::now();
        let loss = self.model.loss(xs, ys)?;
        self.forward += start.elapsed();
        self.taken += 1;
        self.opt.backward_and_update_with(&loss, DistOption::Fp32, 0.0)?;
        self.last = start.elapsed().as_secs_f64();
        Ok(())
    }

    pub(crate) fn sample(&mut self, seconds: f64) -> anyhow::Result<Event> {
        let (world, mut last) = (self.world.clone(), self.last);
        self.forward = Duration::ZERO;
        let before = self.opt.figures(DistOption::Fp32);
        let timed = repeat(&world, seconds, &mut last, || self.step())?;
        self.last = last;
        let cost = self.opt.figures(DistOption::Fp32) - before;
        Ok(Event::Sample {
            times: timed.count,
            seconds: timed.seconds,
            step_seconds: Some(parts(&timed, self.forward, &cost)),
            communication_seconds: Some(cost.communication.as_secs_f64() / timed.count as f64),
        })
    }
}

fn compiled<M: Model + 'static>(
    model: M,
    params: &Params,
    (channels, side): (usize, usize),
) -> anyhow::Result<Box<dyn Forward>> {
    model.compile(params, (1, channels, side, side))?;
    Ok(Box::new(model))
}

/// Images that differ between ranks. Their content does not matter.
fn batches(
    world: &World,
    size: usize,
    (channels, side): (usize, usize),
) -> anyhow::Result<Vec<(Tensor, Tensor)>> {
    let batch = |index: usize| {
        let first = (world.rank() * BATCHES + index) * size;
        let pixels = channels * side * side;
        let pixel = |i: usize| ((first * pixels + i) * 7919 % 1009) as f32 / 1009.0;
        let xs: Vec<f32> = (0..size * pixels).map(pixel).collect();
        let ys: Vec<u32> = (0..size).map(|i| ((first + i) % 10) as u32).collect();
        let device = Device::Cpu;
        let xs = Tensor::from_vec(xs, (size, channels, side, side), &device)?;
        Ok((xs, Tensor::from_vec(ys, size, &device)?))
    };
    (0..BATCHES).map(batch).collect()
}

fn parts(timed: &Timed, forward: Duration, cost: &StepFigures) -> Parts {
    let per_step = |time: Duration| time.as_secs_f64() / timed.count as f64;
    let mut parts = Parts {
        total: timed.seconds,
        forward: per_step(forward),
        backward: per_step(cost.backward),
        compress: per_step(cost.compress),
        exposed_communication: per_step(cost.exposed),
        decompress: per_step(cost.decompress),
        update: per_step(cost.update),
        other: 0.0,
    };
    let known = parts.forward
        + parts.backward
        + parts.compress
        + parts.exposed_communication
        + parts.decompress
        + parts.update;
    // The parts are measured with separate clock readings, so their sum may exceed the total.
    parts.other = (parts.total - known).max(0.0);
    parts
}
