//! `cargo xtask zoo`: every network in training, beside PyTorch from the same weights on the same batches.
//!
//! The networks of texts, of digits and of small images train on data of their own: `bench-player problem` writes the
//! batches to a file, which all contenders read. Large images are drawn patterns. With `--speed` the steps of all
//! networks are measured as `bench-step` measures them.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::json;

use super::network::{Network, Zoo as OfNetwork};
use super::step::Step;
use super::training::{SPEED, Training, label, loss_notes, place, title};
use crate::bench::{
    Band, Bench, BenchReport, Block, Chart, Cli, Column, Defaults, Line, Look, Metric, Player, Row,
    Setup, Spread, Wanted, compare, from_zero, once, values,
};
use crate::shell::run as run_command;

#[derive(Clone, Debug, Serialize, clap::Args)]
pub(crate) struct Zoo {
    /// Networks to train [default: all]
    #[arg(long, value_delimiter = ',')]
    network: Vec<Network>,
    /// The folder of folders of data: mnist, cifar-10-batches-bin, rt-polarity. Without them images are synthetic, and
    /// tokens are drawn
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Steps between two evaluations [default: by network, 1 to 80]
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    /// The seed of the order of the data, and of the choice of texts for the evaluation
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Instead: measure the steps of all networks on one thread, as bench-step does
    #[arg(long, conflicts_with_all = ["data", "steps", "seed"])]
    speed: bool,
}

pub(crate) fn run(cli: &Cli<Zoo>) -> Result<()> {
    let Cli { bench, common } = cli;
    if bench.speed {
        let bench = Step::of_one_thread(bench.networks());
        return crate::bench::run::run(&Cli { bench, common: common.clone() });
    }
    crate::bench::run::run(cli)
}

impl Zoo {
    fn networks(&self) -> Vec<Network> {
        match &self.network[..] {
            [] => Network::value_variants().to_vec(),
            asked => once(asked),
        }
    }

    /// The folder of the network's data, if it is there.
    fn folder(&self, zoo: OfNetwork) -> Option<PathBuf> {
        let folder = self.data.as_ref()?.join(zoo.data?);
        folder.is_dir().then_some(folder)
    }

    /// Writes the batches of a network, and returns their file. None where they are drawn.
    fn problem(
        &self,
        training: &Training,
        rounds: usize,
        setup: &Setup,
    ) -> Result<Option<PathBuf>> {
        let network = training.network;
        let folder = self.folder(network.zoo);
        let has_synthetic = network.zoo.data.is_some() && network.unit == "images";
        if folder.is_none() && !has_synthetic {
            return Ok(None);
        }
        let file = setup.output.folder().join(format!("{}.safetensors", network.name));
        let steps = network.warm_up_steps + rounds * self.steps(network.zoo);
        let mut player = Player::new(&setup.programs.player)
            .args(["problem"])
            .option("--network", network.name)
            .option("--batch-size", training.batch_size)
            .option("--steps", steps)
            .option("--seed", self.seed)
            .args(["--out", &file.display().to_string()]);
        if let Some(folder) = folder {
            player = player.args(["--data-dir", &folder.display().to_string()]);
        }
        for mut command in player.commands()? {
            run_command(&mut command)?;
        }
        Ok(Some(file))
    }

    fn steps(&self, zoo: OfNetwork) -> usize {
        self.steps.unwrap_or(zoo.steps)
    }
}

