//! `cargo xtask bench-scaling`: the speed-up of training with more ranks, and the cost of strategies.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use anyhow::{Result, bail, ensure};
use candelabrum_plot::Axis;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::json;

use super::network::Network;
use super::parts;
use super::training::{SPEED, STRANGERS, Training, compare_with_strangers, place};
use crate::bench::{
    Band, Bench, BenchReport, Block, Chart, Column, Defaults, Line, Look, Metric, Row, Setup,
    Wanted, choice_name, compare, counted, from_zero, list_names, once,
};

/// The strategy whose speed with one worker is the reference of all speed-ups.
const BASELINE: &str = "fp32";

#[derive(Clone, Debug, Serialize, clap::Args)]
pub(crate) struct Scaling {
    /// Numbers of ranks [default: powers of two up to this machine's cores]
    #[arg(long, value_delimiter = ',', value_name = "N,N..")]
    workers: Vec<usize>,
    /// Models to train: names of networks, or all
    #[arg(long, value_delimiter = ',', default_value = "cnn,mlp", value_name = "NAME,NAME..")]
    model: Vec<String>,
    /// Exchanges of gradients: names of strategies, or all
    #[arg(long, value_delimiter = ',', default_value = "all", value_name = "NAME,NAME..")]
    strategies: Vec<String>,
    /// Backends, which start the ranks and send their messages
    #[arg(long, value_delimiter = ',', default_value = "local")]
    backend: Vec<Backend>,
    /// Images in a rank's batch
    #[arg(long, default_value = "64")]
    batch_size: NonZeroUsize,
    /// Measured steps of a sample, instead of its seconds
    #[arg(long, value_name = "N")]
    steps: Option<NonZeroUsize>,
    /// Share of the elements that sparseTopK sends
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    spars: f64,
    /// Magnitude from which on sparseThreshold sends
    #[arg(long, value_name = "MAGNITUDE", default_value_t = 0.03)]
    threshold_spars: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Backend {
    /// Shared memory
    Local,
    /// MPI; mpiexec starts the ranks
    Mpi,
}

impl Bench for Scaling {
    const NAME: &'static str = "bench-scaling";
    const FILE: &'static str = "scaling";
    const METRIC: Metric = SPEED;
    const DEFAULTS: Defaults = Defaults { rounds: 3, seconds: 1.0, deadline: 300 };
    const TITLE: &'static str = "Data-parallel training: speed and cost by strategy";
    const LEGEND: &'static [&'static str] = &[
        "Every rank has one compute thread. images/s: of all ranks together. efficiency: speed-up \
         divided by ranks.",
        "speed-up: to 1 rank with fp32, same model and backend, median of the ratios within a round.",
        "strangers: as many ranks that train without any exchange.",
        "Times, KB sent and KB received (payload): rank 0's mean step. other: what no part contains.",
        "Points of one number of workers stand side by side.",
    ];

    fn check(&self) -> Result<()> {
        let possible = |count: &usize| (1..=MOST_WORKERS).contains(count);
        ensure!(
            self.workers.iter().all(possible),
            "--workers are numbers from 1 to {MOST_WORKERS}"
        );
        // As f32, like in the library: the conversion can round to 0 or to infinity.
        let (share, magnitude) = (self.spars as f32, self.threshold_spars as f32);
        ensure!(share > 0.0 && share <= 1.0, "--spars is above 0 and at most 1");
        ensure!(magnitude > 0.0 && magnitude.is_finite(), "--threshold-spars is a number above 0");
        Ok(())
    }

    fn wanted(&self) -> Wanted {
        Wanted { mpi: self.backend.contains(&Backend::Mpi), python: false }
    }

