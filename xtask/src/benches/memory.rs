//! `cargo xtask bench-memory`: training steps of a deep GPT, and their memory, with and without blocks that are computed
//! again in the backward pass.

use std::num::NonZeroUsize;

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;

use super::network::{About, Network};
use super::training::{MEMORY, SPEED, Training, columns, loss_notes, place};
use crate::bench::{
    Band, Bench, BenchReport, Block, Column, Defaults, Grouped, Metric, Row, Setup, Wanted,
    compare, counted,
};

#[derive(Clone, Debug, Serialize, clap::Args)]
pub(crate) struct Memory {
    /// Blocks of the GPT, of 384 features each
    #[arg(long, default_value = "24")]
    blocks: NonZeroUsize,
    /// Sequences of 256 tokens in a batch
    #[arg(long, default_value = "16")]
    batch_size: NonZeroUsize,
    /// Compute threads of every contender
    #[arg(long, default_value = "1")]
    threads: NonZeroUsize,
    /// Contenders [default: all]
    #[arg(long, value_delimiter = ',', value_parser = CONTENDERS.map(|contender| contender.name))]
    contenders: Vec<String>,
}

struct Contender {
    name: &'static str,
    label: &'static str,
    /// The place of its colour in the picture.
    colour: usize,
    /// The blocks that are computed again.
    recompute: &'static str,
}

const CONTENDERS: [Contender; 5] = [
    Contender { name: "ours", label: "Candelabrum", colour: 0, recompute: "none" },
    Contender {
        name: "ours-half",
        label: "every second block again",
        colour: 4,
        recompute: "half",
    },
    Contender { name: "ours-all", label: "all blocks again", colour: 1, recompute: "all" },
    Contender { name: "pytorch", label: "PyTorch", colour: 2, recompute: "none" },
    Contender {
        name: "pytorch-all",
        label: "PyTorch, all blocks again",
        colour: 3,
        recompute: "all",
    },
];

/// How far the losses of deep models may differ.
const LOSS_TOLERANCE: f64 = 1e-3;

impl Memory {
    fn is_asked(&self, name: &str) -> bool {
        self.contenders.is_empty() || self.contenders.iter().any(|asked| asked == name)
    }

    fn network() -> Result<&'static About> {
        Ok(Network::from_str("gpt", false).map_err(anyhow::Error::msg)?.about())
    }
}

impl Bench for Memory {
    const NAME: &'static str = "bench-memory";
    const FILE: &'static str = "memory";
    const METRIC: Metric = SPEED;
    const DEFAULTS: Defaults = Defaults { rounds: 3, seconds: 1.0, deadline: 900 };
    const TITLE: &'static str =
        "Steps of a deep GPT (higher is better) and peak memory (lower is better)";
    const LEGEND: &'static [&'static str] = &[
        "half, all: every second block, or all blocks, keep only their input for the backward pass, which computes them \
         again. PyTorch: torch.utils.checkpoint.",
        "× plain: the speed beside the same library without that. × torch: beside PyTorch with the same blocks. Medians \
         of the ratios within a round, and the same of the memory.",
    ];

    fn wanted(&self) -> Wanted {
        Wanted {
            python: self.is_asked("pytorch") || self.is_asked("pytorch-all"),
            ..Wanted::default()
        }
    }

    fn plan(&self, setup: &mut Setup) -> Result<Vec<Block>> {
        let (blocks, batch_size) = (self.blocks.get(), self.batch_size.get());
        let network = Self::network()?;
        let training = Training { network, batch_size, threads: self.threads.get() };
        let place = place(network, [("batch_size", batch_size), ("blocks", blocks)]);
        let threads = counted(self.threads.get(), "thread");
        let mut block = Block::new(format!("GPT, {blocks} blocks, batch {batch_size}, {threads}"));
        for Contender { name, recompute, .. } in CONTENDERS {
            if !self.is_asked(name) {
                continue;
            }
            let player = if name.starts_with("ours") {
                training.rust(&setup.programs.player, "ours").option("--recompute", recompute)
            } else {
                let Some(python) = &setup.programs.python else { continue };
                let player = training.torch(python, "pytorch");
                if recompute == "all" { player.args(["--recompute"]) } else { player }
            };
            let player = player.option("--blocks", blocks);
            block.add(name, &place, player);
        }
        Ok(vec![block])
    }

    fn derive(&self, rows: &mut [Row]) {
        for (metric, [plain, torch]) in [
            (SPEED, ["times_plain", "times_torch"]),
            (MEMORY, ["memory_of_plain", "memory_of_torch"]),
        ] {
            compare(rows, plain, metric, |row, other| {
                let library = row.contender.split('-').next().unwrap_or_default();
                row.contender != other.contender && other.contender == library
            });
            compare(rows, torch, metric, |row, other| {
                row.contender.starts_with("ours")
                    && other.contender == row.contender.replacen("ours", "pytorch", 1)
            });
        }
    }

    fn tables(&self, _: &[Row]) -> Vec<Vec<Column>> {
        let Ok(network) = Self::network() else { return Vec::new() };
        let mut table = columns(Column::name(14, |row| row.contender.clone()), network);
        table.extend([
            Column::ratio("× plain", "times_plain"),
            Column::ratio("× torch", "times_torch"),
            Column::peak_memory(),
            Column::percent("of plain", "memory_of_plain"),
            Column::percent("of torch", "memory_of_torch"),
        ]);
        vec![table]
    }

    fn notes(&self, report: &BenchReport) -> Vec<String> {
        loss_notes(report, |row| row.contender.clone(), LOSS_TOLERANCE)
    }

    fn bands(&self, report: &BenchReport) -> Vec<Band> {
        let grouped = Grouped {
            settings: ["network", "blocks", "batch_size"],
            figure: SPEED.figure,
            ratio: ("times_torch", " PyTorch"),
            beside: Some(("peak_rss_mb", "peak memory, MB")),
            title: &|setting, row| match setting {
                "network" => format!("GPT, {}", counted(self.threads.get(), "thread")),
                "blocks" => format!("{} blocks: sequences per second", row.number("blocks")),
                _ => format!("batch {}", row.number("batch_size")),
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
