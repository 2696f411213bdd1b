//! `cargo xtask bench-ddp`: several workers against one, and against PyTorch's DDP over Gloo.
//!
//! It is bench-step with ranks: all contenders have the same weights, and every worker has its own
//! batches and one compute thread.

use std::num::NonZeroUsize;

use anyhow::{Result, ensure};
use serde::Serialize;

use super::network::Network;
use super::training::{
    SPEED, STRANGERS, Training, columns, compare_with_strangers, label, loss_notes, place, title,
};
use crate::bench::{
    Band, Bench, BenchReport, Block, Column, Defaults, Grouped, Metric, Row, Setup, Wanted,
    compare, counted,
};

#[derive(Clone, Debug, Serialize, clap::Args)]
pub(crate) struct Ddp {
    /// Workers of contenders that have several
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Network to train
    #[arg(long, default_value = "cnn")]
    network: Network,
    /// Images or sequences in a worker's batch
    #[arg(long, default_value = "64")]
    batch_size: NonZeroUsize,
}

/// The contender with one worker to which this one is compared.
fn alone(contender: &str) -> &'static str {
    match (
        contender.contains("pytorch") || contender.contains("ddp"),
        contender.contains("channels-last"),
    ) {
        (false, _) => "ours-alone",
        (true, false) => "pytorch",
        (true, true) => "pytorch-channels-last",
    }
}

impl Bench for Ddp {
    const NAME: &'static str = "bench-ddp";
    const FILE: &'static str = "ddp";
    const METRIC: Metric = SPEED;
    const DEFAULTS: Defaults = Defaults { rounds: 7, seconds: 1.0, deadline: 300 };
    const TITLE: &'static str = "Data-parallel training (higher is better)";
    const LEGEND: &'static [&'static str] = &[
        "×: median of the ratios within a round; alone, and in the picture: to one worker of the library.",
        "strangers: as many workers that share nothing.",
    ];

    fn check(&self) -> Result<()> {
        // A rank uses eight of the hundred streams of random numbers for batches.
        ensure!((2..=12).contains(&self.workers), "--workers is from 2 to 12");
        Ok(())
    }

    fn wanted(&self) -> Wanted {
        Wanted { mpi: true, python: true }
    }

    fn plan(&self, setup: &mut Setup) -> Result<Vec<Block>> {
        let (workers, programs) = (self.workers, &setup.programs);
        let (network, batch_size) = (self.network.about(), self.batch_size.get());
        let training = Training { network, batch_size, threads: 1 };
        let [single, several] = [1, workers]
            .map(|count| place(network, [("batch_size", batch_size), ("workers", count)]));
        let mut block = Block::new(format!("{}, batch {batch_size} per worker", network.label));
        let ours = training.rust(&programs.player, "ours");
        block.add("ours-alone", &single, ours.clone());
        block.add("ours-local", &several, ours.clone().ranks(workers, "local"));
        if programs.has_mpi {
            block.add("ours-mpi", &several, ours.ranks(workers, "mpi"));
        }
        block.add(STRANGERS, &several, training.strangers(&programs.player, workers));
        let layouts = [("pytorch", ""), ("pytorch-channels-last", "-channels-last")];
        for (mode, layout) in &layouts[..if network.has_convolutions { 2 } else { 1 }] {
            let Some(python) = &programs.python else { break };
            let torch = training.torch(python, mode);
            block.add(mode, &single, torch.clone());
            for (buckets, view) in [("default", ""), ("bucket-view", "-bucket-view")] {
                let player = torch.clone().option("--ddp", buckets).ranks(workers, "gloo");
                block.add(&format!("ddp{layout}{view}"), &several, player);
            }
        }
        Ok(vec![block])
    }

    fn derive(&self, rows: &mut [Row]) {
        compare(rows, "times_one_worker", SPEED, |row, other| {
            other.contender == alone(&row.contender)
        });
        compare(rows, "times_best_ddp", SPEED, |_, other| other.contender.starts_with("ddp"));
        compare_with_strangers(rows);
    }

    fn tables(&self, _: &[Row]) -> Vec<Vec<Column>> {
        let names = Column::name(32, |row| row.contender.clone());
        let mut columns = columns(names, self.network.about());
        let workers = |row: &Row| Some(row.number("workers").to_string());
        columns.insert(1, Column::new("workers", 7, workers));
        columns.extend([
            Column::ratio("× alone", "times_one_worker"),
            Column::ratio("× best DDP", "times_best_ddp"),
            Column::percent("of strangers", "ratio_to_strangers"),
            Column::peak_memory(),
        ]);
        vec![columns]
    }

    fn notes(&self, report: &BenchReport) -> Vec<String> {
        let ours = report.rows.iter().find(|row| row.contender == "ours-local");
        let best = ours.and_then(|row| row.ratio("times_best_ddp"));
        let best = best.map(|times| format!("Candelabrum to the best DDP: {times:.2}×."));
        let losses = loss_notes(report, |row| row.contender.clone(), 0.0);
        best.into_iter().chain(losses).collect()
    }

    fn bands(&self, report: &BenchReport) -> Vec<Band> {
        let grouped = Grouped {
            settings: ["network", "", "workers"],
            figure: SPEED.figure,
            ratio: ("times_one_worker", ""),
            beside: None,
            title: &|setting, row| match setting {
                "network" => format!("{}, batch {} per worker", title(row), self.batch_size),
                "workers" => counted(row.number("workers"), "worker"),
                _ => format!("{} per second of all workers", Network::of(row).unit),
            },
            name: &label,
        };
        grouped.bands(&report.rows)
    }
}
