//! A measured program of `cargo xtask bench-step` and `bench-ddp`: one contender on one network.
//!
//! Every contender of this program uses mimalloc and, by feature unification, candle's AVX-512
//! matrix products, so the raw candle contender is candle at its best.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "its result is what it prints")]
#![expect(clippy::print_stderr, reason = "a command-line program says what failed")]

mod candle;
mod network;
mod ours;
mod problem;
mod profile;
mod run;

use std::io;
use std::process::ExitCode;

use candelabrum::dist::{StepFigures, World, launch};
use candelabrum::train::cli::Precision;
use candle_core::{DType, Tensor};
use clap::{Parser, ValueEnum};

use crate::network::Network;
use crate::run::Run;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Train a network: say when it is warm, then take a sample for every line `go SECONDS`
#[derive(Debug, Parser)]
struct Args {
    #[arg(long)]
    contender: Contender,
    #[arg(long)]
    network: Network,
    #[arg(long)]
    batch_size: usize,
    #[arg(long)]
    threads: usize,
    /// Steps before the first sample
    #[arg(long)]
    warm_up: usize,
    /// Instead of samples, the time of each operation in some seconds of training
    #[arg(long, value_name = "SECONDS")]
    profile: Option<f64>,
    /// Record the step as CUDA graphs and replay them; a step that is not recorded is an error
    #[arg(long)]
    graph: bool,
    /// The type of parameters and activations, for this project's networks
    #[arg(long, default_value = "f32")]
    precision: Precision,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Contender {
    Ours,
    Candle,
}

/// A network with its optimizer.
trait Train {
    /// Forward, loss, backward, update. Returns the loss before the update.
    fn step(&mut self, xs: &Tensor, ys: &Tensor) -> anyhow::Result<Tensor>;

    /// The cost of the steps so far, if the contender measures it.
    fn figures(&self) -> Option<StepFigures> {
        None
    }
}

fn main() -> ExitCode {
    let Err(error) = run(&Args::parse()) else { return ExitCode::SUCCESS };
    // On one line, because the caller shows it in a table.
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}

fn run(args: &Args) -> anyhow::Result<()> {
    if let Contender::Ours = args.contender {
        // As in the project's own programs. candle keeps its defaults: there RAYON_NUM_THREADS,
        // which the caller sets, limits both of its pools.
        launch::limit_threads(args.threads)?;
    }
    let world = match args.contender {
        Contender::Ours => World::from_env()?,
        Contender::Candle => World::single(),
    };
    let trained = train(args, &world);
    if let Err(error) = &trained {
        world.abort(&format!("{error:#}"));
    }
    trained
}

fn train(args: &Args, world: &World) -> anyhow::Result<()> {
    let batches = problem::batches(args.network, args.batch_size, world.rank())?;
    let dtype = args.precision.dtype();
    let there = |tensor: &Tensor| {
        let dtype = if tensor.dtype().is_float() { dtype } else { tensor.dtype() };
        tensor.to_device(world.device())?.to_dtype(dtype)
    };
    let batches = batches
        .iter()
        .map(|(xs, ys)| Ok((there(xs)?, there(ys)?)))
        .collect::<candle_core::Result<Vec<_>>>()?;
    let contender: Box<dyn Train> = match args.contender {
        Contender::Ours => ours::new(args.network, &batches[0].0, world, (dtype, args.graph))?,
        Contender::Candle if dtype != DType::F32 => anyhow::bail!("candle's networks are in f32"),
        Contender::Candle => Box::new(candle::Candle::new(args.network)?),
    };
    let mut run = Run::new(contender, batches, world.clone());
    if let Some(seconds) = args.profile {
        run.warm_up(args.warm_up)?;
        println!("{}", serde_json::to_string(&profile::profile(&mut run, seconds)?)?);
        return Ok(());
    }
    run.serve(args.warm_up, io::stdin().lock(), |event| {
        println!("{}", serde_json::to_string(event)?);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(contender: Box<dyn Train>, network: Network, size: usize) -> Vec<f32> {
        let batches = problem::batches(network, size, 0).expect("batches are made");
        Run::new(contender, batches, World::single()).warm_up(3).expect("it trains")
    }

    #[test]
    fn candle_trains_every_network() -> anyhow::Result<()> {
        for &network in Network::value_variants() {
            let losses = losses(Box::new(candle::Candle::new(network)?), network, 4);
            assert!(losses.iter().all(|loss| loss.is_finite()), "{network:?}: {losses:?}");
        }
        Ok(())
    }

    #[test]
    fn ours_and_candle_train_the_same_way_where_nothing_is_pooled() -> anyhow::Result<()> {
        for network in [Network::Mlp, Network::Gru] {
            let xs = &problem::batches(network, 4, 0)?[0].0;
            let ours =
                losses(ours::new(network, xs, &World::single(), (DType::F32, false))?, network, 4);
            let candles = losses(Box::new(candle::Candle::new(network)?), network, 4);
            for (a, b) in ours.iter().zip(&candles) {
                assert!((a - b).abs() < 1e-4, "{network:?}: {ours:?}, {candles:?}");
            }
        }
        Ok(())
    }
}
