//! `cargo xtask bench-step`: training steps per second of this project, raw candle and PyTorch.
//!
//! All contenders run on one machine with the same weights and batches. Networks, batch sizes and
//! numbers of threads make configurations, which are measured one after the other. In each
//! configuration every contender is a process that warms up and then takes a sample at each
//! request. The contenders take turns, A B C D, A B C D, so that other load on the machine affects
//! all of them. Ratios are computed within a round, and the median over the rounds is reported.
//!
//! The files are written after every configuration and after an interrupt. If a contender fails,
//! its row contains the failure, and the other contenders continue.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use self::contender::Contender;
use self::plan::{Config, Plan};
use self::report::Report;
use self::trial::{Outcome, Rules, Trial};
use crate::bench::{Output, build, progress_bar};
use crate::checkout::repo_root;
use crate::host::Host;
use crate::interrupt::Watch;
use crate::live::Live;
use crate::machine;
use crate::network::Network;

mod chart;
mod contender;
#[cfg(test)]
mod fixture;
mod plan;
mod profile;
mod report;
mod table;
mod trial;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Networks to train
    #[arg(long, value_delimiter = ',', default_value = "cnn,mlp,resnet18,gru")]
    network: Vec<Network>,
    /// Images or sequences in a batch
    #[arg(long, value_delimiter = ',', value_name = "N,N..", default_value = "64,256")]
    batch_size: Vec<usize>,
    /// Compute threads of every contender [default: 1,2 if there are as many cores]
    #[arg(long, value_delimiter = ',', value_name = "N,N..")]
    threads: Vec<usize>,
    /// Contenders
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "ours,candle,pytorch,pytorch-channels-last,pytorch-compile"
    )]
    contenders: Vec<Contender>,
    /// Samples of every contender
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Measured seconds of a sample, at least one step
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Seconds that a contender may take for its warm-up, and for each sample
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    deadline: u64,
    /// Instead: measure the time of each operation in our own steps
    #[arg(long)]
    profile: bool,
    /// Folder of bench_step.json and bench_step.svg [default: target/bench-step]
    #[arg(long)]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let machine = Host::look();
    let mut plan = Plan::new(args, machine.cores)?;
    let output = Output::new(args.out.as_deref(), "bench-step")?;
    if args.profile {
        let program = build("candelabrum-bench-step", "bench-step-contender", &[])?;
        return profile::run(&plan, &Programs { rust: Some(program), python: None }, &output);
    }
    let programs = Programs::find(&mut plan)?;
    let deadline =
        Duration::from_secs(args.deadline.max(1)) + Duration::from_secs_f64(args.seconds);
    let rules = Rules { rounds: plan.rounds, seconds: plan.seconds, deadline };
    let bench = Bench { machine, plan, rules, programs, output };
    let mut outcomes = Vec::new();
    let measured = bench.measure(&mut outcomes);
    bench.keep(&outcomes, measured)
}

/// The programs of the contenders.
#[derive(Debug)]
struct Programs {
    rust: Option<PathBuf>,
    /// A Python with PyTorch.
    python: Option<PathBuf>,
}

impl Programs {
    /// Builds and finds the programs that the plan needs. Removes PyTorch from the plan if there is
    /// none.
    fn find(plan: &mut Plan) -> Result<Self> {
        let mut python = None;
        if plan.contenders.iter().any(Contender::is_pytorch) {
            python = machine::python_with_torch();
            if python.is_none() {
                println!("PyTorch is not installed: left out (cargo xtask setup --pytorch)");
                plan.contenders.retain(|contender| !contender.is_pytorch());
            }
        }
        ensure!(!plan.contenders.is_empty(), "no contender is left to measure");
        let rust = if plan.contenders.iter().all(Contender::is_pytorch) {
            None
        } else {
            Some(build("candelabrum-bench-step", "bench-step-contender", &[])?)
        };
        Ok(Self { rust, python })
    }

