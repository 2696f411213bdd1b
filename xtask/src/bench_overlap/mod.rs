//! `cargo xtask bench-overlap`: the share of the communication that the backward pass hides.
//!
//! This benchmark makes two hosts on this machine, connected by a wire of a set rate, with one rank
//! each over MPI. In turns the ranks train without overlap, train with overlap, and exchange
//! gradients without other work, so that other load on the machine affects all three. Overlap can
//! hide the lesser of a step's communication and its backward pass. The hidden share is the saved
//! time of the step divided by that. Shares are computed within a round, and the median is
//! reported.
//!
//! It needs root, iproute2 and MPI. At the end it removes the hosts, after an interrupt too.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use self::report::Report;
use crate::bench::{Output, build, progress_bar};
use crate::host::{CpuTime, Host};
use crate::hosts::Hosts;
use crate::interrupt::Watch;
use crate::live::{Live, Trouble};
use crate::split::Split;

mod chart;
#[cfg(test)]
mod fixture;
mod report;
mod table;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Network to train
    #[arg(long, default_value = "resnet18")]
    network: Network,
    /// Images in a rank's batch
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Rate of the wire in Mbit/s [default: such that an exchange takes as long as backward]
    #[arg(long, value_name = "MBIT")]
    rate: Option<f64>,
    /// Samples of each way
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Measured seconds of a sample, at least one step
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Seconds that the ranks may take for their warm-up, and for each sample
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    deadline: u64,
    /// Folder of overlap.json and overlap.svg [default: target/bench-overlap]
    #[arg(long)]
    out: Option<PathBuf>,
}

/// The trained networks, by the names of the measured program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Network {
    Cnn,
    Mlp,
    Resnet18,
}

impl Network {
    fn label(self) -> &'static str {
        match self {
            Self::Cnn => "MNIST CNN",
            Self::Mlp => "MLP 784-1024-1024-10",
            Self::Resnet18 => "ResNet-18, 3×32×32",
        }
    }
}

/// The settings of the measurement.
#[derive(Clone, Debug, Serialize)]
struct Plan {
    network: Network,
    batch_size: usize,
    rounds: usize,
    seconds: f64,
}

/// The ranks' message after the warm-up.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Ready {
    backend: String,
    ranks: usize,
    gradient_bytes: usize,
}

/// The kinds of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Way {
    Off,
    On,
    Exchange,
}

impl Way {
    const ALL: [Self; 3] = [Self::Off, Self::On, Self::Exchange];

    /// The name in the measured program.
    fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Exchange => "exchange",
        }
    }
}

/// The ranks' message about a sample: seconds of one step or exchange.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Measured {
    times: usize,
    seconds: f64,
    step_seconds: Option<Split<f64>>,
    communication_seconds: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
struct Done {}

/// A measurement and its circumstances.
#[derive(Clone, Debug, Serialize)]
struct Sample {
    round: usize,
    way: Way,
    #[serde(flatten)]
    measured: Measured,
    /// The share of the machine's cores that other programs used meanwhile.
    others_cpu_share: Option<f64>,
}

/// The results of a run.
#[derive(Clone, Debug, Default)]
struct Results {
    ready: Option<Ready>,
    /// Of the wire, in Mbit/s.
    rate: Option<f64>,
    samples: Vec<Sample>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let plan = plan(args)?;
    let lacks = Hosts::lacks();
    ensure!(lacks.is_empty(), "bench-overlap cannot run here: no {}", lacks.join(", no "));
    let machine = Host::look();
    let output = Output::new(args.out.as_deref(), "bench-overlap")?;
    let program = build("candelabrum-bench-overlap", "bench-overlap-rank", &["--features", "mpi"])?;
    let mut results = Results::default();
    let measured = measure(args, &plan, &program, &output, &mut results);
    if results.samples.is_empty() {
        return measured.context("nothing was measured");
    }
    let report = Report::new(&machine, &plan, &results);
    print!("{report}");
    let json = output.json("overlap.json", &report)?;
    let svg = output.path("overlap.svg");
    chart::draw(&report, &svg)?;
    println!("\nwrote {} and {}", json.display(), svg.display());
    measured.with_context(|| {
        format!("kept {} of {} samples", results.samples.len(), Way::ALL.len() * plan.rounds)
    })
}

