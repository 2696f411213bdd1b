//! One measured program of `cargo xtask bench-step`: trains for some seconds, prints a JSON line.
//!
//! Every contender of this file has mimalloc and, by feature unification, candle's AVX-512 matrix
//! products: the raw candle contender is candle at its best.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "its result is what it prints")]

mod candle;
mod ours;
mod problem;

use std::fs;
use std::time::{Duration, Instant};

use candle_core::{Result, Tensor};
use clap::{Parser, ValueEnum};
use serde::Serialize;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Steps before the clock starts; the loss of the last one is compared between contenders.
const WARM_UP_STEPS: usize = 14;

#[derive(Debug, Parser)]
struct Args {
    #[arg(long)]
    contender: Contender,
    #[arg(long, default_value = "cnn")]
    network: Network,
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Only reported: the threads are bounded by RAYON_NUM_THREADS
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Contender {
    Ours,
    Candle,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Network {
    Cnn,
}

/// A network with its optimizer.
trait Train {
    /// Forward, loss, backward, update; gives the loss before the update.
    fn step(&mut self, images: &Tensor, labels: &Tensor) -> anyhow::Result<Tensor>;
}

/// What the caller reads.
#[derive(Debug, Serialize)]
struct Sample {
    images_per_second: f64,
    steps: usize,
    warm_up_loss: f32,
    final_loss: f32,
    peak_rss_mb: Option<f64>,
    threads: usize,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut contender: Box<dyn Train> = match (args.contender, args.network) {
        (Contender::Ours, Network::Cnn) => Box::new(ours::Cnn::new()?),
        (Contender::Candle, Network::Cnn) => Box::new(candle::Cnn::new()?),
    };
    let sample = measure(&mut *contender, &args)?;
    println!("{}", serde_json::to_string(&sample)?);
    Ok(())
}

fn measure(contender: &mut dyn Train, args: &Args) -> anyhow::Result<Sample> {
    let batches = (0..problem::BATCHES)
        .map(|index| problem::batch(index, args.batch_size))
        .collect::<Result<Vec<_>>>()?;
    let mut step = |number: usize| {
        let (images, labels) = &batches[number % batches.len()];
        contender.step(images, labels)
    };
    let mut loss = step(0)?;
    for number in 1..WARM_UP_STEPS {
        loss = step(number)?;
    }
    let warm_up_loss = loss.to_scalar()?;

    let limit = Duration::from_secs_f64(args.seconds);
    let mut steps = 0;
    let start = Instant::now();
    while start.elapsed() < limit || steps == 0 {
        loss = step(WARM_UP_STEPS + steps)?;
        steps += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Sample {
        images_per_second: (steps * args.batch_size) as f64 / seconds,
        steps,
        warm_up_loss,
        final_loss: loss.to_scalar()?,
        peak_rss_mb: peak_rss_mb(),
        threads: args.threads,
    })
}

/// The most memory this process ever held; `None` where the system does not tell.
fn peak_rss_mb() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib / 1024.0)
}
