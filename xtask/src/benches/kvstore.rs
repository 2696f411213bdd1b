//! `cargo xtask bench-kvstore`: the key-value store and its servers against an all-reduce.
//!
//! The first part is the exchange of all parameters of ResNet-18 without training. The second one
//! trains on two workers for a fixed time, of which one is slower: there a store without rounds gains
//! what it loses in the first part.

use anyhow::{Result, ensure};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::json;

use crate::bench::{
    Band, Bench, BenchReport, Block, Column, Defaults, Grouped, Metric, Player, Row, Setup, Trial,
    Values, compare, once, values,
};

#[derive(Clone, Debug, Serialize, clap::Args)]
pub(crate) struct KvStore {
    /// Parts of the benchmark
    #[arg(long, value_delimiter = ',', default_value = "transfer,straggler")]
    parts: Vec<KvStorePart>,
    /// How many times as long the slower worker computes
    #[arg(long, value_name = "TIMES", default_value_t = 3.0)]
    slow: f64,
    /// The bound of dist_async: the most rounds by which a worker may be ahead of the other
    #[arg(long, value_name = "ROUNDS", default_value_t = 4)]
    bound: u64,
    /// The learning rate of every training; in dist_async each gradient is an update of its own, so
    /// there it counts twice
    #[arg(long, default_value_t = 0.02)]
    lr: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum KvStorePart {
    /// Push and pull of the parameters of ResNet-18
    Transfer,
    /// Training on two workers, of which one is slower
    Straggler,
}

use KvStorePart::{Straggler, Transfer};

/// GB/s of the first part, images/s of the second one.
const SPEED: Metric = Metric { figure: "speed", more_is_better: true };

/// The workers of both parts.
const WORKERS: usize = 2;

/// The share of the seconds that a sample of the first part takes.
const TRANSFER_SHARE: f64 = 0.1;

/// The contenders that have no servers.
const ALL_REDUCE: &str = "all-reduce";
const MEMORY: &str = "memory";

/// The contenders of the first part: name, exchange, whether servers have an optimizer, and the
/// compression of pushes.
const TRANSFERS: [(&str, &str, bool, Option<&str>); 8] = [
    ("dist_sync", "dist_sync", false, None),
    ("dist_sync-sgd", "dist_sync", true, None),
    ("dist_sync-fp16", "dist_sync", false, Some("fp16")),
    ("dist_sync-2bit", "dist_sync", false, Some("2bit")),
    ("dist_async", "dist_async", false, None),
    ("dist_async-sgd", "dist_async", true, None),
    (ALL_REDUCE, "all_reduce", false, None),
    (MEMORY, "memory", false, None),
];

impl Bench for KvStore {
    const NAME: &'static str = "bench-kvstore";
    const FILE: &'static str = "kvstore";
    const METRIC: Metric = SPEED;
    const DEFAULTS: Defaults = Defaults { rounds: 3, seconds: 20.0, deadline: 120 };
    const TITLE: &'static str = "Key-value store: exchange and training through servers";
    const LEGEND: &'static [&'static str] = &[
        "×: median of the ratios within a round; above 1, this row is faster.",
        "GB/s: the bytes of all parameters, once, divided by the time of one round (push and pull of \
         all of them) on the slower worker. MB: payload of one worker in a round.",
        "sgd: servers update by SGD with momentum. Other servers assign what they receive.",
        "all-reduce: the same bytes in buckets of 25 MiB over 2 ranks, backend local. memory: 2 \
         processes change as many bytes in place and share nothing.",
        "A transfer takes a tenth of the seconds of a sample.",
        "images/s: of both workers together. accuracy: of the servers' parameters on the test images \
         after the seconds, without the time of this test.",
        "staleness: updates between a pull and the push that it led to. lead: rounds by which one \
         worker was ahead of the other.",
    ];

    fn check(&self) -> Result<()> {
        ensure!((1.0..=100.0).contains(&self.slow), "--slow is a number from 1 to 100");
        ensure!(self.bound > 0, "--bound starts at 1");
        ensure!(self.lr > 0.0 && self.lr.is_finite(), "--lr is a number above 0");
        Ok(())
    }