fn plan(args: &Args) -> Result<Plan> {
    ensure!(args.batch_size > 0, "--batch-size starts at 1");
    ensure!(args.rounds > 0, "--rounds starts at 1");
    ensure!(args.seconds > 0.0 && args.seconds < 1e6, "--seconds is a number above 0");
    let possible = args.rate.is_none_or(|rate| (0.1..1e6).contains(&rate));
    ensure!(possible, "--rate is from 0.1 to 1000000 (Mbit/s)");
    let &Args { network, batch_size, rounds, seconds, .. } = args;
    Ok(Plan { network, batch_size, rounds, seconds })
}

/// Makes the hosts, sets the rate of their wire, and takes the samples.
fn measure(
    args: &Args,
    plan: &Plan,
    program: &Path,
    output: &Output,
    results: &mut Results,
) -> Result<()> {
    let watch = Watch::start()?;
    let deadline =
        Duration::from_secs(args.deadline.max(1)) + Duration::from_secs_f64(args.seconds);
    let progress = progress_bar(Way::ALL.len() * plan.rounds);
    progress.enable_steady_tick(Duration::from_secs(1));
    progress.set_message("the hosts get ready");
    let hosts = Hosts::make(&output.folder()?)?;
    let network = plan.network.to_possible_value().context("a network has a name")?;
    let arguments = [
        "--network".to_owned(),
        network.get_name().to_owned(),
        "--batch-size".to_owned(),
        plan.batch_size.to_string(),
    ];
    let mut live = Live::start(vec![hosts.mpiexec(program, &arguments)], deadline)?;
    let measured = (|| {
        let ready: Ready = live.ready(&watch).map_err(told)?;
        let as_asked = ready.ranks == 2 && ready.backend == "mpi";
        ensure!(
            as_asked,
            "asked for 2 ranks over mpi, it has {} over {}",
            ready.ranks,
            ready.backend
        );
        let rate = match args.rate {
            Some(rate) => rate,
            None => balanced_rate(&mut live, ready.gradient_bytes, &hosts, &watch)?,
        };
        hosts.set_rate(rate)?;
        (results.ready, results.rate) = (Some(ready), Some(rate));
        for round in 0..plan.rounds {
            for way in Way::ALL {
                progress.set_message(format!("{rate:.0} Mbit/s, {}", way.name()));
                let ids = hosts.processes();
                let before = CpuTime::now(&ids);
                let measured = sample(&mut live, way, plan.seconds, &watch)?;
                let others_cpu_share = CpuTime::others_share(before, CpuTime::now(&ids));
                results.samples.push(Sample { round, way, measured, others_cpu_share });
                progress.inc(1);
            }
        }
        live.finish::<Done>(&watch).map_err(told)?;
        Ok(())
    })();
    progress.finish_and_clear();
    measured
}

fn sample(live: &mut Live, way: Way, seconds: f64, watch: &Watch) -> Result<Measured> {
    live.sample(&format!("go {} {seconds}", way.name()), watch).map_err(told)
}

/// The rate at which an exchange takes as long as backward, in Mbit/s.
fn balanced_rate(live: &mut Live, bytes: usize, hosts: &Hosts, watch: &Watch) -> Result<f64> {
    let within = |rate: f64| rate.clamp(0.1, 1e6);
    let step = sample(live, Way::Off, 1.0, watch)?.step_seconds;
    let backward = step.context("a step has no parts")?.backward;
    let first = within(8e-6 * bytes as f64 / backward);
    hosts.set_rate(first)?;
    // An all-reduce may send more bytes than it reduces.
    let exchange = sample(live, Way::Exchange, 1.0, watch)?.seconds;
    Ok(within(first * exchange / backward))
}

/// The reason why the ranks gave no answer, as an error.
fn told(trouble: Trouble) -> anyhow::Error {
    match trouble {
        Trouble::Interrupted(interrupted) => interrupted.into(),
        Trouble::Failed(failure) => anyhow::anyhow!("the ranks failed: {}", failure.reason),
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
        for wrong in [["--rounds", "0"], ["--rate", "0"], ["--batch-size", "0"], ["--seconds", "0"]]
        {
            let args = Cli::parse_from([&["x"], &wrong[..]].concat()).args;
            let message = plan(&args).unwrap_err().to_string();
            assert!(message.starts_with(wrong[0]) && !message.contains('\n'), "{message}");
        }
    }
}
