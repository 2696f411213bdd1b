//! `cargo xtask bench-overlap`: the share of the communication that the backward pass hides.
//!
//! This benchmark makes two hosts on this machine, connected by a wire of a set rate, with one rank
//! each over MPI. In turns the ranks train without overlap, train with overlap, only exchange
//! gradients, and train alone. Overlap can hide the lesser of a step's communication and its backward
//! pass. The hidden share is the saved time of the step divided by that, within a round.
//!
//! It needs root, iproute2 and MPI. At the end it removes the hosts, after an interrupt too.

use std::num::NonZeroUsize;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use super::network::Network;
use super::parts;
use super::training::{place, title};
use crate::bench::{
    Band, Bar, Bench, BenchReport, Block, Chart, Column, Defaults, Hosts, Live, Look, Metric,
    Player, Row, Sample, Setup, Spread, Trial, Values, Wanted, split_commit, values,
};

#[derive(Clone, Debug, Serialize, clap::Args)]
pub(crate) struct Overlap {
    /// Network to train
    #[arg(long, default_value = "resnet18")]
    network: Network,
    /// Images in a rank's batch
    #[arg(long, default_value = "64")]
    batch_size: NonZeroUsize,
    /// Rate of the wire in Mbit/s [default: such that an exchange takes as long as backward]
    #[arg(long, value_name = "MBIT")]
    rate: Option<f64>,
}

/// The ranks' work, with its name in the tables.
const WAYS: [(&str, &str); 4] = [
    ("off", "overlap off"),
    ("on", "overlap on"),
    ("exchange", "an exchange alone"),
    ("alone", "training alone (shares nothing)"),
];

const STEP: Metric = Metric { figure: "step_seconds", more_is_better: false };

impl Bench for Overlap {
    const NAME: &'static str = "bench-overlap";
    const FILE: &'static str = "overlap";
    const METRIC: Metric = STEP;
    const DEFAULTS: Defaults = Defaults { rounds: 7, seconds: 3.0, deadline: 300 };
    const TITLE: &'static str = "Overlap of communication with backward (shorter is better)";
    const LEGEND: &'static [&'static str] =
        &["Both hosts are this machine: compute and the network share its cores."];

    fn check(&self) -> Result<()> {
        let possible = self.rate.is_none_or(|rate| (0.1..1e6).contains(&rate));
        ensure!(possible, "--rate is from 0.1 to 1000000 (Mbit/s)");
        Hosts::check()
    }

    fn wanted(&self) -> Wanted {
        Wanted { mpi: true, python: false }
    }

    fn plan(&self, setup: &mut Setup) -> Result<Vec<Block>> {
        let hosts = Rc::new(Hosts::make(setup.output.folder(), 2)?);
        let about = self.network.about();
        let player = Player::new(&setup.programs.player)
            .args(["overlap", "--network", about.name])
            .option("--batch-size", self.batch_size)
            .ranks(2, "mpi")
            .on(Some(&hosts));
        let rate = match self.rate {
            Some(rate) => rate,
            None => balanced_rate(&player, &hosts, setup).context("the search for the rate")?,
        };
        hosts.set_rate(rate)?;
        let place = place(about, [("batch_size", self.batch_size.get())]);
        let trial = |(way, _): &(&str, &str)| Trial::new(way, &place, 0, values([("way", way)]));
        let block = Block {
            title: format!(
                "{}, batch {} per rank, two hosts, {rate:.0} Mbit/s, milliseconds",
                about.label, self.batch_size
            ),
            legs: vec![WAYS.iter().map(trial).collect()],
            players: vec![player],
        };
        setup.found = values([("wire_megabits_per_second", rate)]);
        Ok(vec![block])
    }

    fn derive(&self, rows: &mut [Row]) {
        let find = |name: &str| rows.iter().position(|row| row.contender == name);
        let (Some(off), Some(on), Some(exchange)) = (find("off"), find("on"), find("exchange"))
        else {
            return;
        };
        let within = |sample: &Sample| {
            let step = |row: usize| rows[row].at(sample.round, STEP.figure);
            let hideable = step(exchange)?.min(*sample.figures.get("backward_seconds")?);
            Some((hideable, (step(off)? - step(on)?) / hideable))
        };
        let (hideable, hidden): (Vec<f64>, Vec<f64>) =
            rows[off].samples.iter().filter_map(within).unzip();
        let row = &mut rows[on];
        for (name, values) in [("hideable_seconds", hideable), ("hidden_share", hidden)] {
            row.ratios.extend(Spread::of(&values).map(|spread| (name.to_owned(), spread)));
        }
    }

    fn tables(&self, _: &[Row]) -> Vec<Vec<Column>> {
        let mut columns = vec![Column::name(32, |row| label(&row.contender))];
        columns.push(Column::spread("step [min-max]", STEP.figure, 1e3, 1));
        columns.extend(parts::columns().into_iter().skip(1));
        columns.push(Column::figure("busy comm.", "communication_seconds", 1e3, 1));
        vec![columns]
    }

    fn notes(&self, report: &BenchReport) -> Vec<String> {
        let on = report.rows.iter().find(|row| row.contender == "on");
        let hidden = on.and_then(|row| {
            let (hideable, share) =
                (row.ratio("hideable_seconds")?, row.ratios.get("hidden_share")?);
            let Spread { median, min, max } = share.map(|share| 100.0 * share);
            Some(format!(
                "Of {:.1} ms that fit behind backward, overlap hides {median:.0}% (from {min:.0}% to \
                 {max:.0}%).",
                1e3 * hideable,
            ))
        });
        hidden.into_iter().collect()
    }

    fn bands(&self, report: &BenchReport) -> Vec<Band> {
        let bar = |row: &Row| {
            let mut bar = parts::bar(row, label(&row.contender));
            if row.contender.starts_with("exchange") {
                let exchange = 1e3 * row.median(STEP.figure).unwrap_or(0.0);
                bar = Bar::plain(bar.name, Look::Bar(5), exchange, bar.figure);
            }
            bar
        };
        let bars = report.rows.iter().map(bar).collect();
        let rate = report.plan.get("wire_megabits_per_second").and_then(Value::as_f64);
        let hosts = format!("two hosts, {:.0} Mbit/s", rate.unwrap_or(0.0));
        let chart = Chart::bars(&hosts, 500, "milliseconds per step", bars);
        let title = format!("{}, batch {} per rank", title(&report.rows[0]), self.batch_size);
        vec![Band { title, key: parts::key(), charts: vec![chart] }]
    }
}

