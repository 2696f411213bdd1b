//! `cargo xtask bench-allreduce`: the time of a sum over all ranks, with our backends, MPI and Gloo.
//!
//! The ranks of every contender live as long as their number is measured. Size by size they take
//! turns. `benches/player` defines a sample.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::rc::Rc;
use std::str::FromStr;

use anyhow::{Context, Error, Result, ensure};
use candelabrum_plot::{bytes, seconds};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::json;

use crate::bench::{
    Band, Bench, BenchReport, Block, Chart, Cli, Column, Defaults, Hosts, Line, Look, Metric,
    Player, Programs, Row, Setup, Trial, Wanted, best, by_powers, choice_name, compare,
    compile_mpi, last_cache, once, short, values,
};

#[derive(Clone, Debug, Serialize, clap::Args)]
pub(crate) struct AllReduce {
    /// Numbers of ranks
    #[arg(long, value_delimiter = ',', value_name = "N,N..", default_value = "2,4")]
    ranks: Vec<usize>,
    /// Bytes of a rank's numbers, such as 4KB or 25MiB [default: ten from 4KB to 100MB]
    #[arg(long, value_delimiter = ',', value_name = "SIZE,SIZE..")]
    sizes: Vec<Size>,
    /// Contenders
    #[arg(long, value_delimiter = ',', default_value = "local,local-slice,mpi,mpi-c,gloo,memory")]
    contenders: Vec<AllReduceContender>,
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum AllReduceContender {
    /// Ours over shared memory, with the numbers in a buffer of the communicator
    Local,
    /// Ours over shared memory, with the numbers in a vector of the caller
    LocalSlice,
    /// Ours over MPI
    Mpi,
    /// A C program that calls MPI_Allreduce in place
    MpiC,
    /// Gloo, through torch.distributed
    Gloo,
    /// As many processes that change their numbers in place and share nothing: the memory's limit
    Memory,
}

use AllReduceContender::{Gloo, Local, LocalSlice, Memory, Mpi, MpiC};

/// The contenders' names in a picture, in the order of the options.
const LABELS: [&str; 6] = [
    "Candelabrum, local",
    "Candelabrum, local, caller's memory",
    "Candelabrum, MPI",
    "C, MPI_Allreduce in place",
    "PyTorch, Gloo",
    "limit: processes that share nothing",
];

const TIME: Metric = Metric { figure: "seconds", more_is_better: false };

const SIZES: [&str; 10] =
    ["4KB", "16KB", "64KB", "256KB", "1MB", "1.7MB", "4MB", "16MB", "25MiB", "100MB"];
const QUICK: [&str; 4] = ["4KB", "64KB", "1.7MB", "25MiB"];

pub(crate) fn run(mut cli: Cli<AllReduce>) -> Result<()> {
    if cli.bench.quick {
        cli.common.rounds.get_or_insert(3);
        cli.common.seconds.get_or_insert(0.03);
    }
    crate::bench::run::run(&cli)
}

impl Bench for AllReduce {
    const NAME: &'static str = "bench-allreduce";
    const FILE: &'static str = "allreduce";
    const METRIC: Metric = TIME;
    const DEFAULTS: Defaults = Defaults { rounds: 7, seconds: 0.1, deadline: 120 };
    const TITLE: &'static str = "All-reduce, sum of f32 in place: time by size (lower is better)";
    const LEGEND: &'static [&'static str] = &[
        "×: median of the ratios of times within a round; above 1, ours is faster.",
        "memory, the limit: as many processes change their numbers in place, each on its own.",
        "It is measured where all ranks' numbers exceed the last cache.",
    ];

    fn check(&self) -> Result<()> {
        ensure!(self.ranks.iter().all(|n| (2..=64).contains(n)), "--ranks are from 2 to 64");
        if self.link.is_some() { Hosts::check() } else { Ok(()) }
    }

    fn wanted(&self) -> Wanted {
        let mpi = self.contenders.iter().any(|who| matches!(who, Mpi | MpiC));
        Wanted { mpi, python: self.contenders.contains(&Gloo) }
    }