    fn plan(&self, setup: &mut Setup) -> Result<Vec<Block>> {
        let block = |part| match part {
            Transfer => transfer(setup),
            Straggler => self.straggler(setup),
        };
        Ok(once(&self.parts).into_iter().map(block).collect())
    }

    fn derive(&self, rows: &mut [Row]) {
        compare(rows, "times_all_reduce", SPEED, |_, other| other.contender == ALL_REDUCE);
        compare(rows, "share_of_memory_speed", SPEED, |_, other| other.contender == MEMORY);
        compare(rows, "times_dist_sync", SPEED, |_, other| other.contender == "dist_sync");
    }

    fn tables(&self, rows: &[Row]) -> Vec<Vec<Column>> {
        let processes = |row: &Row| Some(row.number("ranks").to_string());
        let mut columns = vec![
            Column::name(16, |row| row.contender.clone()),
            Column::new("processes", 9, processes),
        ];
        if rows.first().is_some_and(is_transfer) {
            columns.extend([
                Column::spread("GB/s [min-max]", SPEED.figure, 1.0, 2),
                Column::figure("round ms", "round_seconds", 1e3, 1),
                Column::ratio("× all-reduce", "times_all_reduce"),
                Column::percent("of memory", "share_of_memory_speed"),
                Column::figure("MB sent", "bytes_sent_per_round", 1e-6, 1),
                Column::figure("MB received", "bytes_received_per_round", 1e-6, 1),
            ]);
        } else {
            columns.extend([
                Column::new("worker 1", 10, |row| Some(pace(row))),
                Column::spread("images/s [min-max]", SPEED.figure, 1.0, 0),
                Column::ratio("× dist_sync", "times_dist_sync"),
                Column::figure("steps 0", "steps_of_worker_0", 1.0, 0),
                Column::figure("steps 1", "steps_of_worker_1", 1.0, 0),
                Column::figure("staleness", "mean_staleness", 1.0, 2),
                Column::figure("greatest", "max_staleness", 1.0, 0),
                Column::figure("lead", "max_lead", 1.0, 0),
                Column::figure("accuracy %", "accuracy", 1e2, 2),
            ]);
        }
        vec![columns]
    }

    fn notes(&self, report: &BenchReport) -> Vec<String> {
        let name = report.rows.iter().find_map(|row| row.fact("dataset"));
        name.map(|name| format!("The images are {name}.")).into_iter().collect()
    }

    fn bands(&self, report: &BenchReport) -> Vec<Band> {
        let grouped = Grouped {
            settings: ["part", "", "slow"],
            figure: SPEED.figure,
            ratio: ("times_dist_sync", ""),
            beside: None,
            title: &|setting, row| match (setting, is_transfer(row)) {
                ("part", true) => "Push and pull of ResNet-18's parameters, 2 workers".to_owned(),
                ("part", false) => "Training of the MNIST CNN, 2 workers".to_owned(),
                ("slow", true) => "each worker as fast as it can".to_owned(),
                ("slow", false) => format!("worker 1: {}", pace(row)),
                (_, true) => "GB/s".to_owned(),
                (_, false) => "images per second of both workers".to_owned(),
            },
            name: &|name| (name.to_owned(), look(name)),
        };
        grouped.bands(&report.rows)
    }
}

