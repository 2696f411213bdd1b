//! `cargo xtask bench-scaling`: the speed-up of training with more ranks, and the cost of
//! strategies.
//!
//! Every sample starts new processes, which warm up and then train a fixed number of steps, with
//! one compute thread per rank. The points take turns, round by round, so that other load on the
//! machine affects all of them. The median over the rounds is reported. The files are written after
//! every round and after an interrupt, from the points that have a sample by then.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use self::plan::{Backend, Plan, Point};
use self::report::Report;
use self::sample::{Program, Sample, Settings};
use crate::bench::{Output, progress_bar};
use crate::host::Host;
use crate::interrupt::Watch;

mod chart;
mod csv;
#[cfg(test)]
mod fixture;
mod plan;
mod report;
mod sample;
mod table;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Numbers of ranks [default: powers of two up to this machine's cores]
    #[arg(long, value_delimiter = ',', value_name = "N,N..")]
    workers: Vec<usize>,
    /// Models to train: cnn, mlp or all
    #[arg(long, value_delimiter = ',', default_value = "all", value_name = "NAME,NAME..")]
    model: Vec<String>,
    /// Exchanges of gradients: names of strategies, or all
    #[arg(long, value_delimiter = ',', default_value = "all", value_name = "NAME,NAME..")]
    strategies: Vec<String>,
    /// Backends, which start the ranks and send their messages
    #[arg(long, value_delimiter = ',', default_value = "local")]
    backend: Vec<Backend>,
    /// Images in a rank's batch
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Measured steps of a sample [default: about a second's, by model]
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    /// Samples of every point
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Share of the elements that sparseTopK sends
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    spars: f64,
    /// Magnitude from which on sparseThreshold sends
    #[arg(long, value_name = "MAGNITUDE", default_value_t = 0.03)]
    threshold_spars: f64,
    /// Folder of scaling.json, .csv and .svg [default: target/bench-scaling]
    #[arg(long)]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let machine = Host::look();
    let settings = settings(args)?;
    let workers = plan::worker_counts(&args.workers, machine.cores)?;
    let output = Output::new(args.out.as_deref(), "bench-scaling")?;
    let mut backends = Vec::new();
    for &backend in &args.backend {
        if !backends.contains(&backend) {
            backends.push(backend);
        }
    }
    let program = Program::build(&backends)?;
    let known_strategies = program.list("--list-strategies")?;
    let plan = Plan {
        models: plan::pick("--model", &args.model, &program.list("--list-models")?)?,
        strategies: plan::pick("--strategies", &args.strategies, &known_strategies)?,
        backends,
        workers,
    };
    let bench = Bench { machine, settings, plan, known_strategies, program, output };
    let mut samples = Vec::new();
    let measured = bench.measure(&mut samples);
    bench.keep(&samples, measured)
}

/// Refuses settings with which no run is possible.
fn settings(args: &Args) -> Result<Settings> {
    ensure!(args.batch_size > 0, "--batch-size starts at 1");
    ensure!(args.steps != Some(0), "--steps starts at 1");
    ensure!(args.rounds > 0, "--rounds starts at 1");
    // As f32, like in the library: the conversion can round to 0 or to infinity.
    let (share, magnitude) = (args.spars as f32, args.threshold_spars as f32);
    ensure!(share > 0.0 && share <= 1.0, "--spars is above 0 and at most 1");
    ensure!(magnitude > 0.0 && magnitude.is_finite(), "--threshold-spars is a number above 0");
    Ok(Settings {
        batch_size: args.batch_size,
        threads_per_rank: 1,
        rounds: args.rounds,
        steps: args.steps,
        spars: args.spars,
        threshold_spars: args.threshold_spars,
    })
}

/// A plan, and everything to carry it out.
struct Bench {
    machine: Host,
    settings: Settings,
    plan: Plan,
    known_strategies: Vec<String>,
    program: Program,
    output: Output,
}

impl Bench {
    /// Measures every point once per round, until the end or the first error.
    fn measure(&self, samples: &mut Vec<Sample>) -> Result<()> {
        let points = self.plan.points();
        let watch = Watch::start()?;
        let progress = progress_bar(self.settings.rounds * points.len());
        for round in 0..self.settings.rounds {
            for point in &points {
                progress.set_message(describe(point));
                let sample = self.program.sample(round, point, &self.settings);
                let interrupted = watch.check();
                // The terminal interrupts the ranks too, so their failure needs no message.
                if interrupted.is_err() || sample.is_err() {
                    progress.finish_and_clear();
                }
                samples.extend(sample.as_ref().ok().cloned());
                interrupted?;
                sample?;
                progress.inc(1);
            }
            self.write(samples)?;
        }
        progress.finish_and_clear();
        Ok(())
    }

    /// Prints and writes the results, and reports missing ones if the measurement ended early.
    fn keep(&self, samples: &[Sample], measured: Result<()>) -> Result<()> {
        if samples.is_empty() {
            return measured.context("nothing was measured");
        }
        print!("{}", self.report(samples));
        let [json, csv, svg] = self.write(samples)?;
        println!("\nwrote {}, {} and {}", json.display(), csv.display(), svg.display());
        measured.with_context(|| {
            let points = self.plan.points();
            let reached: BTreeSet<usize> = samples
                .iter()
                .filter_map(|sample| points.iter().position(|point| *point == sample.point))
                .collect();
            let (runs, all) = (samples.len(), self.settings.rounds * points.len());
            let (reached, points) = (reached.len(), points.len());
            format!("kept {reached} of {points} points ({runs} of {all} runs)")
        })
    }

    fn write(&self, samples: &[Sample]) -> Result<[PathBuf; 3]> {
        let report = self.report(samples);
        let json = self.output.json("scaling.json", &report)?;
        let csv = self.output.write("scaling.csv", &csv::file(&report.points, &self.settings))?;
        let svg = self.output.path("scaling.svg");
        chart::draw(&report, &svg)?;
        Ok([json, csv, svg])
    }

    fn report<'a>(&'a self, samples: &'a [Sample]) -> Report<'a> {
        Report {
            machine: &self.machine,
            settings: &self.settings,
            plan: &self.plan,
            known_strategies: &self.known_strategies,
            points: report::rows(&self.plan, samples, self.machine.cores),
            samples,
        }
    }
}

fn describe(point: &Point) -> String {
    let Point { model, backend, strategy, workers } = point;
    let plural = if *workers == 1 { "" } else { "s" };
    format!("{model}, {}, {strategy}, {workers} worker{plural}", backend.name())
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
        for wrong in [
            ["--steps", "0"],
            ["--batch-size", "0"],
            ["--rounds", "0"],
            ["--spars", "2"],
            ["--threshold-spars", "0"],
        ] {
            let args = Cli::parse_from([&["x"], &wrong[..]].concat()).args;
            let message = settings(&args).unwrap_err().to_string();
            assert!(message.starts_with(wrong[0]) && !message.contains('\n'), "{message}");
        }
        assert!(settings(&Cli::parse_from(["x"]).args).is_ok());
    }

    #[test]
    fn lists_are_separated_by_commas() {
        let line = ["x", "--workers", "1,2", "--backend", "local,mpi", "--strategies", "fp32,fp16"];
        let args = Cli::parse_from(line).args;
        assert_eq!((args.workers, args.backend.len()), (vec![1, 2], 2));
        assert_eq!(args.strategies, ["fp32", "fp16"]);
        assert_eq!(args.model, ["all"]);
    }
}
