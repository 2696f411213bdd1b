//! `cargo xtask bench-checkpoint`: the step's time with a checkpoint of the whole training every so many steps.

use anyhow::Result;
use serde::Serialize;

use super::network::Network;
use super::training::{SPEED, Training, columns, label, place, title};
use crate::bench::{
    Band, Bench, BenchReport, Block, Column, Defaults, Grouped, Metric, Row, Setup, compare, once,
};

#[derive(Clone, Debug, Serialize, clap::Args)]
pub(crate) struct Checkpoint {
    /// Network to train
    #[arg(long, default_value = "resnet18")]
    network: Network,
    /// Samples per step
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Steps between two checkpoints; 0 makes none
    #[arg(long, value_delimiter = ',', value_name = "N,N..", default_value = "0,20")]
    every: Vec<usize>,
}

impl Bench for Checkpoint {
    const NAME: &'static str = "bench-checkpoint";
    const FILE: &'static str = "checkpoint";
    const METRIC: Metric = SPEED;
    const DEFAULTS: Defaults = Defaults { rounds: 7, seconds: 6.0, deadline: 300 };
    const TITLE: &'static str = "Training with checkpoints, by AdamW (higher is better)";
    const LEGEND: &'static [&'static str] = &["×: median of the ratios within a round."];

    fn plan(&self, setup: &mut Setup) -> Result<Vec<Block>> {
        let training =
            Training { network: self.network.about(), batch_size: self.batch_size, threads: 1 };
        let mut block = Block::new(training.network.label);
        for every in once(&self.every) {
            let player = training.rust(&setup.programs.player, "ours");
            let player = player.option("--checkpoint-every", every).args(["--adamw"]);
            block.add("ours", &place(training.network, [("checkpoint_every", every)]), player);
        }
        Ok(vec![block])
    }

    fn derive(&self, rows: &mut [Row]) {
        compare(rows, "ratio_to_none", SPEED, |_, other| {
            other.contender == "ours" && other.number("checkpoint_every") == 0
        });
    }

    fn tables(&self, rows: &[Row]) -> Vec<Vec<Column>> {
        let mut columns = columns(Column::name(28, checkpoints), Network::of(&rows[0]));
        columns.push(Column::ratio("× none", "ratio_to_none"));
        vec![columns]
    }

    fn bands(&self, report: &BenchReport) -> Vec<Band> {
        let grouped = Grouped {
            settings: ["network", "", "checkpoint_every"],
            figure: SPEED.figure,
            ratio: ("ratio_to_none", ""),
            beside: None,
            title: &|setting, row| {
                if setting == "checkpoint_every" { checkpoints(row) } else { title(row) }
            },
            name: &label,
        };
        grouped.bands(&report.rows)
    }
}

fn checkpoints(row: &Row) -> String {
    match row.number("checkpoint_every") {
        0 => "no checkpoint".into(),
        every => format!("a checkpoint every {every} steps"),
    }
}
