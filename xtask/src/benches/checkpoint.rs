//! `cargo xtask bench-checkpoint`: the step's time with a copy of all parameters and their momentum
//! every so many steps, as a checkpoint makes one before another thread writes it.

use anyhow::Result;
use serde::Serialize;

use super::network::Network;
use super::training::{SPEED, Training, columns, label, place, title};
use crate::bench::{
    Band, Bench, Block, Column, Defaults, Grouped, Metric, Report, Row, Setup, compare, once,
};

#[derive(Clone, Debug, Serialize, clap::Args)]
pub(crate) struct Checkpoint {
    /// Network to train
    #[arg(long, default_value = "mlp")]
    network: Network,
    /// Steps between two copies; 0 makes none
    #[arg(long, value_delimiter = ',', value_name = "N,N..", default_value = "0,20,5")]
    every: Vec<usize>,
}

impl Bench for Checkpoint {
    const NAME: &'static str = "bench-checkpoint";
    const FILE: &'static str = "checkpoint";
    const METRIC: Metric = SPEED;
    const DEFAULTS: Defaults = Defaults { rounds: 7, seconds: 1.0, deadline: 120 };
    const TITLE: &'static str = "Training with copies of the whole state (higher is better)";
    const LEGEND: &'static [&'static str] = &["×: median of the ratios within a round."];

    fn plan(&self, setup: &mut Setup) -> Result<Vec<Block>> {
        let training = Training { network: self.network.about(), batch_size: 64, threads: 1 };
        let mut block = Block::new(training.network.label);
        for every in once(&self.every) {
            let player = training.rust(&setup.programs.player, "ours");
            let player = player.option("--copy-every", every);
            block.add("ours", &place(training.network, [("copy_every", every)]), player);
        }
        Ok(vec![block])
    }

    fn derive(&self, rows: &mut [Row]) {
        compare(rows, "ratio_to_no_copy", SPEED, |_, other| {
            other.contender == "ours" && other.number("copy_every") == 0
        });
    }

    fn tables(&self, rows: &[Row]) -> Vec<Vec<Column>> {
        let mut columns = columns(Column::name(24, copies), Network::of(&rows[0]));
        columns.push(Column::ratio("× no copy", "ratio_to_no_copy"));
        vec![columns]
    }

    fn bands(&self, report: &Report) -> Vec<Band> {
        let grouped = Grouped {
            settings: ["network", "", "copy_every"],
            figure: SPEED.figure,
            ratio: ("ratio_to_no_copy", ""),
            beside: None,
            title: &|setting, row| if setting == "copy_every" { copies(row) } else { title(row) },
            name: &label,
        };
        grouped.bands(&report.rows)
    }
}

fn copies(row: &Row) -> String {
    match row.number("copy_every") {
        0 => "no copy".into(),
        every => format!("a copy every {every} steps"),
    }
}
