//! Large batches: LARS or LAMB, a learning rate that grows with the batch, and a warm-up.
//!
//! ```text
//! cargo run --release --example large_batch -- --workers 2
//! cargo run --release --example large_batch -- --workers 2 --optimizer lamb --epochs 5
//! cargo run --release --example large_batch -- --optimizer sgd --batch-size 256 --accumulate 8
//! ```
//!
//! `--lr` is the rate of a batch of 256 images. A batch of B images has B/256 times this rate (Goyal et al. 2017,
//! arXiv:1706.02677), with LAMB the square root of B/256 times (You et al. 2020, arXiv:1904.00962). Without `--warmup`
//! and `--schedule` the rate rises in the first tenth of the steps and then falls as a cosine.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use candelabrum::models::Cnn;
use candelabrum::optim::Recipe;
use candelabrum::prelude::*;
use candelabrum::train::cli::{
    OptimizerArgs, OptimizerKind, ScheduleKind, TrainArgs, load_data, parse, run,
};
use clap::Parser;

#[global_allocator]
static ALLOCATOR: CountedHeap<mimalloc::MiMalloc> = CountedHeap(mimalloc::MiMalloc);

/// The batch for which `--lr` is the learning rate.
const BASE: f64 = 256.0;

/// The share of its norm that a layer moves in a step with LARS at the rate 1. The paper's 0.001 goes with rates above 1.
const TRUST: f64 = 0.02;

/// Train SINGA's convolutional network on MNIST with large batches
#[derive(Parser)]
#[command(mut_arg("optimizer", |name| name.default_value("lars")))]
#[command(mut_arg("lr", |lr| lr
    .default_value("0.1")
    .default_value_ifs([("optimizer", "lamb", "0.005"), ("optimizer", "sgd", "0.03")])))]
#[command(mut_arg("batch_size", |size| size.default_value("512")))]
struct Args {
    #[command(flatten)]
    train: TrainArgs,
}

fn main() -> ExitCode {
    let args = parse::<Args>().train;
    run(&args, |world| train(args.clone(), world))
}

fn train(mut args: TrainArgs, world: &World) -> Result<()> {
    ensure!(args.kvstore.is_none(), "large_batch has no --kvstore: its parameter groups stay here");
    let data = load_data(&args, world)?;
    let sampler = args.sampler(world, data.train.len())?;
    let (batch, steps) = (sampler.global_batch_size(), sampler.steps() * args.epochs);
    scale(&mut args.optimizer, batch, steps as u64);

    let params = args.precision.params(args.seed, world.device());
    let model = Cnn::new(&params.root(), data.train.classes());
    let recipe = recipe(&args.optimizer)?;
    let opt = DistOpt::with_config(recipe.build(), &params, world, args.dist_opt_config()?)?;
    let mut trainer = Trainer::new(model, opt);
    let [channels, height, width] = data.train.image_shape();
    trainer.compile((1, channels, height, width))?;
    let mut out = io::stdout();
    if world.is_root() {
        let OptimizerArgs { optimizer, lr, warmup, .. } = &args.optimizer;
        let images = data.train.len();
        writeln!(
            out,
            "{}: {images} images, {steps} steps of {batch}, {optimizer:?} at {lr:.4} after {warmup} steps\n",
            data.name
        )?;
    }
    let fit = args.fit_on(world, data.name, data.train.len())?.output(&mut out);
    trainer.fit_with(fit, &args.augmented(&data.train), Some(&data.test))?;
    Ok(())
}

/// The rate of a batch of so many images, and its course over all steps of the run.
fn scale(args: &mut OptimizerArgs, batch: usize, steps: u64) {
    let larger = batch as f64 / BASE;
    args.lr *= if args.optimizer == OptimizerKind::Lamb { larger.sqrt() } else { larger };
    if args.warmup == 0 {
        args.warmup = steps / 10;
    }
    if args.schedule == ScheduleKind::Constant {
        let rest = steps.saturating_sub(args.warmup).max(1);
        args.schedule = ScheduleKind::Cosine { steps: rest, min: 0.0 };
    }
}

/// The optimizer. Biases do not decay, and their norms, which are 0 at first, limit no step.
fn recipe(args: &OptimizerArgs) -> Result<Recipe> {
    let (rates, momentum, decay) = (args.rates(), args.momentum, args.decay());
    let biases = ParamGroup::below_dims(2).weight_decay(0.0);
    Ok(match args.optimizer {
        OptimizerKind::Sgd => {
            Sgd::new(rates).momentum(momentum).weight_decay(decay).group(biases).into()
        }
        OptimizerKind::Lars => Lars::new(rates)
            .momentum(momentum)
            .trust_coefficient(TRUST)
            .weight_decay(decay)
            .group(biases.trust_ratio(false))
            .into(),
        OptimizerKind::Lamb => {
            Lamb::new(rates).weight_decay(decay).group(biases.trust_ratio(false)).into()
        }
        other => bail!("large_batch has the optimizers sgd, lars and lamb, not {other:?}"),
    })
}