impl KvStore {
    /// Training with a slower worker, and without one.
    fn straggler(&self, setup: &Setup) -> Block {
        let player = Player::new(&setup.programs.player).args(["straggler"]).threads(1);
        let player = player.option("--lr", self.lr);
        let (store, all_reduce) = with_and_without_servers(player, 1);
        let mut block = Block::new("MNIST CNN, batch 64 per worker, a fixed time");
        block.players = vec![store, all_reduce];
        let bounded = format!("dist_async-s{}", self.bound);
        let contenders = [
            ("dist_sync", "dist_sync", None),
            (&bounded, "dist_async", Some(self.bound)),
            ("dist_async", "dist_async", None),
            (ALL_REDUCE, "all_reduce", None),
        ];
        for slow in once(&[self.slow, 1.0]) {
            let trial = |(name, exchange, bound): (&str, &str, Option<u64>)| {
                let servers = usize::from(exchange != "all_reduce");
                let mut point = place(Straggler, servers);
                point.insert("slow".into(), json!(slow));
                let mut request = values([("exchange", exchange)]);
                request.insert("slow".into(), json!(slow));
                request.extend(bound.map(|bound| ("bound".to_owned(), json!(bound))));
                Trial::new(name, &point, 1 - servers, request)
            };
            block.legs.push(contenders.map(trial).into());
        }
        block
    }
}

/// The exchange of all parameters without training.
fn transfer(setup: &Setup) -> Block {
    let player = Player::new(&setup.programs.player).args(["transfer"]).threads(1);
    let (store, all_reduce) = with_and_without_servers(player, 2);
    let mut block = Block::new("ResNet-18, 1000 classes: push and pull of every parameter");
    block.players = vec![store, all_reduce];
    let seconds = TRANSFER_SHARE * setup.schedule.seconds;
    let trial = |(name, exchange, optimizer, compression): (&str, &str, bool, Option<&str>)| {
        let servers = if [ALL_REDUCE, MEMORY].contains(&name) { 0 } else { 2 };
        let mut request = values([("exchange", json!(exchange)), ("seconds", json!(seconds))]);
        request.extend(optimizer.then(|| ("optimizer".to_owned(), json!(true))));
        request.extend(compression.map(|code| ("compression".to_owned(), json!(code))));
        Trial::new(name, &place(Transfer, servers), usize::from(servers == 0), request)
    };
    block.legs = vec![TRANSFERS.map(trial).into()];
    block
}

/// The same player with so many servers, and without any.
fn with_and_without_servers(player: Player, servers: usize) -> (Player, Player) {
    let all_reduce = player.clone().ranks(WORKERS, "local");
    (player.ranks(WORKERS + servers, "local").servers(servers), all_reduce)
}

fn place(part: KvStorePart, servers: usize) -> Values {
    let mut place = values([("part", part)]);
    place.extend(values([("ranks", WORKERS + servers), ("servers", servers)]));
    place
}

fn is_transfer(row: &Row) -> bool {
    row.text("part") == "transfer"
}

/// The speed of the second worker.
fn pace(row: &Row) -> String {
    let slow = row.point.get("slow").and_then(serde_json::Value::as_f64).unwrap_or(1.0);
    if slow == 1.0 { "same speed".to_owned() } else { format!("{slow}× slower") }
}

/// The place of a contender's colour: one for each kind of store.
fn look(contender: &str) -> usize {
    match contender {
        ALL_REDUCE => 5,
        MEMORY => 7,
        name if name.starts_with("dist_sync") => 0,
        name if name.starts_with("dist_async-s") && !name.ends_with("sgd") => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_without_servers_are_known_by_their_names() {
        let names: Vec<&str> = TRANSFERS.iter().map(|(name, ..)| *name).collect();
        assert_eq!(once(&names), names);
        for (name, exchange, ..) in TRANSFERS {
            assert_eq!(exchange.starts_with("dist_"), ![ALL_REDUCE, MEMORY].contains(&name));
        }
    }

    #[test]
    fn the_tables_of_the_parts_differ() {
        let bench = KvStore { parts: vec![Transfer], slow: 3.0, bound: 4, lr: 0.02 };
        let columns = |part| bench.tables(&[Row::new(place(part, 1), "dist_sync")])[0].len();
        assert_eq!((columns(Transfer), columns(Straggler)), (8, 11));
        let mut row = Row::new(place(Straggler, 1), "dist_sync");
        assert_eq!(pace(&row), "same speed");
        row.point.insert("slow".into(), json!(2.5));
        assert_eq!((pace(&row).as_str(), row.number("ranks")), ("2.5× slower", 3));
    }
}
