//! The measured program of `cargo xtask bench-scaling`: one rank, or the program that starts
//! several.
//!
//! It trains a fixed number of steps with one strategy, and rank 0 prints a JSON line. The number
//! of steps is fixed instead of the time, because all ranks must run the same number.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "its result is what it prints")]

mod measure;
mod network;

use std::num::NonZeroUsize;
use std::process::ExitCode;

use candelabrum::nn::DistOption;
use candelabrum::train::cli;
use clap::{Parser, ValueEnum};

use crate::measure::Setting;
use crate::network::Name;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Train some steps with one strategy and print what they cost
#[derive(Debug, Parser)]
struct Args {
    /// Print the names of the strategies, one per line
    #[arg(long)]
    list_strategies: bool,
    /// Print the names of the models, one per line
    #[arg(long)]
    list_models: bool,
    /// Start this many ranks here; omit it if mpiexec has started them
    #[arg(long, value_name = "N")]
    workers: Option<NonZeroUsize>,
    /// The trained model
    #[arg(long, default_value = "cnn")]
    model: Name,
    /// How ranks exchange gradients
    #[arg(long, value_name = "NAME", default_value_t = DistOption::Fp32)]
    strategy: DistOption,
    /// Images in a rank's batch
    #[arg(long, value_name = "N", default_value = "64")]
    batch_size: NonZeroUsize,
    /// Measured steps [default: about a second's, by model]
    #[arg(long, value_name = "N")]
    steps: Option<NonZeroUsize>,
    /// Steps before the clock starts
    #[arg(long, value_name = "N", default_value_t = 10)]
    warm_up: usize,
    /// Share of the elements that sparseTopK sends
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    spars: f32,
    /// Magnitude from which on sparseThreshold sends
    #[arg(long, value_name = "MAGNITUDE", default_value_t = 0.03)]
    threshold_spars: f32,
    /// Compute threads of each rank
    #[arg(long, value_name = "T", default_value = "1")]
    threads: NonZeroUsize,
}

impl Args {
    fn setting(&self) -> Setting {
        Setting {
            network: self.model,
            strategy: self.strategy,
            spars: match self.strategy {
                DistOption::SparseThreshold => self.threshold_spars,
                _ => self.spars,
            },
            batch_size: self.batch_size.get(),
            steps: self.steps.map_or_else(|| self.model.default_steps(), NonZeroUsize::get),
            warm_up: self.warm_up,
        }
    }
}

fn main() -> ExitCode {
    let args: Args = cli::parse();
    if args.list_strategies {
        DistOption::ALL.iter().for_each(|strategy| println!("{strategy}"));
        return ExitCode::SUCCESS;
    }
    if args.list_models {
        Name::value_variants().iter().for_each(|model| println!("{}", model.as_str()));
        return ExitCode::SUCCESS;
    }
    let threads = args.threads.get();
    cli::run_ranks(args.workers.map(NonZeroUsize::get), Some(threads), None, |world| {
        let sample = measure::measure(&args.setting(), world, threads)?;
        if world.is_root() {
            println!("{}", serde_json::to_string(&sample)?);
        }
        anyhow::Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sparse_strategy_has_its_own_setting() {
        let spars = |strategy: &str| {
            Args::parse_from(["rank", "--strategy", strategy]).setting().spars.to_string()
        };
        assert_eq!([spars("sparseTopK"), spars("sparseThreshold")], ["0.05", "0.03"]);
    }

    #[test]
    fn nothing_of_nothing_is_refused() {
        for wrong in [["--workers", "0"], ["--steps", "0"], ["--batch-size", "0"]] {
            assert!(Args::try_parse_from([&["rank"], &wrong[..]].concat()).is_err(), "{wrong:?}");
        }
        assert!(Args::try_parse_from(["rank", "--strategy", "fp8"]).is_err());
        assert!(Args::try_parse_from(["rank", "--model", "gpt"]).is_err());
    }
}
