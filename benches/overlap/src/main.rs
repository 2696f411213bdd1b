//! The measured program of `cargo xtask bench-overlap`: one rank.
//!
//! Two copies of a network train in turns, one with the exchange of gradients after backward, one
//! with overlap. Rank 0 reads lines `go off SECONDS`, `go on SECONDS` and `go exchange SECONDS`,
//! and prints a JSON line for each.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "its result is what it prints")]
#![expect(clippy::print_stderr, reason = "a command-line program says what failed")]

mod exchange;
mod talk;
mod training;

use std::process::ExitCode;

use candelabrum::dist::{World, launch};
use clap::{Parser, ValueEnum};

use crate::exchange::Exchange;
use crate::talk::{Ask, Event, Timed};
use crate::training::Training;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Train with and without overlap: take a sample for every line `go off|on|exchange SECONDS`
#[derive(Debug, Parser)]
struct Args {
    #[arg(long, default_value = "resnet18")]
    network: Name,
    /// Images in a rank's batch
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Steps of each copy before the first sample
    #[arg(long, default_value_t = 2)]
    warm_up: usize,
}

/// The network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// SINGA's MNIST network
    Cnn,
    /// 784-1024-1024-10
    Mlp,
    /// ResNet-18 on 32x32 images
    Resnet18,
}

fn main() -> ExitCode {
    let Err(error) = run(&Args::parse()) else { return ExitCode::SUCCESS };
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}

fn run(args: &Args) -> anyhow::Result<()> {
    launch::limit_threads(1)?;
    let world = World::from_env()?;
    let served = serve(args, &world);
    if let Err(error) = &served {
        world.abort(&format!("{error:#}"));
    }
    served
}

/// Warms up, answers every line, and prints the last line.
fn serve(args: &Args, world: &World) -> anyhow::Result<()> {
    let mut off = Training::new(args.network, args.batch_size, world, false)?;
    let mut on = Training::new(args.network, args.batch_size, world, true)?;
    for _ in 0..args.warm_up {
        off.step()?;
        on.step()?;
    }
    let elements = off.elements();
    let mut exchange = Exchange::new(elements, world)?;
    let ready = Event::Ready {
        backend: world.backend(),
        ranks: world.world_size(),
        gradient_bytes: elements * size_of::<f32>(),
    };
    talk::say(world, &ready)?;
    while let Some((ask, seconds)) = talk::next(world)? {
        let sample = match ask {
            Ask::Off => off.sample(seconds)?,
            Ask::On => on.sample(seconds)?,
            Ask::Exchange => exchange.sample(seconds)?,
        };
        talk::say(world, &sample)?;
    }
    talk::say(world, &Event::Done {})
}

/// Repeats an operation for about the given time, equally often on every rank. Returns the count
/// and the time of one repetition. `last` contains that time of the previous call, then of this
/// call.
fn repeat(
    world: &World,
    seconds: f64,
    last: &mut f64,
    mut once: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Timed> {
    let mut times = [(seconds / last.max(1e-6)).round().clamp(1.0, 1e5)];
    world.comm().broadcast(&mut times, 0)?;
    let count = times[0] as usize;
    world.comm().barrier()?;
    let start = std::time::Instant::now();
    for _ in 0..count {
        once()?;
    }
    world.comm().barrier()?;
    *last = start.elapsed().as_secs_f64() / count as f64;
    Ok(Timed { count, seconds: *last })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rank_trains_both_ways_and_exchanges() -> anyhow::Result<()> {
        let world = World::single();
        for overlap in [false, true] {
            let mut training = Training::new(Name::Cnn, 3, &world, overlap)?;
            assert_eq!(training.elements(), 431_080);
            let Event::Sample { times, seconds, step_seconds, .. } = training.sample(0.0)? else {
                panic!("a training gives samples");
            };
            assert!(times == 1 && seconds > 0.0);
            assert!(step_seconds.is_some_and(|parts| parts.backward > 0.0));
        }
        let sample = Exchange::new(1000, &world)?.sample(0.0)?;
        assert!(matches!(sample, Event::Sample { step_seconds: None, .. }));
        Ok(())
    }
}
