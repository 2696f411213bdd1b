//! SINGA's CNN on MNIST through MXNet's key-value store: servers hold the parameters and update them.
//!
//! ```text
//! cargo run --release --example kvstore_mnist -- --workers 2 --servers 1 --kvstore dist_sync
//! cargo run --release --example kvstore_mnist -- --workers 2 --servers 1 --kvstore dist_async
//! mpiexec -n 3 cargo run --release --features mpi --example kvstore_mnist -- --servers 1
//! cargo build --release --example kvstore_mnist
//! candelabrum run --workers 2 --servers 1 -- target/release/examples/kvstore_mnist
//! ```
//!
//! The options of `mnist_dist` have the same meaning here. With dist_sync a server is a rank of each step that owns a part
//! of the parameters. With dist_async each parameter is a key of the store: a step pushes its gradients, and pulls the
//! parameters that the servers have updated.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use candelabrum::models::Cnn;
use candelabrum::prelude::*;
use candelabrum::train::cli::{KvStoreKind, TrainArgs, load_data, parse, run};
use clap::Parser;

#[global_allocator]
static ALLOCATOR: CountedHeap<mimalloc::MiMalloc> = CountedHeap(mimalloc::MiMalloc);

/// Train SINGA's convolutional network on MNIST through a key-value store
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    train: TrainArgs,
}

fn main() -> ExitCode {
    let mut args = parse::<Args>().train;
    args.kvstore.get_or_insert(KvStoreKind::DistSync);
    run(&args, |world| train(&args, world))
}

/// What a worker does. `run` lets the servers serve.
fn train(args: &TrainArgs, world: &World) -> Result<()> {
    let data = load_data(args, world)?;
    let kind = args.kvstore.unwrap_or(KvStoreKind::DistSync);
    let store = KvStore::with_config(&args.store_config(kind), world)?;

    let params = args.precision.params(args.seed, world.device());
    let model = Cnn::new(&params.root(), data.train.classes());
    // The layers of this model keep no tensors of their parameters.
    let config = DistOptConfig { overlap_forward: true, ..args.dist_opt_config()? };
    let recipe = args.optimizer.recipe();
    let opt = DistOpt::with_servers(recipe, &params, store.servers(), config)?;
    let mut trainer = Trainer::new(model, opt);

    let [channels, height, width] = data.train.image_shape();
    let summary = trainer.compile((1, channels, height, width))?;
    let mut out = io::stdout();
    if world.is_root() {
        let (train, test) = (data.train.len(), data.test.len());
        let (workers, servers) = (store.num_workers(), world.servers());
        writeln!(out, "{}: {train} training and {test} test images", data.name)?;
        writeln!(out, "workers {workers}, servers {servers}, {}", store.config().kind)?;
        writeln!(out, "{summary}\n")?;
    }

    let dropped = args.sampler(world, data.train.len())?.dropped_per_epoch();
    let fit = args.fit(args.report(world, &data, dropped)).output(&mut out);
    trainer.fit_with(fit, &args.augmented(&data.train), Some(&data.test))?;
    // In dist_sync no gradient is stale: servers are ranks of each step.
    let stats = if kind == KvStoreKind::DistAsync { store.stats()? } else { Vec::new() };
    if world.is_root() && !stats.is_empty() {
        writeln!(out, "\nserver  worker  pushes  mean staleness  greatest")?;
        for server in &stats {
            for (worker, seen) in server.staleness.iter().enumerate() {
                let (rank, pushes) = (server.rank, server.pushes[worker]);
                let (mean, max) = (seen.mean(), seen.max);
                writeln!(out, "{rank:>6}  {worker:>6}  {pushes:>6}  {mean:>14.3}  {max:>8}")?;
            }
        }
    }
    Ok(())
}