    fn plan(&self, setup: &mut Setup) -> Result<Vec<Block>> {
        let (mut ranks, mut contenders) = (once(&self.ranks), once(&self.contenders));
        let mut hosts = None;
        if let Some(rate) = self.link {
            ranks = vec![2];
            contenders.retain(|who| matches!(who, Mpi | MpiC | Gloo));
            let made = Rc::new(Hosts::make(setup.output.folder(), 2)?);
            made.set_rate(rate)?;
            hosts = Some(made);
        }
        let has_c = setup.programs.has_mpi && contenders.contains(&MpiC);
        let c = has_c.then(|| compile_mpi("benches/player/allreduce.c", "bench-allreduce-c"));
        let c = c.transpose()?;
        let usual: &[&str] = if self.quick { &QUICK } else { &SIZES };
        let mut sizes = once(&self.sizes);
        if sizes.is_empty() {
            sizes = usual.iter().map(|size| size.parse()).collect::<Result<_>>()?;
        }
        sizes.sort_unstable();
        let cache = last_cache();
        let mut blocks = Vec::new();
        for ranks in ranks {
            let mut block = Block::new(format!("{ranks} ranks, microseconds"));
            block.legs = vec![Vec::new(); sizes.len()];
            for &who in &contenders {
                let programs = (&setup.programs, c.as_deref());
                let Some(player) = self.player(who, ranks, hosts.as_ref(), programs) else {
                    continue;
                };
                block.players.push(player);
                let player = block.players.len() - 1;
                for (leg, &Size(bytes)) in block.legs.iter_mut().zip(&sizes) {
                    // The limit of the memory matters only for numbers that do not fit in the cache.
                    if who == Memory && ranks * bytes <= cache {
                        continue;
                    }
                    let place = values([("ranks", ranks), ("size", bytes)]);
                    let request = values([("elements", bytes / size_of::<f32>())]);
                    leg.push(Trial::new(&choice_name(&who), &place, player, request));
                }
            }
            blocks.push(block);
        }
        setup.found = values([("cache", cache)]);
        Ok(blocks)
    }

    fn derive(&self, rows: &mut [Row]) {
        let is_peer = |row: &Row| ["mpi-c", "gloo"].contains(&&*row.contender);
        compare(rows, "to_best_peer", TIME, |_, other| is_peer(other));
        compare(rows, "to_mpi_c", TIME, |_, other| other.contender == "mpi-c");
        compare(rows, "share_of_memory_speed", TIME, |_, other| other.contender == "memory");
        // The name of the best peer, which the table shows.
        let peer = best(rows, TIME, is_peer).map(|row| json!(row.contender));
        for row in rows {
            row.facts.extend(peer.clone().map(|peer| ("best_peer".to_owned(), peer)));
        }
    }

    fn tables(&self, rows: &[Row]) -> Vec<Vec<Column>> {
        let size = |row: &Row| Size(row.number("size")).to_string();
        let mut columns = vec![Column::name(10, size)];
        for row in rows.iter().filter(|row| row.contender != "memory") {
            let name = &row.contender;
            columns.push(
                Column::new(name, 11, |row| Some(short(1e6 * row.median("seconds")?))).of(name),
            );
        }
        let peer = |row: &Row| {
            Some(format!("{:.2} ({})", row.ratio("to_best_peer")?, row.fact("best_peer")?))
        };
        columns.push(Column::new("local × peer", 16, peer).of("local"));
        columns.push(Column::ratio("mpi × C", "to_mpi_c").of("mpi"));
        columns.push(Column::percent("of memory", "share_of_memory_speed").of("local"));
        vec![columns]
    }

    fn notes(&self, _: &BenchReport) -> Vec<String> {
        vec![format!("The last cache of this machine has {} MB.", last_cache() / 1_000_000)]
    }

