//! A candle-nn model, built through a `VarBuilder`, that `DistOpt` trains without changes.
//!
//! ```text
//! cargo run --release --example candle_nn_model -- --workers 2 --dataset synthetic --epochs 3
//! ```

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use candelabrum::prelude::*;
use candelabrum::train::cli::{TrainArgs, load_data, parse, run};
use candle_nn::{VarBuilder, VarMap};
use clap::Parser;

#[global_allocator]
static ALLOCATOR: CountedHeap<mimalloc::MiMalloc> = CountedHeap(mimalloc::MiMalloc);

/// Train a candle-nn perceptron on MNIST
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    train: TrainArgs,
}

/// Plain candle-nn, without anything of Candelabrum.
fn mlp(vb: &VarBuilder<'_>) -> candle_core::Result<candle_nn::Sequential> {
    Ok(candle_nn::seq()
        .add_fn(|xs| xs.flatten_from(1))
        .add(candle_nn::linear(28 * 28, 200, vb.pp("hidden"))?)
        .add(candle_nn::Activation::Relu)
        .add(candle_nn::linear(200, 10, vb.pp("out"))?))
}

fn main() -> ExitCode {
    let args = parse::<Args>().train;
    run(&args, |world| train(&args, world))
}

fn train(args: &TrainArgs, world: &World) -> Result<()> {
    let data = load_data(args, world)?;
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, args.precision.dtype(world.device()), world.device());
    let model = FromModule(mlp(&vb)?);

    // Sorted by name, so that every rank has the same order. `DistOpt` makes the values equal to
    // rank 0's, because candle-nn's initial values cannot be seeded.
    let params = Params::from_varmap(&varmap)?;
    let mut trainer = Trainer::new(model, args.make_optimizer(&params, world)?);
    let mut out = io::stdout();
    let fit = args.fit_on(world, data.name, data.train.len())?.output(&mut out);
    trainer.fit_with(fit, &args.augmented(&data.train), Some(&data.test))?;
    Ok(())
}
