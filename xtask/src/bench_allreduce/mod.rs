//! `cargo xtask bench-allreduce`: the time of a sum over all ranks, with our backends, MPI and
//! Gloo.
//!
//! The ranks of every contender live as long as their number is measured, and are stopped while
//! another contender is measured. Size by size they take turns, round by round, so that other load
//! on the machine affects all of them. Ratios are computed within a round, and the median over the
//! rounds is reported. `benches/allreduce/src/measure.rs` defines a sample.
//!
//! The files are written after every number of ranks and after an interrupt. If a contender fails,
//! the text under its table contains the failure, and the other contenders continue.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use self::contender::{Contender, Programs, Wire};
use self::plan::{Plan, Size};
use self::report::Report;
use crate::bench::{Output, progress_bar};
use crate::host::Host;
use crate::interrupt::{Interrupted, Watch};
use crate::live::{Failure, Live};
use crate::turns::Player;

mod chart;
mod contender;
#[cfg(test)]
mod fixture;
mod plan;
mod report;
mod table;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Numbers of ranks
    #[arg(long, value_delimiter = ',', value_name = "N,N..", default_value = "2,4")]
    ranks: Vec<usize>,
    /// Bytes of a rank's numbers, such as 4KB or 25MiB [default: ten from 4KB to 100MB]
    #[arg(long, value_delimiter = ',', value_name = "SIZE,SIZE..")]
    sizes: Vec<Size>,
    /// Contenders
    #[arg(long, value_delimiter = ',', default_value = "local,local-slice,mpi,mpi-c,gloo,memory")]
    contenders: Vec<Contender>,
    /// Samples of every contender at every size [default: 7]
    #[arg(long)]
    rounds: Option<usize>,
    /// Measured seconds of a sample, at least three operations [default: 0.1]
    #[arg(long)]
    seconds: Option<f64>,
    /// Instead of on one host: two ranks on two hosts made on this machine, connected by a wire of so
    /// many Mbit/s
    #[arg(long, value_name = "MBIT")]
    link: Option<f64>,
    /// Milliseconds by which rank 0 begins every batch later than the other; the clock starts then
    #[arg(long, value_name = "MS", default_value_t = 0, requires = "link")]
    late_ms: u64,
    /// Fewer sizes, rounds and seconds: for a look, not for a measurement
    #[arg(long)]
    quick: bool,
    /// Seconds that a contender may take to get ready, and for each sample
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    deadline: u64,
    /// Folder of allreduce.json and allreduce.svg [default: target/bench-allreduce]
    #[arg(long)]
    out: Option<PathBuf>,
}

/// The message of a contender that is ready.
#[derive(Clone, Debug, Deserialize)]
struct Ready {
    ranks: usize,
    /// Our contenders report their backend.
    backend: Option<String>,
    /// Other contenders report their version.
    version: Option<String>,
}

/// The message about a sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Measured {
    /// Of one operation.
    seconds: f64,
    batches: usize,
    operations: usize,
    correct: bool,
}

#[derive(Clone, Debug, Deserialize)]
struct Done {}

/// A measurement and its circumstances.
#[derive(Clone, Debug, Serialize)]
struct Sample {
    round: usize,
    ranks: usize,
    size: Size,
    contender: Contender,
    #[serde(flatten)]
    measured: Measured,
    /// The share of the machine's cores that other programs used meanwhile.
    others_cpu_share: Option<f64>,
}

/// A contender that could not continue.
#[derive(Clone, Debug, Serialize)]
struct Dropout {
    ranks: usize,
    contender: Contender,
    #[serde(flatten)]
    failure: Failure,
}

