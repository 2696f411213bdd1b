//! A measured program of `cargo xtask bench-allreduce`: one rank of our all-reduce, or the test of
//! the memory's speed.
//!
//! Rank 0 prints a JSON line when it is warm, one for every line `go ELEMENTS SECONDS` that it
//! reads, and one at the end. `allreduce.c` in this folder and `scripts/bench_allreduce.py` answer
//! the same lines and measure in the same way, which `measure.rs` describes.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "its result is what it prints")]
#![expect(clippy::print_stderr, reason = "a command-line program says what failed")]

mod measure;
mod memory;
mod ours;
mod talk;

use std::process::ExitCode;

use candelabrum::dist::World;
use clap::{Parser, ValueEnum};

use crate::ours::Ours;

/// Reduce buffers over all ranks: take a sample for every line `go ELEMENTS SECONDS`
#[derive(Debug, Parser)]
struct Args {
    /// Memory of the numbers
    #[arg(long, default_value = "segment")]
    numbers: Numbers,
    /// Instead: this many threads that change their numbers in place, each on its own
    #[arg(long, value_name = "THREADS")]
    memory: Option<usize>,
    /// Milliseconds by which rank 0 begins every batch later than the others; the clock starts then
    #[arg(long, default_value = "0")]
    late_ms: u64,
}

/// The memory of a rank's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Numbers {
    /// In a buffer of the communicator's, as gradients do
    Segment,
    /// In a vector of the caller's
    Slice,
}

fn main() -> ExitCode {
    let Err(error) = run(&Args::parse()) else { return ExitCode::SUCCESS };
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}

fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(threads) = args.memory {
        return memory::serve(threads);
    }
    let world = World::from_env()?;
    let served = measure::serve(&mut Ours::new(&world, args.numbers, args.late_ms));
    if let Err(error) = &served {
        world.abort(&format!("{error:#}"));
    }
    served
}
