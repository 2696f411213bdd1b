//! The contenders that train: `bench-player train` and `scripts/bench_step.py`.

use std::path::Path;

use super::network::{About, Network, losses_agree};
use crate::bench::{BenchReport, Column, Metric, Player, Row, Values, compare, once, values};

/// Images or sequences of all ranks.
pub(super) const SPEED: Metric = Metric { figure: "examples_per_second", more_is_better: true };

/// Its ratio is the share of another contender's memory.
pub(super) const MEMORY: Metric = Metric { figure: "peak_rss_mb", more_is_better: true };

/// Processes of ours that share nothing: what as many ranks or threads can reach here.
pub(super) const STRANGERS: &str = "strangers";

/// Large matrix products with the arithmetic of the network's step.
pub(super) const PRODUCTS: &str = "products";

/// The longest step of candle, in seconds, with which `bench-step` measures it without being asked.
pub(super) const MOST_SECONDS: f64 = 15.0;

/// The contenders that train: their name, their name in a picture, and the place of their colour.
const LABELS: [(&str, &str, usize); 15] = [
    ("ours", "Candelabrum", 0),
    ("ours-alone", "Candelabrum", 0),
    ("ours-local", "Candelabrum", 0),
    ("ours-mpi", "Candelabrum, MPI", 4),
    ("candle", "candle", 1),
    ("pytorch", "PyTorch", 2),
    ("pytorch-channels-last", "PyTorch, channels last", 3),
    ("pytorch-compile", "PyTorch, compiled", 4),
    ("ddp", "PyTorch DDP", 2),
    ("ddp-bucket-view", "PyTorch DDP, bucket views", 2),
    ("ddp-channels-last", "PyTorch DDP, channels last", 3),
    ("ddp-channels-last-bucket-view", "PyTorch DDP, channels last, bucket views", 3),
    (STRANGERS, "processes that share nothing", 7),
    ("one-thread", "Candelabrum, one thread", 0),
    (PRODUCTS, "large matrix products", 7),
];

/// The common settings of the contenders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Training {
    pub(super) network: &'static About,
    /// Of each rank.
    pub(super) batch_size: usize,
    /// Of each rank.
    pub(super) threads: usize,
}

impl Training {
    /// A Rust contender, `ours` or `candle`.
    pub(super) fn rust(&self, player: &Path, contender: &str) -> Player {
        self.options(Player::new(player).args(["train"]), contender)
    }

    /// A mode of PyTorch.
    pub(super) fn torch(&self, python: &Path, contender: &str) -> Player {
        self.options(Player::script(python, "bench_step.py"), contender)
    }

    /// Matrix products, whose speed is that of a step of nothing else.
    pub(super) fn products(&self, player: &Path) -> Player {
        self.options(Player::new(player).args(["products"]), "ours").other()
    }

    /// About the seconds of one of candle's steps, if candle has the network.
    pub(super) fn candle_seconds(&self) -> Option<f64> {
        let example = self.network.candle_seconds?;
        Some(example * self.batch_size as f64 / self.threads as f64)
    }

    fn options(&self, player: Player, contender: &str) -> Player {
        player
            .option("--contender", contender)
            .option("--network", self.network.name)
            .option("--batch-size", self.batch_size)
            .option("--threads", self.threads)
            .option("--warm-up", self.network.warm_up_steps)
            .threads(self.threads)
    }

    /// So many processes of one thread each that share nothing while they train.
    pub(super) fn strangers(&self, player: &Path, count: usize) -> Player {
        let alone = Self { threads: 1, ..*self };
        alone.rust(player, "ours").args(["--strangers"]).ranks(count, "local").other()
    }
}

/// The place of a training: its network, and other settings.
pub(super) fn place<const N: usize>(network: &About, settings: [(&str, usize); N]) -> Values {
    values([("network", network.name)]).into_iter().chain(values(settings)).collect()
}

/// Compares every row with the strangers at its place.
pub(super) fn compare_with_strangers(rows: &mut [Row]) {
    compare(rows, "ratio_to_strangers", SPEED, |row, other| {
        other.contender == STRANGERS && other.point == row.point
    });
}

/// The first columns of a table: names, the speed, and the time of a step.
pub(super) fn columns(names: Column, network: &About) -> Vec<Column> {
    let speed = format!("{}/s [min-max]", network.unit);
    // Long steps give few images per second.
    let digits = if network.warm_up_steps < 4 { 2 } else { 0 };
    let speed = Column::spread(&speed, SPEED.figure, 1.0, digits);
    vec![names, speed, Column::figure("ms/step", "step_seconds", 1e3, 2)]
}