/// The results of a run.
#[derive(Clone, Debug, Default)]
struct Results {
    samples: Vec<Sample>,
    dropouts: Vec<Dropout>,
    /// The versions of other libraries, by contender.
    versions: BTreeMap<&'static str, String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut plan = Plan::new(args)?;
    let output = Output::new(args.out.as_deref(), "bench-allreduce")?;
    let wire = args.link.map(|megabits| Wire::make(megabits, args.late_ms, &output.folder()?));
    let programs = Programs::find(&mut plan.contenders, wire.transpose()?)?;
    let deadline = Duration::from_secs(args.deadline.max(1));
    let bench = Bench { machine: Host::look(), plan, programs, deadline, output };
    let mut results = Results::default();
    let measured = bench.measure(&mut results);
    bench.keep(&results, measured)
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
    /// Measures one number of ranks after the other.
    fn measure(&self, results: &mut Results) -> Result<()> {
        let watch = Watch::start()?;
        let all = self.plan.ranks.iter().map(|&ranks| self.plan.turns(ranks).count());
        let progress = progress_bar(self.plan.rounds * all.sum::<usize>());
        progress.enable_steady_tick(Duration::from_secs(1));
        for &ranks in &self.plan.ranks {
            let measured = self.measure_with(ranks, results, &watch, |what| {
                progress.set_message(what);
                progress.inc(1);
            });
            if measured.is_err() {
                progress.finish_and_clear();
            }
            measured?;
            self.write(results)?;
        }
        progress.finish_and_clear();
        Ok(())
    }

    /// Starts the contenders with this many ranks, and measures all sizes. `step` is called for
    /// each sample.
    fn measure_with(
        &self,
        ranks: usize,
        results: &mut Results,
        watch: &Watch,
        mut step: impl FnMut(String),
    ) -> Result<(), Interrupted> {
        let mut players: Vec<(Contender, Player)> =
            self.plan.contenders.iter().map(|&who| (who, Player::default())).collect();
        for (contender, player) in &mut players {
            let start = || Live::start(self.programs.commands(*contender, ranks)?, self.deadline);
            let ready: Option<Ready> = player.start(start, watch)?;
            if let Some(wrong) = ready.as_ref().and_then(|ready| contender.mistrust(ready, ranks)) {
                player.exclude(wrong);
            }
            let version = ready.and_then(|ready| ready.version);
            results.versions.extend(version.map(|version| (contender.name(), version)));
        }
        for &size in &self.plan.sizes {
            for round in 0..self.plan.rounds {
                for (contender, player) in &mut players {
                    if !self.plan.takes_part(*contender, ranks, size) {
                        continue;
                    }
                    step(format!("{ranks} ranks, {size}, {}", contender.name()));
                    let asked = format!("go {} {}", size.elements(), self.plan.seconds);
                    let sample = player.sample(&asked, watch)?;
                    results.samples.extend(sample.map(|(measured, others_cpu_share)| Sample {
                        round,
                        ranks,
                        size,
                        contender: *contender,
                        measured,
                        others_cpu_share,
                    }));
                }
            }
        }
        for (contender, mut player) in players {
            player.finish::<Done>(watch)?;
            let failure = player.failure().cloned();
            results.dropouts.extend(failure.map(|failure| Dropout { ranks, contender, failure }));
        }
        Ok(())
    }

    /// Prints and writes the results, and reports missing ones if the measurement ended early.
    fn keep(&self, results: &Results, measured: Result<()>) -> Result<()> {
        if results.samples.is_empty() && results.dropouts.is_empty() {
            return measured.context("nothing was measured");
        }
        print!("{}", self.report(results));
        let [json, svg] = self.write(results)?;
        println!("\nwrote {} and {}", json.display(), svg.display());
        measured.with_context(|| format!("kept {} samples", results.samples.len()))?;
        ensure!(!results.samples.is_empty(), "no contender could be measured");
        let wrong = results.samples.iter().find(|sample| !sample.measured.correct);
        ensure!(wrong.is_none(), "a sum was wrong: {:?}", wrong);
        Ok(())
    }

    fn write(&self, results: &Results) -> Result<[PathBuf; 2]> {
        let report = self.report(results);
        let json = self.output.json("allreduce.json", &report)?;
        let svg = self.output.path("allreduce.svg");
        chart::draw(&report, &svg)?;
        Ok([json, svg])
    }

    fn report<'a>(&'a self, results: &'a Results) -> Report<'a> {
        Report::new(&self.machine, &self.plan, results)
    }
}