    fn plan(&self, setup: &mut Setup) -> Result<Vec<Block>> {
        let programs = &setup.programs;
        let workers = worker_counts(&self.workers, setup.machine.cores);
        let names: Vec<String> = Network::value_variants().iter().map(choice_name).collect();
        let models = pick("--model", &self.model, &names)?;
        let strategies = list_names(&programs.player, "strategies")?;
        let strategies = pick("--strategies", &self.strategies, &strategies)?;
        let mut blocks = Vec::new();
        let networks = Network::value_variants().iter();
        for network in networks.filter(|network| models.contains(&choice_name(*network))) {
            let network = network.about();
            for backend in once(&self.backend) {
                if backend == Backend::Mpi && !programs.has_mpi {
                    continue;
                }
                let backend = &choice_name(&backend);
                let training = Training { network, batch_size: self.batch_size.get(), threads: 1 };
                let title = format!(
                    "{}, batch {} per rank, {backend} backend",
                    network.name, self.batch_size
                );
                let mut block = Block::new(title);
                let place = |workers: usize| {
                    let settings = [("batch_size", self.batch_size.get()), ("workers", workers)];
                    let mut place = place(network, settings);
                    place.insert("backend".into(), json!(backend));
                    place
                };
                for strategy in &strategies {
                    let is_threshold = strategy == "sparseThreshold";
                    let spars = if is_threshold { self.threshold_spars } else { self.spars };
                    let ours = training.rust(&programs.player, "ours");
                    let ours = ours.option("--strategy", strategy).option("--spars", spars);
                    for &count in &workers {
                        block.add(strategy, &place(count), ours.clone().ranks(count, backend));
                    }
                }
                for &count in workers.range(2..) {
                    let strangers = training.strangers(&programs.player, count);
                    block.add(STRANGERS, &place(count), strangers);
                }
                for trial in block.legs.iter_mut().flatten() {
                    trial
                        .request
                        .extend(self.steps.map(|steps| ("steps".to_owned(), json!(steps))));
                }
                blocks.push(block);
            }
        }
        Ok(blocks)
    }

    fn derive(&self, rows: &mut [Row]) {
        compare(rows, "speed_up", SPEED, |_, other| is_base(other));
        compare_with_strangers(rows);
        for row in rows {
            let workers = row.number("workers") as f64;
            let share = row.ratios.get("speed_up").map(|s| s.map(|times| times / workers));
            row.ratios.extend(share.map(|share| ("efficiency".to_owned(), share)));
        }
    }

    fn tables(&self, _: &[Row]) -> Vec<Vec<Column>> {
        let names = || {
            let ranks = |row: &Row| Some(row.number("workers").to_string());
            vec![Column::name(16, |row| row.contender.clone()), Column::new("ranks", 5, ranks)]
        };
        let (mut speeds, mut times) = (names(), names());
        speeds.extend([
            Column::spread("images/s [min-max]", SPEED.figure, 1.0, 0),
            Column::ratio("speed-up", "speed_up"),
            Column::ratio("efficiency", "efficiency"),
            Column::percent("of strangers", "ratio_to_strangers"),
            Column::figure("KB sent", "bytes_sent_per_step", 1e-3, 1),
            Column::figure("KB received", "bytes_received_per_step", 1e-3, 1),
        ]);
        times.extend(parts::columns());
        vec![speeds, times]
    }

    fn notes(&self, report: &BenchReport) -> Vec<String> {
        let lacks = report.rows.iter().any(|row| row.ratio("speed_up").is_none());
        let why = "-: 1 worker with fp32 was not measured, so there is no speed-up.";
        lacks.then(|| why.to_owned()).into_iter().collect()
    }

    fn bands(&self, report: &BenchReport) -> Vec<Band> {
        let panels: Vec<&[Row]> = report
            .rows
            .chunk_by(|a, b| {
                (a.text("network"), a.text("backend")) == (b.text("network"), b.text("backend"))
            })
            .collect();
        let names = report.rows.iter().map(|row| row.contender.clone());
        let strategies = once(&names.filter(|name| name != STRANGERS).collect::<Vec<_>>());
        let mut key: Vec<(Look, String)> =
            (0..).zip(&strategies).map(|(place, name)| (Look::Line(place), name.clone())).collect();
        key.push((Look::Limit, "limit: as many ranks that share nothing".into()));
        let bands = |title: &str, key: &[(Look, String)], chart: &dyn Fn(&[Row]) -> Chart| {
            let band = |rows: &[&[Row]]| Band {
                title: title.to_owned(),
                key: key.to_vec(),
                charts: rows.iter().map(|rows| chart(rows)).collect(),
            };
            panels.chunks(2).map(band).collect::<Vec<_>>()
        };
        let speeds = |rows: &[Row]| throughput(rows, &strategies);
        let speeds = bands("Throughput of all ranks together", &key, &speeds);
        let times = bands("Where the time of a step goes (rank 0)", &parts::key(), &steps);
        speeds.into_iter().chain(times).collect()
    }
}