/// The name of a contender in tables, with the commit of its build.
fn label(contender: &str) -> String {
    let (name, commit) = split_commit(contender);
    let known = WAYS.iter().find(|(way, _)| *way == name).map_or(name, |(_, label)| label);
    format!("{known}{commit}")
}

/// The rate at which an exchange takes as long as backward, in Mbit/s.
fn balanced_rate(player: &Player, hosts: &Hosts, setup: &Setup) -> Result<f64> {
    let within = |rate: f64| rate.clamp(0.1, 1e6);
    let mut live = Live::start(player.commands()?, setup.schedule.deadline)?;
    let watch = &setup.watch;
    let ready = live.ready(watch)?;
    let mut ask = |way: &str| -> Result<Values> {
        live.sample(&values([("way", json!(way)), ("seconds", json!(1.0))]), watch)
    };
    let number = |facts: &Values, name: &str| {
        facts.get(name).and_then(Value::as_f64).with_context(|| format!("no {name} was said"))
    };
    let backward = number(&ask("off")?, "backward_seconds")?;
    let first = within(8e-6 * number(&ready, "gradient_bytes")? / backward);
    hosts.set_rate(first)?;
    // An all-reduce may send more bytes than it reduces.
    let exchange = number(&ask("exchange")?, STEP.figure)?;
    live.finish(watch)?;
    Ok(within(first * exchange / backward))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct OverlapCli {
        #[command(flatten)]
        overlap: Overlap,
    }

    #[test]
    fn the_hidden_time_is_measured_by_the_time_that_can_be_hidden() {
        // Backward takes 0.3 and the exchange alone 0.4, so 0.3 can be hidden. The step saves 0.27.
        let row = |way: &str, seconds: [f64; 2]| {
            let mut row = Row::measured(way, 0, STEP.figure, &seconds);
            for sample in &mut row.samples {
                sample.figures.insert("backward_seconds".into(), 0.3);
            }
            row
        };
        let mut rows =
            [row("off", [1.0, 2.0]), row("on", [0.73, 1.73]), row("exchange", [0.4, 0.4])];
        OverlapCli::parse_from(["x"]).overlap.derive(&mut rows);
        let close = |name: &str, value: f64| (rows[1].ratio(name).unwrap() - value).abs() < 1e-9;
        assert!(close("hideable_seconds", 0.3) && close("hidden_share", 0.9), "{rows:?}");
    }
}
