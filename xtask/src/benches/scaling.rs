//! `cargo xtask bench-scaling`: the speed-up of training with more ranks, and the cost of strategies.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Result, bail, ensure};
use candelabrum_plot::Axis;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::json;

use super::network::Network;
use super::parts;
use super::training::{self, SPEED, STRANGERS, Training, compare_with_strangers, place};
use crate::bench::{
    Band, Bench, BenchReport, Block, Chart, Column, Defaults, Hosts, Line, Look, MOST_HOSTS,
    Metric, Row, Setup, StandingBar, Wanted, choice_name, compare, counted, from_zero, list_names,
    once, short,
};

/// The strategy whose speed with one worker is the reference of all speed-ups.
const BASELINE: &str = "fp32";

#[derive(Clone, Debug, Serialize, clap::Args)]
pub(crate) struct Scaling {
    /// Numbers of ranks [default: powers of two up to this machine's cores; 1,2,4,8 with --chart bars]
    #[arg(long, value_delimiter = ',', value_name = "N,N..")]
    workers: Vec<usize>,
    /// Models to train: names of networks, or all; with --chart bars resnet50-224 is the default
    #[arg(long, value_delimiter = ',', default_value = "cnn,mlp", value_name = "NAME,NAME..")]
    #[arg(default_value_if("chart", "bars", "resnet50-224"))]
    model: Vec<String>,
    /// Exchanges of gradients: names of strategies, or all; with --chart bars fp32,fp16 is the default
    #[arg(long, value_delimiter = ',', default_value = "all", value_name = "NAME,NAME..")]
    #[arg(default_value_if("chart", "bars", "fp32,fp16"))]
    strategies: Vec<String>,
    /// Backends, which start the ranks and send their messages
    #[arg(long, value_delimiter = ',', default_value = "local")]
    backend: Vec<Backend>,
    /// Each rank on a host of its own, over MPI: network namespaces of this machine, whose wires have this rate in
    /// Mbit/s. It needs root and iproute2 [1000 without a number]
    #[arg(long, value_name = "MBIT", num_args = 0..=1, default_missing_value = "1000")]
    hosts: Option<f64>,
    /// How the picture shows the throughput
    #[arg(long, default_value = "lines")]
    chart: Throughput,
    /// Images in a rank's batch; with --chart bars 8 is the default
    #[arg(long, default_value = "64", default_value_if("chart", "bars", "8"))]
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

/// The chart of the throughput.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Throughput {
    /// A line for each strategy over the ranks, and what ranks reach that share nothing
    Lines,
    /// A bar for each network and strategy at every number of nodes, with its efficiency
    Bars,
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
        if let Some(rate) = self.hosts {
            ensure!((0.1..1e6).contains(&rate), "--hosts is from 0.1 to 1000000 (Mbit/s)");
            let fits = self.workers.iter().all(|&count| count <= MOST_HOSTS);
            ensure!(fits, "--workers are numbers from 1 to {MOST_HOSTS} with --hosts");
            Hosts::check()?;
        }
        // As f32, like in the library: the conversion can round to 0 or to infinity.
        let (share, magnitude) = (self.spars as f32, self.threshold_spars as f32);
        ensure!(share > 0.0 && share <= 1.0, "--spars is above 0 and at most 1");
        ensure!(magnitude > 0.0 && magnitude.is_finite(), "--threshold-spars is a number above 0");
        Ok(())
    }

    fn wanted(&self) -> Wanted {
        Wanted { mpi: self.backends().contains(&Backend::Mpi), python: false }
    }

    fn plan(&self, setup: &mut Setup) -> Result<Vec<Block>> {
        let programs = &setup.programs;
        let workers = self.worker_counts(setup.machine.cores);
        let hosts = self.make_hosts(&workers, setup.output.folder())?;
        let names: Vec<String> = Network::value_variants().iter().map(choice_name).collect();
        let models = pick("--model", &self.model, &names)?;
        let strategies = list_names(&programs.player, "strategies")?;
        let strategies = pick("--strategies", &self.strategies, &strategies)?;
        let mut blocks = Vec::new();
        let networks = Network::value_variants().iter();
        for network in networks.filter(|network| models.contains(&choice_name(*network))) {
            let network = network.about();
            for backend in self.backends() {
                if backend == Backend::Mpi && !programs.has_mpi {
                    continue;
                }
                let backend = &choice_name(&backend);
                let training = Training { network, batch_size: self.batch_size.get(), threads: 1 };
                let title = format!(
                    "{}, batch {} per rank, {backend} backend, {}",
                    network.name,
                    self.batch_size,
                    self.nodes()
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
                        block.add(
                            strategy,
                            &place(count),
                            ours.clone().ranks(count, backend).on(hosts.as_ref()),
                        );
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
        let lines = |rows: &[Row]| throughput(rows, &strategies);
        let speeds = match self.chart {
            Throughput::Lines => bands("Throughput of all ranks together", &key, &lines),
            Throughput::Bars => self.bars_by_nodes(&report.rows),
        };
        let times = bands("Where the time of a step goes (rank 0)", &parts::key(), &steps);
        speeds.into_iter().chain(times).collect()
    }
}

impl Scaling {
    /// The backends. Hosts are connected by MPI.
    fn backends(&self) -> Vec<Backend> {
        if self.hosts.is_some() { vec![Backend::Mpi] } else { once(&self.backend) }
    }

    /// The numbers of workers: the requested ones, or powers of two, for bars up to 8 and otherwise up to the number of
    /// cores.
    fn worker_counts(&self, cores: usize) -> BTreeSet<usize> {
        let most = if self.chart == Throughput::Bars { MOST_BARS } else { cores };
        if self.workers.is_empty() {
            return (0..usize::BITS).map(|power| 1 << power).take_while(|&n| n <= most).collect();
        }
        self.workers.iter().copied().collect()
    }

    /// A host for each of the most workers, if hosts are asked for.
    fn make_hosts(&self, workers: &BTreeSet<usize>, folder: &Path) -> Result<Option<Rc<Hosts>>> {
        let Some(rate) = self.hosts else { return Ok(None) };
        let hosts = Hosts::make(folder, workers.last().map_or(2, |&most| most.max(2)))?;
        hosts.set_rate(rate)?;
        Ok(Some(Rc::new(hosts)))
    }

    /// What a node of the pictures is.
    fn nodes(&self) -> String {
        match self.hosts {
            Some(rate) => format!("network namespaces of one machine, {rate} Mbit/s"),
            None => "ranks on one host".to_owned(),
        }
    }

    /// Throughput by nodes as nGraph's page shows it: at each number of nodes a bar for every network and strategy.
    fn bars_by_nodes(&self, rows: &[Row]) -> Vec<Band> {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.contender != STRANGERS).collect();
        let kinds: Vec<String> = once(&rows.iter().map(|row| kind(row)).collect::<Vec<_>>());
        let backends = once(&rows.iter().map(|row| row.text("backend")).collect::<Vec<_>>());
        let chart = |backend: &str| {
            let own: Vec<&Row> =
                rows.iter().copied().filter(|row| row.text("backend") == backend).collect();
            self.node_chart(format!("{backend} backend"), &own, &kinds)
        };
        vec![Band {
            title: format!("Throughput of all nodes together, batch {} per node", self.batch_size),
            key: (0..).zip(&kinds).map(|(place, name)| (Look::Bar(place), name.clone())).collect(),
            charts: backends.iter().map(|backend| chart(backend)).collect(),
        }]
    }

    fn node_chart(&self, title: String, rows: &[&Row], kinds: &[String]) -> Chart {
        const BAR: f64 = 52.0;
        const GAP: f64 = 30.0;
        let counts: BTreeSet<usize> = rows.iter().map(|row| row.number("workers")).collect();
        let group = kinds.len() as f64 * BAR + GAP;
        let bar = |row: &&Row| {
            let count = counts.iter().position(|&count| count == row.number("workers"))?;
            let place = kinds.iter().position(|name| *name == kind(row))?;
            let left = count as f64 + (GAP / 2.0 + place as f64 * BAR) / group;
            let spread = *row.figures.get(SPEED.figure)?;
            let efficiency = row.ratio("efficiency").map(|share| format!("{:.0}%", 100.0 * share));
            Some(StandingBar {
                look: Look::Bar(place),
                ends: [left, left + BAR / group],
                spread,
                figure: short(spread.median),
                label: efficiency.unwrap_or_else(|| "-".to_owned()),
            })
        };
        let bars: Vec<StandingBar> = rows.iter().filter_map(bar).collect();
        let most = bars.iter().map(|bar| bar.spread.max).fold(1.0, f64::max);
        let names = counts.iter().map(ToString::to_string).enumerate();
        let x = Axis::of_things(counts.len(), names);
        let name = format!("nodes ({})", self.nodes());
        let y = ("images per second", from_zero(1.12 * most));
        Chart::standing(title, group * counts.len() as f64, (&name, x), y, bars)
    }
}

/// The network and the strategy of a row, by which bars are told apart.
fn kind(row: &Row) -> String {
    format!("{}, {}", training::title(row), row.contender)
}

/// The maximum number of ranks that the library starts on one machine.
const MOST_WORKERS: usize = 256;

/// The most nodes of the bars, if the user says none: those of nGraph's page.
const MOST_BARS: usize = 8;

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
    use std::env;
    use std::fs;

    use clap::{Args, FromArgMatches};

    use super::*;
    use crate::bench::run::picture;
    use crate::bench::{Host, Values, values};

    /// The benchmark with these options.
    fn of(options: &[&str]) -> Scaling {
        let words = ["x"].iter().chain(options);
        let matches = Scaling::augment_args(clap::Command::new("x")).get_matches_from(words);
        Scaling::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn the_default_is_powers_of_two_up_to_the_cores() {
        let counts = |options: &[&str], cores| Vec::from_iter(of(options).worker_counts(cores));
        assert_eq!([counts(&[], 1), counts(&[], 2)], [vec![1], vec![1, 2]]);
        assert_eq!(counts(&[], 12), [1, 2, 4, 8]);
        assert_eq!(counts(&["--workers", "4,1,4"], 2), [1, 4]);
        assert_eq!(counts(&["--chart", "bars"], 2), [1, 2, 4, 8]);
    }

    #[test]
    fn bars_have_defaults_of_their_own() {
        let settings = |options: &[&str]| {
            let Scaling { model, strategies, batch_size, hosts, .. } = of(options);
            (model.join(","), strategies.join(","), batch_size.get(), hosts)
        };
        let text = str::to_owned;
        assert_eq!(settings(&[]), (text("cnn,mlp"), text("all"), 64, None));
        let bars = (text("resnet50-224"), text("fp32,fp16"), 8, Some(1000.0));
        assert_eq!(settings(&["--chart", "bars", "--hosts"]), bars);
        let own =
            ["--chart", "bars", "--model", "mlp,cnn", "--strategies", "fp32", "--hosts", "100"];
        assert_eq!(settings(&own), (text("mlp,cnn"), text("fp32"), 8, Some(100.0)));
        assert_eq!(of(&own).backends(), [Backend::Mpi]);
    }

    /// Made-up speeds of ResNet-50 on 1 to 8 nodes. `PICTURES` names a folder for the picture.
    #[test]
    fn bars_show_each_strategy_at_each_number_of_nodes_with_its_efficiency() {
        let bench = of(&["--chart", "bars", "--hosts", "10000"]);
        let mut report = BenchReport::new(Scaling::NAME, Host::look(), Values::new());
        let speeds = [("fp32", [4.0, 7.6, 14.4, 26.9]), ("fp16", [3.9, 7.7, 15.2, 29.4])];
        for (strategy, speeds) in speeds {
            for (nodes, speed) in [1, 2, 4, 8].into_iter().zip(speeds) {
                let mut row =
                    Row::measured(strategy, 0, SPEED.figure, &[0.97 * speed, speed, 1.01 * speed]);
                row.point = values([("network", json!("resnet50-224")), ("backend", json!("mpi"))]);
                row.point.extend(values([("workers", nodes)]));
                report.rows.push(row);
            }
        }
        bench.derive(&mut report.rows);
        let shown = picture(&bench, &report).svg();
        if let Some(folder) = env::var_os("PICTURES") {
            fs::write(Path::new(&folder).join("scaling-bars.svg"), &shown).unwrap();
        }
        for words in [
            ">26.9<",
            ">84%<",
            ">92%<",
            ", fp32<",
            ", fp16<",
            "nodes (network namespaces of one machine, 10000 Mbit/s)",
        ] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        assert_eq!(shown.matches("class=\"plate\"").count(), 8, "{shown}");
        let here = picture(&of(&["--chart", "bars"]), &report).svg();
        assert!(here.contains("nodes (ranks on one host)"), "{here}");
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