impl Bench for Zoo {
    const NAME: &'static str = "zoo";
    const FILE: &'static str = "zoo";
    const METRIC: Metric = SPEED;
    const DEFAULTS: Defaults = Defaults { rounds: 10, seconds: 1.0, deadline: 600 };
    const TITLE: &'static str = "Networks in training, on one thread";
    const LEGEND: &'static [&'static str] = &[
        "Both contenders have the same weights at the beginning, and the same batches.",
        "first loss: of the first step. loss: of the last step. test: of examples that are not trained on, at the end; \
         best: the best evaluation.",
        "×: PyTorch's time of a step divided by ours, median of the rounds. Memory: the most that the process held.",
    ];

    fn check(&self) -> Result<()> {
        ensure!(self.steps != Some(0), "--steps starts at 1");
        if let Some(folder) = &self.data {
            ensure!(folder.is_dir(), "--data: there is no folder {}", folder.display());
        }
        Ok(())
    }

    fn wanted(&self) -> Wanted {
        Wanted { python: true, ..Wanted::default() }
    }

    fn plan(&self, setup: &mut Setup) -> Result<Vec<Block>> {
        let block = |network: Network| -> Result<Block> {
            let network = network.about();
            let OfNetwork { batch_size, adamw, lr, .. } = network.zoo;
            let training = Training { network, batch_size, threads: 1 };
            let problem = self.problem(&training, setup.schedule.rounds, setup)?;
            let data = match (&problem, self.folder(network.zoo)) {
                (Some(_), Some(_)) => network.zoo.data.unwrap_or_default(),
                (Some(_), None) => "synthetic images",
                (None, _) => "drawn patterns",
            };
            let steps = self.steps(network.zoo);
            let mut point = place(network, [("batch_size", batch_size), ("steps", steps)]);
            point.extend(values([
                ("data", json!(data)),
                ("adamw", json!(adamw)),
                ("lr", json!(lr)),
            ]));
            let mut block = Block::new(format!("{}, {data}, batch {batch_size}", network.name));
            let settled = |player: Player| settled(player, network.zoo, problem.as_deref());
            let ours = settled(training.rust(&setup.programs.player, "ours"));
            block.add("ours", &point, ours);
            if let Some(python) = &setup.programs.python {
                block.add("pytorch", &point, settled(training.torch(python, "pytorch")));
            }
            for trial in block.legs.iter_mut().flatten() {
                trial.request = values([("steps", json!(steps)), ("evaluate", json!(true))]);
            }
            Ok(block)
        };
        self.networks().into_iter().map(block).collect()
    }

    fn derive(&self, rows: &mut [Row]) {
        compare(rows, "ratio_to_pytorch", SPEED, |_, other| other.contender == "pytorch");
    }

    fn tables(&self, rows: &[Row]) -> Vec<Vec<Column>> {
        let mut columns = vec![
            Column::name(12, |row| row.contender.clone()),
            Column::new("first loss", 10, |row| {
                Some(format!("{:.4}", row.facts.get("warm_up_losses")?.get(0)?.as_f64()?))
            }),
            Column::new("loss", 8, |row| Some(format!("{:.4}", last(row, "loss")?))),
            Column::new("test loss", 9, |row| Some(format!("{:.4}", last(row, "test_loss")?))),
            Column::new("accuracy", 8, |row| Some(format!("{:.4}", last(row, "test_accuracy")?))),
            Column::new("best", 8, |row| {
                Some(format!("{:.4}", row.figures.get("test_accuracy")?.max))
            }),
            Column::figure("ms/step", "step_seconds", 1e3, 2),
            Column::ratio("× PyTorch", "ratio_to_pytorch"),
            Column::peak_memory(),
        ];
        if rows.iter().any(|row| row.text("network") == "char-rnn") {
            columns.push(Column::new("bits per character", 8, |row| {
                Some(format!("{:.4}", last(row, "test_loss")? / std::f64::consts::LN_2))
            }));
        }
        vec![columns]
    }

    fn notes(&self, report: &BenchReport) -> Vec<String> {
        loss_notes(report, |row| row.text("network").to_owned(), 0.0)
    }

    fn bands(&self, report: &BenchReport) -> Vec<Band> {
        let place = |a: &Row, b: &Row| a.point == b.point;
        report.rows.chunk_by(place).map(band).collect()
    }
}

/// A player with the optimizer and the batches of a network.
fn settled(player: Player, zoo: OfNetwork, problem: Option<&Path>) -> Player {
    let mut player = player.option("--lr", zoo.lr);
    if zoo.adamw {
        player = player.args(["--adamw"]);
    }
    match problem {
        Some(file) => player.args(["--problem", &file.display().to_string()]),
        None => player,
    }
}

/// A figure of the last sample.
fn last(row: &Row, figure: &str) -> Option<f64> {
    row.values(figure).last().copied()
}

/// The losses of a network's steps, and its evaluations.
fn band(rows: &[Row]) -> Band {
    let (warm_up, steps) = (Network::of(&rows[0]).warm_up_steps, rows[0].number("steps"));
    let curve = |row: &Row, figure: &str, with_first: bool| {
        let first = row.facts.get("warm_up_losses").and_then(|losses| losses.get(0)?.as_f64());
        let first = first.filter(|_| with_first).map(|loss| (1.0, loss));
        let rest = (1..).zip(row.values(figure));
        let rest = rest.map(|(round, value)| ((warm_up + round * steps) as f64, value));
        let points = first.into_iter().chain(rest);
        points.map(|(x, value)| (x, Spread { median: value, min: value, max: value })).collect()
    };
    let chart = |name: &str, figure: &str, with_first: bool| {
        let line = |row: &Row| {
            let look = Look::Line(label(&row.contender).1);
            Line { look, points: curve(row, figure, with_first) }
        };
        let lines: Vec<Line> = rows.iter().map(line).collect();
        let ends = lines.iter().flat_map(|line| &line.points);
        let (right, top) = ends.fold((1.0, 0.0), |(right, top): (f64, f64), (x, value)| {
            (right.max(*x), top.max(value.max))
        });
        Chart::lines(name.to_owned(), ("step", from_zero(right)), (name, from_zero(top)), lines)
    };
    let key = rows.iter().map(|row| {
        let (name, colour) = label(&row.contender);
        (Look::Line(colour), name)
    });
    let about = format!(
        "{}, {}, batch {}",
        title(&rows[0]),
        rows[0].text("data"),
        rows[0].number("batch_size")
    );
    Band {
        title: about,
        key: key.collect(),
        charts: vec![chart("loss", "loss", true), chart("test accuracy", "test_accuracy", false)],
    }
}
