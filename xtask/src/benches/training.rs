//! The contenders that train: `bench-player train` and `scripts/bench_step.py`.

use std::path::Path;

use serde_json::json;

use super::network::{About, Network, losses_agree};
use crate::bench::launch::{Call, Launch};
use crate::bench::plan::Player;
use crate::bench::report::Report;
use crate::bench::sample::{Metric, Point, Row, compare, point};
use crate::bench::table::Column;
use crate::checkout::repo_root;

/// Images or sequences of all ranks.
pub(super) const SPEED: Metric = Metric { figure: "examples_per_second", more_is_better: true };

/// Processes of ours that share nothing: what as many ranks or threads can reach here.
pub(super) const STRANGERS: &str = "strangers";

/// The common settings of the contenders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Training {
    pub(super) network: About,
    /// Of each rank.
    pub(super) batch_size: usize,
    /// Of each rank.
    pub(super) threads: usize,
}

impl Training {
    /// A Rust contender, `ours` or `candle`.
    pub(super) fn rust(&self, player: &Path, contender: &str) -> Call {
        self.options(Call::new(player).args(["train"]), contender)
    }

    /// A mode of PyTorch.
    pub(super) fn torch(&self, python: &Path, contender: &str) -> Call {
        let script = repo_root().join("scripts/bench_step.py");
        self.options(Call::new(python).args([script.display()]), contender)
    }

    fn options(&self, call: Call, contender: &str) -> Call {
        call.option("--contender", contender)
            .option("--network", self.network.name)
            .option("--batch-size", self.batch_size)
            .option("--threads", self.threads)
            .option("--warm-up", self.network.warm_up_steps)
            .threads(self.threads)
    }

    /// So many processes of one thread each that share nothing while they train.
    pub(super) fn strangers(&self, player: &Path, count: usize) -> Player {
        let alone = Self { threads: 1, ..*self };
        other(ranks(count, "local", alone.rust(player, "ours").args(["--strangers"])))
    }
}

/// So many ranks of ours, which must find each other over this backend.
pub(super) fn ranks(count: usize, backend: &str, call: Call) -> Player {
    let launch = match (count, backend) {
        (1, _) => Launch::One,
        (_, "mpi") => Launch::Mpi(count),
        _ => Launch::Ranks(count),
    };
    let mut expects = point([("ranks", json!(count))]);
    expects.extend((count > 1).then(|| ("backend".to_owned(), json!(backend))));
    Player { launch, call, is_ours: true, expects }
}

/// One process of ours.
pub(super) fn one(call: Call) -> Player {
    ranks(1, "single", call)
}

/// The same player, which no other commit's build is compared with.
pub(super) fn other(player: Player) -> Player {
    Player { is_ours: false, ..player }
}

/// The place of a training: its network, and other settings.
pub(super) fn place<const N: usize>(network: About, settings: [(&str, usize); N]) -> Point {
    let settings = settings.map(|(name, value)| (name, json!(value)));
    point([("network", json!(network.name))]).into_iter().chain(point(settings)).collect()
}

/// Compares every row with the strangers at its place.
pub(super) fn compare_with_strangers(rows: &mut [Row]) {
    compare(rows, "ratio_to_strangers", SPEED, |row, rows| {
        rows.iter().position(|other| other.contender == STRANGERS && other.point == row.point)
    });
}

/// The speed and the time of a step.
pub(super) fn speed(network: About) -> [Column; 2] {
    [
        Column::spread(&format!("{}/s [min-max]", network.unit), SPEED.figure, 1.0, 0),
        Column::figure("ms/step", "step_seconds", 1e3, 2),
    ]
}

/// Lines about contenders whose losses show that they do not train the same way.
pub(super) fn loss_notes(report: &Report, name: impl Fn(&Row) -> String) -> Vec<String> {
    let (mut wrong, mut candles) = (Vec::new(), Vec::new());
    for row in report.rows.iter().filter(|row| row.contender != STRANGERS) {
        let peers = report.rows.iter().filter(|other| other.point == row.point);
        let mut peers = peers.filter(|other| other.contender != STRANGERS);
        if peers.all(|peer| peer.contender == "candle" || losses_agree(row, peer)) {
            continue;
        }
        if row.contender == "candle" { candles.push(name(row)) } else { wrong.push(name(row)) }
    }
    wrong.dedup();
    let mut notes = Vec::new();
    if !wrong.is_empty() {
        let wrong = wrong.join("; ");
        notes.push(format!(
            "WARNING: the losses differ, these contenders do not train the same way: {wrong}"
        ));
    }
    if !candles.is_empty() {
        notes.push(format!(
            "candle's loss differs: {}. Its max-pool passes back a quarter of the gradient (1/k² for a \
             k×k pool), so the layers before it learn more slowly.",
            candles.join("; ")
        ));
    }
    notes
}

/// The title of a row's network.
pub(super) fn title(row: &Row) -> String {
    Network::of(row).label.to_owned()
}