/// Lines about contenders whose losses differ from those of the first one at their place, which shows
/// that they do not train the same way. `tolerance` is allowed besides that of the network.
pub(super) fn loss_notes(
    report: &BenchReport,
    name: impl Fn(&Row) -> String,
    tolerance: f64,
) -> Vec<String> {
    let trains = |row: &&Row| ![STRANGERS, PRODUCTS].contains(&&*row.contender);
    let differs = |row: &&Row| {
        let mut peers = report.rows.iter().filter(trains).filter(|peer| peer.point == row.point);
        peers.next().is_some_and(|first| !losses_agree(row, first, tolerance))
    };
    // The gradient of its max-pool differs. The other networks have none of candle's.
    let is_known = |row: &&Row| row.contender == "candle" && Network::of(row).name == "cnn";
    let (known, wrong): (Vec<&Row>, Vec<&Row>) =
        report.rows.iter().filter(trains).filter(differs).partition(is_known);
    let names = |rows: Vec<&Row>| {
        let names: Vec<String> = rows.into_iter().map(&name).collect();
        (!names.is_empty()).then(|| once(&names).join("; "))
    };
    let wrong = names(wrong).map(|names| {
        format!("WARNING: the losses differ, these contenders do not train the same way: {names}")
    });
    let known = names(known).map(|names| {
        format!(
            "candle's loss differs: {names}. Its max-pool passes back a quarter of the gradient (1/k² \
             for a k×k pool), so the layers before it learn more slowly."
        )
    });
    wrong.into_iter().chain(known).collect()
}

/// A line about the networks on which candle was not measured, because it takes too long there.
pub(super) fn left_out_note(report: &BenchReport) -> Option<String> {
    let seconds = |row: &Row| {
        let (network, batch_size) = (Network::of(row), row.number("batch_size"));
        Training { network, batch_size, threads: row.number("threads").max(1) }.candle_seconds()
    };
    let has_candle = |point: &Values| {
        report.rows.iter().any(|row| row.contender == "candle" && row.point == *point)
    };
    let left_out = |row: &Row| {
        let seconds = seconds(row).filter(|&seconds| seconds > MOST_SECONDS)?;
        let name = Network::of(row).name;
        (!has_candle(&row.point)).then(|| format!("{name} (about {seconds:.0} s)"))
    };
    let names: Vec<String> = report.rows.iter().filter_map(left_out).collect();
    (!names.is_empty()).then(|| {
        format!(
            "candle is left out where one of its steps takes longer than {MOST_SECONDS} s: {}. \
             `--contenders ours,candle` measures it.",
            once(&names).join(", ")
        )
    })
}

/// A contender's name in a picture, and the place of its colour.
pub(super) fn label(contender: &str) -> (String, usize) {
    let known = LABELS.iter().find(|(name, ..)| *name == contender);
    let &(_, label, colour) = known.unwrap_or(&LABELS[0]);
    (label.to_owned(), colour)
}

/// The title of a row's network.
pub(super) fn title(row: &Row) -> String {
    Network::of(row).label.to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::bench::Host;

    #[test]
    fn a_contender_that_trains_another_way_is_named() {
        let notes = |network, losses: [(&str, f64); 3]| {
            let mut report = BenchReport::new("bench", Host::look(), Values::new());
            let row = |(contender, loss): (&str, f64)| {
                let mut row = Row::new(values([("network", network)]), contender);
                row.facts.insert("warm_up_losses".into(), json!(vec![loss; 14]));
                row
            };
            report.rows = losses.map(row).to_vec();
            loss_notes(&report, |row| row.contender.clone(), 0.0).join("\n")
        };
        let of = |candle, torch| [("ours", 1.0), ("candle", candle), ("pytorch", torch)];
        assert_eq!(notes("mlp", of(1.0, 1.00001)), "");
        assert!(notes("mlp", of(2.0, 1.0)).ends_with("the same way: candle"));
        assert!(notes("cnn", of(2.0, 1.0)).starts_with("candle's loss differs: candle."));
        assert!(notes("cnn", of(1.0, 3.0)).ends_with("the same way: pytorch"));
    }

    #[test]
    fn long_steps_without_candle_are_named() {
        let note = |rows: &[(usize, &str)]| {
            let mut report = BenchReport::new("bench", Host::look(), Values::new());
            let row = |&(batch_size, contender): &(usize, &str)| {
                let place = values([("network", json!("resnet50-224"))]);
                let sizes = values([("batch_size", batch_size), ("threads", 1)]);
                Row::new(place.into_iter().chain(sizes).collect(), contender)
            };
            report.rows = rows.iter().map(row).collect();
            left_out_note(&report)
        };
        assert_eq!(note(&[(8, "ours")]), None);
        assert_eq!(note(&[(32, "ours"), (32, "candle")]), None);
        let named = note(&[(32, "ours"), (32, "pytorch")]).unwrap();
        assert!(named.contains("than 15 s: resnet50-224 (about 35 s)."), "{named}");
    }
}
