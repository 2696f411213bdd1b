//! SINGA's CNN on MNIST: alone, with `--workers N`, under mpiexec, srun or torchrun.
//!
//! ```text
//! cargo run --release --example mnist_dist
//! cargo run --release --example mnist_dist -- --workers 2 --epochs 3
//! mpiexec -n 2 cargo run --release --features mpi --example mnist_dist
//! ```

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use candelabrum::models::Cnn;
use candelabrum::prelude::*;
use candelabrum::train::cli::{TrainArgs, load_data, parse, run};
use clap::Parser;

#[global_allocator]
static ALLOCATOR: CountedHeap<mimalloc::MiMalloc> = CountedHeap(mimalloc::MiMalloc);

/// Train SINGA's convolutional network on MNIST
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    train: TrainArgs,
}

fn main() -> ExitCode {
    let args = parse::<Args>().train;
    run(&args, |world| train(&args, world))
}

fn train(args: &TrainArgs, world: &World) -> Result<()> {
    let data = load_data(args, world)?;
    let params = args.precision.params(args.seed, world.device());
    let model = Cnn::new(&params.root(), data.train.classes());
    let opt = args.make_optimizer(&params, world)?;
    let mut trainer = Trainer::new(model, opt).use_graph(args.graph);

    let [channels, height, width] = data.train.image_shape();
    let summary = trainer.compile((1, channels, height, width))?;
    let threads = args.threads.unwrap_or_else(|| world.default_threads());
    let dropped = args.sampler(world, data.train.len())?.dropped_per_epoch();
    let mut out = io::stdout();
    if world.is_root() {
        let (train, test) = (data.train.len(), data.test.len());
        writeln!(out, "{}: {train} training and {test} test images", data.name)?;
        let (ranks, backend, batch) = (world.world_size(), world.backend(), args.batch_size);
        let (device, precision) = (world.device_name(), args.precision.describe(world.device()));
        writeln!(
            out,
            "ranks {ranks} ({backend}) on {device} in {precision}, threads {threads} and batch \
             {batch} per rank"
        )?;
        if dropped > 0 {
            writeln!(
                out,
                "each epoch leaves out {dropped} images, others every time: the last batch is not full"
            )?;
        }
        writeln!(out, "{summary}\n")?;
    }

    let fit = args.fit(args.report(world, &data, dropped)).output(&mut out);
    trainer.fit_with(fit, &args.augmented(&data.train), Some(&data.test))?;
    Ok(())
}
