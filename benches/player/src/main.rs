//! The measured programs of the benchmarks of `cargo xtask`, one subcommand for each kind.
//!
//! A contender is one process of this program, or all ranks of a world. `serve.rs` describes its
//! lines. `scripts/bench_*.py` and `allreduce.c` print and answer
//! the same lines for the libraries with which this project is compared.
//!
//! The allocator is mimalloc, as in this project's training programs. With glibc's allocator a step
//! spends up to 15% of its time in page faults. By feature unification candle's matrix products use
//! AVX-512, so the contender `candle` is candle at its best.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "its result is what it prints")]
#![expect(clippy::print_stderr, reason = "a command-line program says what failed")]

mod allreduce;
mod arithmetic;
mod candle;
mod contender;
mod data;
mod exchange;
#[cfg(feature = "finetune")]
mod finetune;
#[cfg(not(feature = "finetune"))]
#[path = "no_finetune.rs"]
mod finetune;
mod hash;
mod network;
mod networks;
mod operation;
mod ours;
mod overlap;
mod pace;
mod problem;
mod products;
mod serve;
mod settings;
mod sizes;
mod straggler;
mod train;
mod training;
mod transfer;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use candelabrum::dist::{World, launch};
use candelabrum::nn::DistOption;
use candelabrum::train::cli;
use clap::Parser;

use crate::serve::Seconds;
use crate::settings::TrainingSettings;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Print a line of JSON when ready, and answer each line of JSON with a sample
#[derive(Debug, Parser)]
enum Command {
    /// Train a network; a request is {"seconds":S} or {"steps":N}, with "evaluate":true for an evaluation
    Train {
        #[command(flatten)]
        settings: TrainingSettings,
        /// Instead of samples, the time of each operation in some seconds of training
        #[arg(long, value_parser = |text: &str| serde_json::from_str::<Seconds>(text))]
        profile: Option<Seconds>,
    },
    /// Multiply large matrices: the speed of a network whose step is nothing else; a request is as for
    /// train
    Products(TrainingSettings),
    /// Compute one operation, forward and backward; a request is {"operation":"gelu:ROWSxCOLUMNS","seconds":S}
    Operation(operation::OperationArgs),
    /// Write the batches of a network's own data to a file, for the option --problem of train
    Problem(data::DataArgs),
    /// Train a pretrained language model, or adapters to it; a request is as for train, without an evaluation
    Finetune(finetune::FinetuneArgs),
    /// Write a pretrained language model as a folder of Hugging Face in f32
    Widen { model: PathBuf, folder: PathBuf },
    /// Train with and without overlap; a request is {"way":"off|on|exchange|alone","seconds":S}
    Overlap(TrainingSettings),
    /// Reduce numbers over all ranks; a request is {"elements":N,"seconds":S}
    Allreduce(allreduce::AllReduceArgs),
    /// Push and pull all parameters of ResNet-18, or reduce them over all ranks; a request is
    /// {"exchange":"dist_sync|dist_async|all_reduce|memory","seconds":S}, and for a store
    /// "optimizer":true and "compression":"fp16|2bit"
    Transfer,
    /// Train on two workers, of which the second one may be slower, and evaluate; a request is
    /// {"exchange":"dist_sync|dist_async|all_reduce","slow":FACTOR,"seconds":S}, and for dist_async
    /// "bound":ROUNDS
    Straggler(straggler::StragglerArgs),
    /// Print the names of the strategies, one per line
    Strategies,
    /// Print the networks as JSON
    Networks,
}

fn main() -> ExitCode {
    let mut world = None;
    let Err(error) = run(&cli::parse(), &mut world) else { return ExitCode::SUCCESS };
    // On one line, because the caller shows it in a table.
    eprintln!("error: {error:#}");
    if let Some(world) = world {
        world.abort(&format!("{error:#}")); // With MPI this process ends here.
    }
    ExitCode::FAILURE
}

fn run(command: &Command, joined: &mut Option<World>) -> anyhow::Result<()> {
    let threads = match command {
        Command::Train { settings, .. }
        | Command::Products(settings)
        | Command::Overlap(settings) => settings.threads(),
        Command::Finetune(args) => Some(args.threads),
        Command::Operation(args) => Some(args.threads),
        Command::Allreduce(_) | Command::Transfer | Command::Straggler(_) => {
            Some(NonZeroUsize::MIN)
        }
        Command::Strategies | Command::Networks | Command::Problem(_) | Command::Widen { .. } => {
            None
        }
    };
    let world = match threads {
        Some(threads) => {
            launch::limit_threads(threads.get())?;
            World::from_env()?
        }
        None => World::single(),
    };
    let world = joined.insert(world);
    match command {
        Command::Train { settings, profile } => train::run(settings, *profile, world),
        Command::Products(settings) => products::run(settings, world),
        Command::Operation(args) => operation::run(args, world),
        Command::Problem(args) => data::run(args),
        Command::Finetune(args) => finetune::run(args, world),
        Command::Widen { model, folder } => finetune::widen(model, folder),
        Command::Overlap(settings) => overlap::run(settings, world),
        Command::Allreduce(args) => allreduce::run(args, world),
        Command::Transfer => transfer::run(world),
        Command::Straggler(args) => straggler::run(args, world),
        Command::Strategies => {
            DistOption::ALL.iter().for_each(|strategy| println!("{strategy}"));
            Ok(())
        }
        Command::Networks => {
            println!("{}", serde_json::to_string(&networks::NETWORKS.each_ref())?);
            Ok(())
        }
    }
}
