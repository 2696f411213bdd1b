//! `cargo xtask bench-step`: training steps per second of this project, raw candle and PyTorch.
//!
//! One machine, one network, the same weights and batches. Every sample is a process of its own
//! that warms up and then trains for some seconds. The contenders take turns, A B C D, A B C D, so
//! that what else the machine does hits all of them; ratios are formed within a round, and the
//! median over the rounds is reported.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use self::contender::{Contender, Network};
use self::report::Report;
use self::sample::Sample;
use crate::bench::{Output, build, progress_bar};
use crate::machine;

mod chart;
mod contender;
mod report;
mod sample;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Compute threads of every contender
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Images in a batch
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Samples of every contender
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Measured seconds of a sample
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// What is trained
    #[arg(long, value_delimiter = ',', default_value = "cnn")]
    networks: Vec<Network>,
    /// Who trains it
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "ours,candle,pytorch,pytorch-channels-last"
    )]
    contenders: Vec<Contender>,
    /// Where bench_step.json and bench_step.svg go [default: target/bench-step]
    #[arg(long)]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(args.threads > 0 && args.batch_size > 0, "--threads and --batch-size start at 1");
    ensure!(args.rounds > 0 && args.seconds > 0.0, "--rounds and --seconds must be above 0");
    let python = machine::python_with_torch();
    let mut contenders = args.contenders.clone();
    if python.is_none() && contenders.iter().any(Contender::is_pytorch) {
        println!("PyTorch is not installed: left out (cargo xtask setup --pytorch)");
        contenders.retain(|contender| !contender.is_pytorch());
    }
    ensure!(!contenders.is_empty(), "no contender is left to measure");
    let runner = sample::Runner::new(build_contender(&contenders)?, python, args);

    let mut samples = Vec::new();
    let progress = progress_bar(args.rounds * args.networks.len() * contenders.len());
    for round in 0..args.rounds {
        for &network in &args.networks {
            for &contender in &contenders {
                progress.set_message(contender.name());
                samples.push(runner.sample(round, network, contender)?);
                progress.inc(1);
            }
        }
    }
    progress.finish_and_clear();
    write_and_print(args, samples)
}

/// Builds the program of the Rust contenders, where one is asked for, and gives its path.
fn build_contender(contenders: &[Contender]) -> Result<Option<PathBuf>> {
    if contenders.iter().all(Contender::is_pytorch) {
        return Ok(None);
    }
    build("candelabrum-bench-step", "bench-step-contender", &[]).map(Some)
}

fn write_and_print(args: &Args, samples: Vec<Sample>) -> Result<()> {
    let report = Report::new(args, samples)?;
    print!("{report}");
    let output = Output::new(args.out.as_deref(), "bench-step")?;
    let json = output.json("bench_step.json", &report)?;
    let svg = output.path("bench_step.svg");
    chart::draw(&report, &svg)?;
    println!("\nwrote {} and {}", json.display(), svg.display());
    Ok(())
}
