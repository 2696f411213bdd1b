//! `cargo xtask bench-ddp`: the benefit of several workers, and a comparison with PyTorch's DDP.
//!
//! All contenders have the same weights, and every worker has its own batches and one compute
//! thread. The contenders are ours with one worker and with several, PyTorch alone, and PyTorch
//! with DistributedDataParallel over Gloo. Every contender is alive all the time and is stopped
//! while another one is measured. They take turns, so that other load on the machine affects all of
//! them. Ratios are computed within a round, and the median over the rounds is reported.
//!
//! The files are written at the end and after an interrupt. If a contender fails, its row contains
//! the failure, and the other contenders continue.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use self::contender::{Contender, Programs};
use self::report::Report;
use crate::bench::{Output, progress_bar};
use crate::host::Host;
use crate::interrupt::{Interrupted, Watch};
use crate::live::{Failure, Live};
use crate::network::Network;
use crate::training::{Done, Measured, Ready};
use crate::turns::Player;

mod chart;
mod contender;
#[cfg(test)]
mod fixture;
mod report;
mod table;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Workers of contenders that have several
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Network to train
    #[arg(long, default_value = "cnn")]
    network: Network,
    /// Images or sequences in a worker's batch
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Samples of every contender
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Measured seconds of a sample, at least one step
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Seconds that a contender may take for its warm-up, and for each sample
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    deadline: u64,
    /// Folder of ddp.json and ddp.svg [default: target/bench-ddp]
    #[arg(long)]
    out: Option<PathBuf>,
}

/// The settings of the measurement.
#[derive(Clone, Debug, Serialize)]
struct Plan {
    network: Network,
    batch_size: usize,
    workers: usize,
    threads_per_worker: usize,
    contenders: Vec<Contender>,
    rounds: usize,
    seconds: f64,
}

impl Plan {
    fn new(args: &Args) -> Result<Self> {
        // A rank uses eight of the hundred streams of random numbers for batches.
        ensure!((2..=12).contains(&args.workers), "--workers is from 2 to 12");
        ensure!(args.batch_size > 0, "--batch-size starts at 1");
        ensure!(args.rounds > 0, "--rounds starts at 1");
        ensure!(args.seconds > 0.0 && args.seconds < 1e6, "--seconds is a number above 0");
        Ok(Self {
            network: args.network,
            batch_size: args.batch_size,
            workers: args.workers,
            threads_per_worker: 1,
            contenders: Contender::ALL.to_vec(),
            rounds: args.rounds,
            seconds: args.seconds,
        })
    }
}

/// The results of one contender.
#[derive(Clone, Debug)]
struct Outcome {
    contender: Contender,
    ready: Option<Ready>,
    samples: Vec<Sample>,
    failure: Option<Failure>,
    /// Of the process that answers.
    peak_rss_mb: Option<f64>,
}

/// A measurement and its circumstances.
#[derive(Clone, Debug, Serialize)]
struct Sample {
    round: usize,
    #[serde(flatten)]
    measured: Measured,
    /// The share of the machine's cores that other programs used meanwhile.
    others_cpu_share: Option<f64>,
}

impl Outcome {
    fn new(contender: Contender) -> Self {
        Self { contender, ready: None, samples: Vec::new(), failure: None, peak_rss_mb: None }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut plan = Plan::new(args)?;
    let output = Output::new(args.out.as_deref(), "bench-ddp")?;
    let programs = Programs::find(&mut plan)?;
    let deadline =
        Duration::from_secs(args.deadline.max(1)) + Duration::from_secs_f64(args.seconds);
    let bench = Bench { machine: Host::look(), plan, programs, deadline, output };
    let contenders = bench.plan.contenders.iter();
    let mut outcomes: Vec<Outcome> = contenders.map(|&who| Outcome::new(who)).collect();
    let watch = Watch::start()?;
    let progress = progress_bar(outcomes.len() * (1 + bench.plan.rounds));
    progress.enable_steady_tick(Duration::from_secs(1));
    let measured = bench.measure(&mut outcomes, &watch, |contender| {
        let workers = contender.workers(bench.plan.workers);
        progress.set_message(format!("{}, {workers} worker(s)", contender.label()));
        progress.inc(1);
    });
    progress.finish_and_clear();
    bench.keep(&outcomes, measured)
}

/// A plan, and everything to carry it out.
struct Bench {
    machine: Host,
    plan: Plan,
    programs: Programs,
    deadline: Duration,
    output: Output,
}

impl Bench {
    /// Starts all contenders, then measures them in turns. `step` is called for each start and
    /// sample.
    fn measure(
        &self,
        outcomes: &mut [Outcome],
        watch: &Watch,
        mut step: impl FnMut(Contender),
    ) -> Result<(), Interrupted> {
        let mut players: Vec<Player> = outcomes.iter().map(|_| Player::default()).collect();
        for (outcome, player) in outcomes.iter_mut().zip(&mut players) {
            step(outcome.contender);
            let commands = || self.programs.commands(outcome.contender, &self.plan);
            outcome.ready = player.start(|| Live::start(commands()?, self.deadline), watch)?;
            outcome.failure = player.failure().cloned();
        }
        for round in 0..self.plan.rounds {
            for (outcome, player) in outcomes.iter_mut().zip(&mut players) {
                step(outcome.contender);
                let sample = player.sample(&format!("go {}", self.plan.seconds), watch)?;
                outcome.samples.extend(sample.map(|(measured, others_cpu_share)| Sample {
                    round,
                    measured,
                    others_cpu_share,
                }));
                outcome.failure = player.failure().cloned();
            }
        }
        for (outcome, player) in outcomes.iter_mut().zip(&mut players) {
            let done: Option<Done> = player.finish(watch)?;
            outcome.peak_rss_mb = done.and_then(|done| done.peak_rss_mb);
            outcome.failure = player.failure().cloned();
        }
        Ok(())
    }

    /// Prints and writes the results, and reports missing ones if the measurement ended early.
    fn keep(&self, outcomes: &[Outcome], measured: Result<(), Interrupted>) -> Result<()> {
        let samples: usize = outcomes.iter().map(|outcome| outcome.samples.len()).sum();
        let report = Report::new(&self.machine, &self.plan, outcomes);
        print!("{report}");
        let json = self.output.json("ddp.json", &report)?;
        let svg = self.output.path("ddp.svg");
        chart::draw(&report, &svg)?;
        println!("\nwrote {} and {}", json.display(), svg.display());
        measured.with_context(|| {
            format!("kept {samples} of {} samples", outcomes.len() * self.plan.rounds)
        })?;
        ensure!(samples > 0, "no contender could be measured");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn nothing_of_nothing_is_refused_in_one_line() {
        for wrong in
            [["--rounds", "0"], ["--workers", "1"], ["--batch-size", "0"], ["--seconds", "0"]]
        {
            let args = Cli::parse_from([&["x"], &wrong[..]].concat()).args;
            let message = Plan::new(&args).unwrap_err().to_string();
            assert!(message.starts_with(wrong[0]) && !message.contains('\n'), "{message}");
        }
        assert_eq!(Plan::new(&Cli::parse_from(["x"]).args).unwrap().workers, 2);
    }
}
