//! `cargo xtask bench-shard`: ranks that share the state of the optimizer and the gradients, beside ranks that have all,
//! and beside PyTorch.

use std::num::NonZeroUsize;

use anyhow::{Result, ensure};
use serde::Serialize;

use super::network::Network;
use super::training::{MEMORY, SPEED, Training, columns, loss_notes, place, title};
use crate::bench::{
    Band, Bench, BenchReport, Block, Column, Defaults, Grouped, Metric, Row, Setup, Wanted,
    compare, counted,
};

#[derive(Clone, Debug, Serialize, clap::Args)]
pub(crate) struct Shard {
    /// Ranks of every contender, with one compute thread each
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Network to train, with AdamW
    #[arg(long, default_value = "gpt")]
    network: Network,
    /// Images or sequences in a rank's batch
    #[arg(long, default_value = "8")]
    batch_size: NonZeroUsize,
    /// Blocks of the network `gpt`
    #[arg(long, default_value = "6")]
    blocks: NonZeroUsize,
}

struct Contender {
    name: &'static str,
    label: &'static str,
    /// The place of its colour in the picture.
    colour: usize,
    /// What ranks keep only their share of.
    shard: &'static str,
    /// The blocks that are computed again.
    recompute: &'static str,
}

const fn contender(
    name: &'static str,
    label: &'static str,
    colour: usize,
    shard: &'static str,
    recompute: &'static str,
) -> Contender {
    Contender { name, label, colour, shard, recompute }
}

const CONTENDERS: [Contender; 7] = [
    contender("ours", "Candelabrum", 0, "nothing", "none"),
    contender("ours-optimizer", "shared state", 1, "optimizer", "none"),
    contender("ours-gradients", "shared state and gradients", 4, "gradients", "none"),
    contender("ours-recomputed", "all blocks again", 5, "nothing", "all"),
    contender("ours-parameters", "all shared, all blocks again", 6, "parameters", "all"),
    contender("ddp", "PyTorch DDP", 2, "nothing", "none"),
    contender("ddp-optimizer", "PyTorch ZeroRedundancyOptimizer", 3, "optimizer", "none"),
];

impl Bench for Shard {
    const NAME: &'static str = "bench-shard";
    const FILE: &'static str = "shard";
    const METRIC: Metric = SPEED;
    const DEFAULTS: Defaults = Defaults { rounds: 7, seconds: 1.0, deadline: 300 };
    const TITLE: &'static str =
        "Ranks that share state (speed: higher is better; memory: lower is better)";
    const LEGEND: &'static [&'static str] = &[
        "optimizer: each rank keeps its share of the optimizer's state. gradients: also of the gradients. PyTorch: ZeroRedundancyOptimizer under DDP over Gloo.",
        "× plain: the speed beside the same library without shares. Medians of the ratios within a round, and the same of the memory of a rank.",
    ];

    fn check(&self) -> Result<()> {
        ensure!((2..=12).contains(&self.workers), "--workers is from 2 to 12");
        Ok(())
    }

    fn wanted(&self) -> Wanted {
        Wanted { python: true, ..Wanted::default() }
    }

    fn plan(&self, setup: &mut Setup) -> Result<Vec<Block>> {
        let (workers, programs) = (self.workers, &setup.programs);
        let (network, batch_size) = (self.network.about(), self.batch_size.get());
        let training = Training { network, batch_size, threads: 1 };
        let place = place(network, [("batch_size", batch_size), ("workers", workers)]);
        let mut block = Block::new(format!("{}, batch {batch_size} per rank", network.label));
        for Contender { name, shard, recompute, .. } in CONTENDERS {
            // Shared parameters are those of blocks.
            if recompute == "all" && network.name != "gpt" {
                continue;
            }
            let player = if name.starts_with("ours") {
                let player = training.rust(&programs.player, "ours");
                let player = player.option("--shard", shard).option("--recompute", recompute);
                player.ranks(workers, "local")
            } else {
                let Some(python) = &programs.python else { continue };
                let player = training.torch(python, "pytorch").option("--ddp", "bucket-view");
                let player = if shard == "optimizer" { player.args(["--zero"]) } else { player };
                player.ranks(workers, "gloo")
            };
            let player = player.args(["--adamw"]).option("--blocks", self.blocks);
            block.add(name, &place, player);
        }
        Ok(vec![block])
    }

    fn derive(&self, rows: &mut [Row]) {
        for (metric, name) in [(SPEED, "times_plain"), (MEMORY, "memory_of_plain")] {
            compare(rows, name, metric, |row, other| {
                let library = row.contender.split('-').next().unwrap_or_default();
                row.contender != other.contender && other.contender == library
            });
        }
    }

    fn tables(&self, _: &[Row]) -> Vec<Vec<Column>> {
        let names = Column::name(16, |row| row.contender.clone());
        let mut table = columns(names, self.network.about());
        table.extend([
            Column::ratio("× plain", "times_plain"),
            Column::peak_memory(),
            Column::percent("of plain", "memory_of_plain"),
        ]);
        vec![table]
    }

    fn notes(&self, report: &BenchReport) -> Vec<String> {
        loss_notes(report, |row| row.contender.clone(), 1e-3)
    }

    fn bands(&self, report: &BenchReport) -> Vec<Band> {
        let grouped = Grouped {
            settings: ["network", "", "workers"],
            figure: SPEED.figure,
            ratio: ("times_plain", " plain"),
            beside: Some(("peak_rss_mb", "peak memory, MB")),
            title: &|setting, row| match setting {
                "network" => format!("{}, batch {} per rank", title(row), self.batch_size),
                "workers" => counted(row.number("workers"), "rank"),
                _ => format!("{} per second of all ranks", Network::of(row).unit),
            },
            name: &|contender| {
                let known = CONTENDERS.iter().find(|known| known.name == contender);
                known.map_or((contender.to_owned(), 0), |known| {
                    (known.label.to_owned(), known.colour)
                })
            },
        };
        grouped.bands(&report.rows)
    }
}