    /// The command of a contender.
    fn command(&self, contender: Contender, config: Config) -> Result<Command> {
        let Config { network, batch_size, threads } = config;
        let (batch_size, threads) = (batch_size.to_string(), threads.to_string());
        let mut command = if contender.is_pytorch() {
            let mut python = Command::new(self.python.as_ref().context("no Python with PyTorch")?);
            python.arg(repo_root().join("scripts/bench_step.py"));
            python
        } else {
            Command::new(self.rust.as_ref().context("the Rust contenders were not built")?)
        };
        command.args(["--contender", contender.name(), "--network", network.name()]);
        command.args(["--batch-size", &batch_size, "--threads", &threads]);
        command.args(["--warm-up", &network.warm_up_steps().to_string()]);
        for variable in ["RAYON_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"] {
            command.env(variable, &threads);
        }
        // Our contender limits candle's second pool as always. In the candle contender, rayon's
        // variable limits it.
        command.env_remove("CANDLE_NUM_THREADS");
        Ok(command)
    }
}

/// A plan, and everything to carry it out.
struct Bench {
    machine: Host,
    plan: Plan,
    rules: Rules,
    programs: Programs,
    output: Output,
}

impl Bench {
    /// Measures one configuration after the other.
    fn measure(&self, outcomes: &mut Vec<Outcome>) -> Result<()> {
        let configs = self.plan.configs();
        let steps_of = |config: &Config| {
            self.plan.contenders_of(config.network).len() * (1 + self.rules.rounds)
        };
        let watch = Watch::start()?;
        let progress = progress_bar(configs.iter().map(steps_of).sum());
        progress.enable_steady_tick(Duration::from_secs(1));
        let mut done = 0;
        for config in configs {
            let mut trials: Vec<Trial> = self
                .plan
                .contenders_of(config.network)
                .into_iter()
                .map(|contender| Trial::new(config, contender))
                .collect();
            let start = |outcome: &Outcome| {
                let command = self.programs.command(outcome.contender, outcome.config)?;
                Live::start(vec![command], self.rules.deadline)
            };
            let mut begun = 0;
            let measured = trial::measure(&mut trials, &self.rules, start, &watch, |outcome| {
                progress.set_message(describe(outcome));
                progress.set_position((done + begun) as u64);
                begun += 1;
            });
            outcomes.extend(trials.into_iter().map(|trial| trial.outcome));
            if let Err(interrupted) = measured {
                progress.finish_and_clear();
                return Err(interrupted.into());
            }
            done += steps_of(&config);
            progress.set_position(done as u64);
            self.write(outcomes)?;
        }
        progress.finish_and_clear();
        Ok(())
    }

    /// Prints and writes the results, and reports missing ones if the measurement ended early.
    fn keep(&self, outcomes: &[Outcome], measured: Result<()>) -> Result<()> {
        let samples: usize = outcomes.iter().map(|outcome| outcome.samples.len()).sum();
        if outcomes.is_empty() {
            return measured.context("nothing was measured");
        }
        print!("{}", self.report(outcomes));
        let [json, svg] = self.write(outcomes)?;
        println!("\nwrote {} and {}", json.display(), svg.display());
        measured.with_context(|| {
            let configs = self.plan.configs();
            let contenders = configs.iter().map(|c| self.plan.contenders_of(c.network).len());
            let all = contenders.sum::<usize>() * self.rules.rounds;
            format!("kept {samples} of {all} samples")
        })?;
        ensure!(samples > 0, "no contender could be measured");
        Ok(())
    }

    fn write(&self, outcomes: &[Outcome]) -> Result<[PathBuf; 2]> {
        let report = self.report(outcomes);
        let json = self.output.json("bench_step.json", &report)?;
        let svg = self.output.path("bench_step.svg");
        chart::draw(&report, &svg)?;
        Ok([json, svg])
    }

    fn report<'a>(&'a self, outcomes: &'a [Outcome]) -> Report<'a> {
        Report::new(&self.machine, &self.plan, outcomes)
    }
}

fn describe(outcome: &Outcome) -> String {
    let Config { network, batch_size, threads } = outcome.config;
    let plural = if threads == 1 { "" } else { "s" };
    let contender = outcome.contender.name();
    format!("{}, batch {batch_size}, {threads} thread{plural}, {contender}", network.name())
}