    fn bands(&self, report: &BenchReport) -> Vec<Band> {
        let rows = || report.rows.iter().filter(|row| !row.samples.is_empty());
        let size = |row: &Row| row.number("size") as f64;
        let spread = |row: &Row| row.figures.get(TIME.figure).copied();
        let chart = |ranks: usize, lines: &[(Look, String)]| {
            let times = rows().filter_map(spread).flat_map(|s| [s.min, s.max]).collect();
            let x = ("numbers of one rank", by_powers(rows().map(size).collect(), bytes));
            let y = ("", by_powers(times, seconds));
            let line = |(look, name): &(Look, String)| {
                let own = rows().filter(|row| row.contender == *name);
                let own = own.filter(|row| row.number("ranks") == ranks);
                let at = |row: &Row| Some((size(row), spread(row)?));
                Line { look: *look, points: own.filter_map(at).collect() }
            };
            let crowded = if ranks > report.machine.cores { " (more than cores)" } else { "" };
            let title = format!("{ranks} ranks{crowded}");
            // Ours is drawn last, so that it is on top.
            Chart::lines(title, x, y, lines.iter().rev().map(line).collect())
        };
        let (mut key, mut lines) = (Vec::new(), Vec::new());
        for (place, (&who, label)) in
            AllReduceContender::value_variants().iter().zip(LABELS).enumerate()
        {
            let look = if who == Memory { Look::Limit } else { Look::Line(place) };
            let name = choice_name(&who);
            if rows().any(|row| row.contender == name) {
                key.push((look, label.to_owned()));
                lines.push((look, name));
            }
        }
        let ranks: BTreeSet<usize> = rows().map(|row| row.number("ranks")).collect();
        let charts = ranks.into_iter().map(|ranks| chart(ranks, &lines)).collect();
        vec![Band { title: "One operation".into(), key, charts }]
    }
}

impl AllReduce {
    /// The ranks of a contender. `None` if this machine lacks its program.
    fn player(
        &self,
        who: AllReduceContender,
        ranks: usize,
        hosts: Option<&Rc<Hosts>>,
        (programs, c): (&Programs, Option<&Path>),
    ) -> Option<Player> {
        let ours = |numbers, backend| {
            let player = Player::new(&programs.player).args(["allreduce", "--numbers", numbers]);
            player.ranks(ranks, backend)
        };
        let player = match (who, &programs.python) {
            (Local, _) => ours("segment", "local"),
            (LocalSlice, _) => ours("slice", "local"),
            (Memory, _) => ours("alone", "local").other(),
            (Mpi, _) if programs.has_mpi => ours("segment", "mpi"),
            (MpiC, _) => Player::new(c?).ranks(ranks, "mpi").other(),
            (Gloo, Some(python)) => {
                Player::script(python, "bench_allreduce.py").threads(1).ranks(ranks, "gloo")
            }
            (Mpi | Gloo, _) => return None,
        };
        let player = player.on(hosts);
        Some(if hosts.is_some() { player.option("--late-ms", self.late_ms) } else { player })
    }
}

/// The size of one rank's numbers in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Size(usize);

const UNITS: [(&str, usize); 5] =
    [("MB", 1_000_000), ("MiB", 1 << 20), ("KB", 1000), ("KiB", 1 << 10), ("B", 1)];

impl FromStr for Size {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let units =
            UNITS.iter().filter_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
        // `KB` ends in `B` too, so the longest unit counts.
        let shortest = units.min_by_key(|(number, _)| number.len());
        let (number, unit) = shortest.context("a size is a number and B, KB, KiB, MB or MiB")?;
        let number: f64 = number.trim().parse().context("a size begins with a number")?;
        let bytes = (number * *unit as f64).round();
        ensure!((4.0..=2e9).contains(&bytes), "a size is from 4B to 2000MB");
        Ok(Self(bytes as usize))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_short = |unit: usize| self.0 >= unit && (10 * self.0).is_multiple_of(unit);
        let (name, unit) = UNITS.into_iter().find(|(_, unit)| is_short(*unit)).unwrap_or(("B", 1));
        write!(f, "{} {name}", self.0 as f64 / unit as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_reads_as_it_is_shown() {
        for (text, bytes) in [
            ("4 KB", 4000),
            ("1.7 MB", 1_700_000),
            ("25 MiB", 25 << 20),
            ("4 KiB", 4096),
            ("12 B", 12),
        ] {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.0, size.to_string().as_str()), (bytes, text));
        }
        for wrong in ["4", "KB", "x MB", "1B", "9999MB", "-4KB"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }
}