/// The maximum number of ranks that the library starts on one machine.
const MOST_WORKERS: usize = 256;

/// The numbers of workers: the requested ones, or powers of two up to the number of cores.
fn worker_counts(asked: &[usize], cores: usize) -> BTreeSet<usize> {
    if asked.is_empty() {
        return (0..usize::BITS).map(|power| 1 << power).take_while(|&n| n <= cores).collect();
    }
    asked.iter().copied().collect()
}

/// The requested names, or all names. `what` is the option for the error.
fn pick(what: &str, asked: &[String], known: &[String]) -> Result<Vec<String>> {
    if asked.iter().any(|name| name == "all") {
        return Ok(known.to_vec());
    }
    if let Some(name) = asked.iter().find(|name| !known.contains(name)) {
        bail!("{what} has no `{name}`: there is all, {}", known.join(", "));
    }
    Ok(once(asked))
}

/// Whether speed-ups are those to this row.
fn is_base(row: &Row) -> bool {
    row.contender == BASELINE && row.number("workers") == 1
}

/// Throughput by workers: a line per strategy, and what ranks reach that share nothing.
fn throughput(rows: &[Row], strategies: &[String]) -> Chart {
    let counts: BTreeSet<usize> = rows.iter().map(|row| row.number("workers")).collect();
    let points = |rows: Vec<&Row>, aside: f64| {
        let place = |row: &Row| counts.iter().position(|&count| count == row.number("workers"));
        let point =
            |row: &Row| Some((place(row)? as f64 + 0.5 + aside, *row.figures.get(SPEED.figure)?));
        rows.into_iter().filter_map(point).collect()
    };
    let limit = rows.iter().filter(|row| is_base(row) || row.contender == STRANGERS);
    let mut lines = vec![Line { look: Look::Limit, points: points(limit.collect(), 0.0) }];
    // Strategies are often equally fast, so their points stand side by side.
    let aside = 0.6 / strategies.len().max(1) as f64;
    for (index, name) in strategies.iter().enumerate() {
        let beside = (index as f64 - (strategies.len() as f64 - 1.0) / 2.0) * aside;
        let own = rows.iter().filter(|row| row.contender == *name);
        lines.push(Line { look: Look::Line(index), points: points(own.collect(), beside) });
    }
    let most = lines.iter().flat_map(|line| &line.points).map(|(_, s)| s.max).fold(1.0, f64::max);
    let names = counts.iter().map(ToString::to_string).enumerate();
    let x = ("workers (ranks)", Axis::of_things(counts.len(), names));
    Chart::lines(title(rows), x, ("images per second", from_zero(most)), lines)
}

fn title(rows: &[Row]) -> String {
    format!("{}, {} backend", rows[0].text("network"), rows[0].text("backend"))
}

/// The parts of a step with the most workers: a bar per strategy.
fn steps(rows: &[Row]) -> Chart {
    let most = rows.iter().map(|row| row.number("workers")).max().unwrap_or(1);
    let rows_of_most = rows.iter().filter(|row| row.number("workers") == most);
    let bars = rows_of_most.map(|row| parts::bar(row, row.contender.clone())).collect();
    let title = format!("{}, {}", title(rows), counted(most, "worker"));
    Chart::bars(&title, 400, "milliseconds per step", bars)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_powers_of_two_up_to_the_cores() {
        let counts = |asked: &[usize], cores| Vec::from_iter(worker_counts(asked, cores));
        assert_eq!([counts(&[], 1), counts(&[], 2)], [vec![1], vec![1, 2]]);
        assert_eq!([counts(&[], 12), counts(&[4, 1, 4], 2)], [vec![1, 2, 4, 8], vec![1, 4]]);
    }

    #[test]
    fn names_are_checked_and_taken_once() {
        let strings =
            |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let known = strings(&["fp32", "fp16"]);
        let pick = |asked: &[&str]| pick("--strategies", &strings(asked), &known);
        assert_eq!(pick(&["all"]).unwrap(), known);
        assert_eq!(pick(&["fp16", "fp16"]).unwrap(), ["fp16"]);
        let message = pick(&["fp16", "fp8"]).unwrap_err().to_string();
        assert_eq!(message, "--strategies has no `fp8`: there is all, fp32, fp16");
    }
}
