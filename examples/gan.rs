//! A GAN in miniature: two models with an optimizer each, as a task of your own (Goodfellow et al., 2014).
//!
//! ```text
//! cargo run --release --example gan
//! cargo run --release --example gan -- --workers 2 --checkpoint-dir runs/gan
//! ```
//!
//! The generator turns noise into points of the plane, which shall be distributed as eight spots on a
//! circle. The discriminator tells real points from generated ones. `distance` is the energy distance
//! of both (Székely and Rizzo, 2013). With batches of 64 it is 0.04 for equal distributions.

use std::{f32::consts::TAU, io, process::ExitCode, sync::Arc};

use anyhow::{Result, ensure};
use candelabrum::candle;
use candelabrum::prelude::*;
use candelabrum::train::Result as TrainResult;
use candelabrum::train::checkpoint::Position;
use candelabrum::train::cli::{TrainArgs, parse, run};
use clap::Parser;

/// Train a generator of points and a discriminator against each other
#[derive(Parser)]
#[command(mut_arg("optimizer", |name| name.default_value("rmsprop")))]
#[command(mut_arg("lr", |lr| lr.default_value("0.0005")))]
#[command(mut_arg("momentum", |momentum| momentum.default_value("0")))]
struct Args {
    #[command(flatten)]
    train: TrainArgs,
}

/// From points or noise (N, 2) to points (N, 2), or to scores of `generated` and `real` (N, 2).
type Net = FromModule<candle_nn::Sequential>;

struct Gan {
    generator: Net,
    discriminator: Net,
    opts: [DistOpt; 2],
    position: Position,
    strategy: (DistOption, f32),
}

type Points = (Tensor, Tensor); // a batch: real points (N, 2) and noise (N, 2)

impl Task<Points> for Gan {
    fn train(&mut self, (real, noise): &Points, metrics: &mut Metrics) -> TrainResult<f32> {
        let (count, (option, spars)) = (real.dim(0)?, self.strategy);
        let label = |label: u32| Tensor::full(label, count, real.device());
        let generated = self.generator.forward(noise)?;
        let points = Tensor::cat(&[&generated.detach(), real], 0)?;
        let labels = Tensor::cat(&[label(0)?, label(1)?], 0)?;
        let loss = self.discriminator.loss(&self.discriminator.forward(&points)?, &labels)?;
        self.opts[1].backward_and_update_with(&loss, option, spars)?;
        let loss = self.discriminator.loss(&self.discriminator.forward(&generated)?, &label(1)?)?;
        self.opts[0].backward_and_update_with(&loss, option, spars)?;
        let value = loss.detach().to_dtype(DType::F32)?.to_scalar::<f32>()?;
        metrics.add_batch(count, value);
        Ok(value)
    }
    fn evaluate(&mut self, (real, noise): &Points, metrics: &mut Metrics) -> TrainResult<()> {
        let (fake, count) = (self.generator.forward(noise)?.detach(), real.dim(0)?);
        let apart = |a: &Tensor, b: &Tensor| -> candle::Result<f64> {
            let all = a.unsqueeze(1)?.broadcast_sub(&b.unsqueeze(0)?)?.to_dtype(DType::F64)?;
            all.sqr()?.sum(2)?.sqrt()?.mean_all()?.to_scalar::<f64>() // (N, N, 2) -> (N, N)
        };
        let distance = 2.0 * apart(&fake, real)? - apart(real, real)? - apart(&fake, &fake)?;
        metrics.add_measure("distance", distance * count as f64, count as f64);
        metrics.add_batch(count, distance as f32);
        Ok(())
    }
    fn optimizer(&mut self) -> &mut DistOpt {
        &mut self.opts[0]
    }
    fn optimizers(&mut self) -> Vec<(&str, &mut DistOpt)> {
        let [generator, discriminator] = &mut self.opts;
        vec![("generator", generator), ("discriminator", discriminator)]
    }
    fn position(&mut self) -> &mut Position {
        &mut self.position
    }
    fn strategy(&self) -> (DistOption, f32) {
        self.strategy
    }
}

/// A point on one of eight spots, and noise. Both follow from the seed, the epoch and the sample.
fn sample(number: usize, pass: &Pass) -> candelabrum::datasets::Result<Points> {
    let mut rng = pass.rng(number);
    let angle = TAU * rng.below(8) as f32 / 8.0;
    let [x, y] = [angle.cos(), angle.sin()].map(|center| center + rng.uniform(-0.1, 0.1));
    let noise = [(); 2].map(|()| rng.uniform(-1.0, 1.0));
    Ok((Tensor::new(&[x, y], &Device::Cpu)?, Tensor::new(&noise, &Device::Cpu)?))
}

fn main() -> ExitCode {
    let args = parse::<Args>().train;
    run(&args, |world| train(&args, world))
}

fn train(args: &TrainArgs, world: &World) -> Result<()> {
    ensure!(!args.uneven && args.kvstore.is_none(), "gan has neither --uneven nor --kvstore");
    let make = |seed| -> Result<(Net, DistOpt)> {
        let params = args.precision.params(seed, world.device());
        let layer = |name, units| Linear::new(&params.root().pp(name), units);
        let hidden = |name| layer(name, 64).activation(Activation::Relu);
        let layers = candle_nn::seq().add(hidden("hidden1")).add(hidden("hidden2"));
        let net = FromModule(layers.add(layer("out", 2)));
        net.compile(&params, (1, 2))?;
        Ok((net, args.make_optimizer(&params, world)?))
    };
    let ((generator, g), (discriminator, d)) = (make(args.seed)?, make(args.seed.wrapping_add(1))?);
    let (position, strategy) = (Position::default(), (args.dist_option, args.spars));
    let mut gan = Gan { generator, discriminator, opts: [g, d], position, strategy };
    let spots = |count| Arc::new(FnDataset::new("eight spots", count, sample));
    let (mut out, train, test) = (io::stdout(), spots(6400), spots(1024));
    let fit = args.fit_on(world, "eight spots", train.len())?.output(&mut out);
    fit.run(&mut gan, &train, Some(&test))?;
    Ok(())
}
