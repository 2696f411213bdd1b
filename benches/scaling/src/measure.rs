//! The measured steps of one rank, and their result.

use std::time::{Duration, Instant};

use candelabrum::dist::StepFigures;
use candelabrum::prelude::*;
use candelabrum::train::Result;
use serde::Serialize;

use crate::network::{Name, Network};

/// The number of batches that are used in turn.
const BATCHES: usize = 8;

/// The settings of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) network: Name,
    pub(crate) strategy: DistOption,
    /// The setting of a sparse strategy: a share or a magnitude.
    pub(crate) spars: f32,
    pub(crate) batch_size: usize,
    pub(crate) steps: usize,
    /// Steps before the clock starts.
    pub(crate) warm_up: usize,
}

/// The output of a measurement. Times and bytes are this rank's, per step.
#[derive(Debug, Serialize)]
pub(crate) struct Sample {
    model: &'static str,
    strategy: &'static str,
    backend: &'static str,
    world_size: usize,
    threads: usize,
    batch_size: usize,
    steps: usize,
    warm_up_steps: usize,
    /// `None` if the strategy has no such setting.
    spars: Option<f32>,
    /// Of all ranks: their images divided by the time from the first step's start to the last
    /// rank's end.
    images_per_second: f64,
    step_seconds: Split,
    /// The time in which collectives were running, whether or not a thread waited for them.
    communication_seconds: f64,
    bytes_sent_per_step: f64,
    bytes_received_per_step: f64,
    /// `None` if the strategy keeps no residuals.
    residual_norm: Option<f64>,
    final_loss: f32,
}

/// The parts of the mean step's time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Split {
    total: f64,
    forward: f64,
    backward: f64,
    compress: f64,
    exposed_communication: f64,
    decompress: f64,
    update: f64,
    /// The rest of the time, which no part contains.
    other: f64,
}

impl Split {
    fn new(steps: usize, total: Duration, forward: Duration, cost: &StepFigures) -> Self {
        let &StepFigures { backward, compress, exposed, decompress, update, .. } = cost;
        let known = forward + backward + compress + exposed + decompress + update;
        let per_step = |time: Duration| time.as_secs_f64() / steps as f64;
        Self {
            total: per_step(total),
            forward: per_step(forward),
            backward: per_step(backward),
            compress: per_step(compress),
            exposed_communication: per_step(exposed),
            decompress: per_step(decompress),
            update: per_step(update),
            other: per_step(total.saturating_sub(known)),
        }
    }
}

/// A model in training.
struct Run<'a> {
    setting: &'a Setting,
    model: Network,
    opt: DistOpt,
    batches: Vec<(Tensor, Tensor)>,
    /// The number of steps so far.
    taken: usize,
    /// The time that these steps spent on the forward pass and the loss.
    forward: Duration,
}

impl<'a> Run<'a> {
    fn new(setting: &'a Setting, world: &World) -> Result<Self> {
        let params = Params::new(0);
        let model = setting.network.build(&params)?;
        let sgd = Sgd::new(0.005).momentum(0.9).weight_decay(1e-5);
        let opt = DistOpt::new(sgd, &params, world)?;
        let batches = batches(world, setting.batch_size)?;
        Ok(Self { setting, model, opt, batches, taken: 0, forward: Duration::ZERO })
    }

    /// Returns the loss before the update.
    fn step(&mut self) -> Result<Tensor> {
        let (xs, ys) = &self.batches[self.taken % BATCHES];
        let start = Instant::now();
        let loss = self.model.loss(&self.model.forward(xs)?, ys)?;
        self.forward += start.elapsed();
        self.taken += 1;
        self.opt.backward_and_update_with(&loss, self.setting.strategy, self.setting.spars)?;
        Ok(loss)
    }
}

/// Trains, and measures from the time when all ranks are warm until the last rank ends.
pub(crate) fn measure(setting: &Setting, world: &World, threads: usize) -> Result<Sample> {
    let &Setting { network, strategy, batch_size, steps, .. } = setting;
    let mut run = Run::new(setting, world)?;
    for _ in 0..setting.warm_up {
        run.step()?;
    }
    world.comm().barrier()?;
    run.forward = Duration::ZERO;
    let before = run.opt.figures(strategy);
    let start = Instant::now();
    for _ in 1..steps {
        run.step()?;
    }
    let loss = run.step()?;
    let cost = run.opt.figures(strategy) - before;
    world.comm().barrier()?;
    let total = start.elapsed();

    let sparse = matches!(strategy, DistOption::SparseTopK | DistOption::SparseThreshold);
    let images = steps * batch_size * world.world_size();
    Ok(Sample {
        model: network.as_str(),
        strategy: strategy.name(),
        backend: world.backend(),
        world_size: world.world_size(),
        threads,
        batch_size,
        steps,
        warm_up_steps: setting.warm_up,
        spars: sparse.then_some(setting.spars),
        images_per_second: images as f64 / total.as_secs_f64(),
        step_seconds: Split::new(steps, total, run.forward, &cost),
        communication_seconds: cost.communication.as_secs_f64() / steps as f64,
        bytes_sent_per_step: cost.bytes_sent as f64 / steps as f64,
        bytes_received_per_step: cost.bytes_received as f64 / steps as f64,
        residual_norm: sparse.then(|| run.opt.residual_norm()),
        final_loss: loss.to_scalar()?,
    })
}

/// Digits that differ between ranks. They are in memory, so reading data is not measured.
fn batches(world: &World, size: usize) -> Result<Vec<(Tensor, Tensor)>> {
    let digits = Mnist::synthetic(world.rank() as u64, size * BATCHES, 1)?;
    digits
        .train
        .batches(size)?
        .map(|batch| batch.map(|b| (b.xs, b.ys)).map_err(Into::into))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_step_add_up_to_it() {
        let ms = Duration::from_millis;
        let cost = StepFigures { backward: ms(40), exposed: ms(10), ..StepFigures::default() };
        let split = Split::new(10, ms(100), ms(20), &cost);
        let expected = Split {
            total: 0.01,
            forward: 0.002,
            backward: 0.004,
            compress: 0.0,
            exposed_communication: 0.001,
            decompress: 0.0,
            update: 0.0,
            other: 0.003,
        };
        assert_eq!(split, expected);
        // The parts are measured with separate clock readings, so their sum may exceed the total.
        assert_eq!(Split::new(10, ms(10), ms(20), &cost).other, 0.0);
    }

    #[test]
    fn one_rank_measures_every_strategy_and_model() -> Result<()> {
        use clap::ValueEnum;
        for strategy in DistOption::ALL {
            for &network in Name::value_variants() {
                let setting =
                    Setting { network, strategy, spars: 0.05, batch_size: 3, steps: 2, warm_up: 1 };
                let sample = measure(&setting, &World::single(), 1)?;
                assert!(sample.images_per_second > 0.0 && sample.final_loss.is_finite());
                assert!(sample.step_seconds.forward > 0.0, "{sample:?}");
                assert_eq!((sample.steps, sample.world_size), (2, 1));
            }
        }
        Ok(())
    }

    #[test]
    fn batches_have_the_size_that_was_asked_for() -> Result<()> {
        let batches = batches(&World::single(), 4)?;
        assert_eq!(batches.len(), BATCHES);
        assert_eq!(batches[0].0.dims(), [4, 1, 28, 28]);
        assert_eq!(batches[0].1.dims(), [4]);
        Ok(())
    }
}
