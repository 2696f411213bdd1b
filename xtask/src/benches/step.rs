//! `cargo xtask bench-step`: training steps of this project, raw candle and PyTorch.
//!
//! All contenders start from the same weights and take the same batches. Networks, batch sizes and
//! numbers of threads make configurations, which are measured one after the other.

use std::num::NonZeroUsize;

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;

use super::network::{Network, compared_loss};
use super::profile;
use super::training::{
    MOST_SECONDS, PRODUCTS, SPEED, STRANGERS, Training, columns, compare_with_strangers, label,
    left_out_note, loss_notes, place, title,
};
use crate::bench::{
    Band, Bench, BenchReport, Block, Cli, Column, Defaults, Grouped, Host, Metric, Row, Sample,
    Setup, Wanted, choice_name, compare, counted, once,
};

#[derive(Clone, Debug, Serialize, clap::Args)]
pub(crate) struct Step {
    /// Networks to train
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "cnn,mlp,resnet18,resnet18-small,resnet18-224,resnet50-224,mobilenet-v2-224,\
                         gru,lstm,gpt"
    )]
    network: Vec<Network>,
    /// Images or sequences in a batch [default: by network, 8 images of 224x224, 64 and 256 otherwise;
    /// 64 for resnet18-small and lstm, 16 for gpt]
    #[arg(long, value_delimiter = ',', value_name = "N,N..")]
    batch_size: Vec<NonZeroUsize>,
    /// Compute threads of every contender [default: 1,2 if there are as many cores]
    #[arg(long, value_delimiter = ',', value_name = "N,N..")]
    threads: Vec<NonZeroUsize>,
    /// Contenders [default: all, but candle only where a step of it takes about 15 s or less]
    #[arg(long, value_delimiter = ',')]
    contenders: Vec<StepContender>,
    /// The precision of products: bf16 is torch.autocast, and the player's option of this name. candle has
    /// only f32
    #[arg(long, value_enum, default_value_t)]
    precision: Precision,
    /// Instead: measure the time of each operation in our own steps
    #[arg(long, conflicts_with = "precision")]
    profile: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Precision {
    #[default]
    F32,
    Bf16,
}

impl Precision {
    /// How far losses may differ because of it.
    fn loss_tolerance(self) -> f64 {
        match self {
            Self::F32 => 0.0,
            Self::Bf16 => 0.02,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum StepContender {
    /// This project
    Ours,
    /// candle-nn without changes
    Candle,
    /// PyTorch, eager, images in its default NCHW layout
    Pytorch,
    /// PyTorch, eager, in the memory layout that is faster for convolutions
    PytorchChannelsLast,
    /// PyTorch with torch.compile, which needs a C++ compiler
    PytorchCompile,
    /// As many processes as threads, each of ours with one thread, that share nothing
    Strangers,
    /// This project on one thread, where the others have several
    OneThread,
    /// Large matrix products with the arithmetic of the step: the most that the machine gives
    Products,
}

use StepContender::{
    Candle, OneThread, Ours, Products, Pytorch, PytorchChannelsLast, PytorchCompile, Strangers,
};

impl StepContender {
    /// Whether the contender exists in a configuration: a memory layout of images needs images, and
    /// one thread shares nothing with itself.
    fn can_train(self, training: &Training) -> bool {
        match self {
            PytorchChannelsLast => training.network.has_convolutions,
            Candle => training.network.candle_seconds.is_some(),
            Strangers | OneThread => training.threads > 1,
            _ => true,
        }
    }
}

pub(crate) fn run(cli: &Cli<Step>) -> Result<()> {
    let Cli { bench, common } = cli;
    if !bench.profile {
        return crate::bench::run::run(cli);
    }
    let seconds = common.schedule(Step::DEFAULTS)?.seconds;
    profile::run(&bench.trainings(Host::look().cores), seconds, common.out.as_deref())
}

impl Step {
    /// These networks on one thread, with PyTorch's modes and the bound.
    pub(super) fn of_one_thread(network: Vec<Network>) -> Self {
        Self {
            network,
            batch_size: Vec::new(),
            threads: vec![NonZeroUsize::MIN],
            contenders: vec![Ours, Pytorch, PytorchChannelsLast, PytorchCompile, Products],
            precision: Precision::F32,
            profile: false,
        }
    }

    /// The contenders in a configuration.
    fn contenders(&self, training: &Training) -> Vec<StepContender> {
        let asked = match &self.contenders[..] {
            [] => {
                let is_short = |who: &StepContender| {
                    *who != Candle || training.candle_seconds() <= Some(MOST_SECONDS)
                };
                StepContender::value_variants().iter().copied().filter(is_short).collect()
            }
            asked => once(asked),
        };
        let has_precision =
            |who: &StepContender| *who != Candle || self.precision == Precision::F32;
        let can_train = |who: &StepContender| who.can_train(training) && has_precision(who);
        asked.into_iter().filter(can_train).collect()
    }

    fn trainings(&self, cores: usize) -> Vec<Training> {
        let threads = match &self.threads[..] {
            [] => [1, 2].into_iter().filter(|&count| count == 1 || count <= cores).collect(),
            asked => once(asked).into_iter().map(NonZeroUsize::get).collect::<Vec<_>>(),
        };
        let mut trainings = Vec::new();
        for network in once(&self.network).into_iter().map(Network::about) {
            let batch_sizes = match &self.batch_size[..] {
                [] => network.batch_sizes.to_vec(),
                asked => once(asked).into_iter().map(NonZeroUsize::get).collect(),
            };
            for batch_size in batch_sizes {
                let training = |&threads| Training { network, batch_size, threads };
                trainings.extend(threads.iter().map(training));
            }
        }
        trainings
    }
}

impl Bench for Step {
    const NAME: &'static str = "bench-step";
    const FILE: &'static str = "bench_step";
    const METRIC: Metric = SPEED;
    const DEFAULTS: Defaults = Defaults { rounds: 5, seconds: 1.0, deadline: 600 };
    const TITLE: &'static str =
        "Training throughput (higher is better) and peak memory (lower is better)";
    const LEGEND: &'static [&'static str] = &[
        "×: median of the ratios within a round. PyTorch: the fastest of its modes there.",
        "of strangers: the share of the speed of as many processes with one thread that share nothing.",
        "of products: the speed divided by that of a step of large matrix products alone. × one: to ours on one thread.",
        "cores: processor time over time. loss N: of the Nth warm-up step, the same step for all.",
        "Memory: the most that the process held; of several numbers of threads, the highest.",
    ];

    fn wanted(&self) -> Wanted {
        let is_torch = |who| matches!(who, Pytorch | PytorchChannelsLast | PytorchCompile);
        let asked = &self.contenders;
        let python = asked.is_empty() || asked.iter().copied().any(is_torch);
        Wanted { python, ..Wanted::default() }
    }

    fn plan(&self, setup: &mut Setup) -> Result<Vec<Block>> {
        let (ours, python) = (&setup.programs.player, &setup.programs.python);
        let precision = &*choice_name(&self.precision);
        let block = |training: Training| {
            let Training { network, batch_size, threads } = training;
            let place = place(network, [("batch_size", batch_size), ("threads", threads)]);
            let mut block = Block::new(configuration(network.name, batch_size, threads));
            for who in self.contenders(&training) {
                let name = &choice_name(&who);
                let player = match (who, python) {
                    (Ours, _) => training.rust(ours, name),
                    (Candle, _) => training.rust(ours, name).other(),
                    (Strangers, _) => training.strangers(ours, threads),
                    (OneThread, _) => {
                        Training { threads: 1, ..training }.rust(ours, "ours").other()
                    }
                    (Products, _) => training.products(ours),
                    (_, Some(python)) => training.torch(python, name),
                    (_, None) => continue,
                };
                block.add(name, &place, player.option("--precision", precision));
            }
            block
        };
        Ok(self.trainings(setup.machine.cores).into_iter().map(block).collect())
    }

    fn derive(&self, rows: &mut [Row]) {
        for row in &mut *rows {
            for Sample { figures, .. } in &mut row.samples {
                let cores = figures.get("cpu_seconds").zip(figures.get("seconds"));
                let cores = cores.map(|(used, seconds)| used / seconds);
                figures.extend(cores.map(|cores| ("cores_used".to_owned(), cores)));
            }
            row.summarise();
        }
        compare(rows, "ratio_to_candle", SPEED, |_, other| other.contender == "candle");
        compare_with_strangers(rows);
        compare(rows, "share_of_products", SPEED, |_, other| other.contender == PRODUCTS);
        compare(rows, "times_one_thread", SPEED, |row, other| {
            other.contender == "one-thread" && ["ours", STRANGERS].contains(&&*row.contender)
        });
        compare(rows, "ratio_to_best_pytorch", SPEED, |_, other| {
            other.contender.starts_with("pytorch")
        });
    }

    fn tables(&self, rows: &[Row]) -> Vec<Vec<Column>> {
        let network = Network::of(&rows[0]);
        let loss = format!("loss {}", network.loss_step);
        let mut columns = columns(Column::name(22, |row| row.contender.clone()), network);
        columns.extend([
            Column::ratio("× candle", "ratio_to_candle"),
            Column::ratio("× best torch", "ratio_to_best_pytorch"),
            Column::percent("of strangers", "ratio_to_strangers"),
            Column::ratio("× one", "times_one_thread"),
            Column::percent("of products", "share_of_products"),
            Column::peak_memory(),
            Column::figure("cores", "cores_used", 1.0, 2),
            Column::new(&loss, 8, |row| Some(format!("{:.5}", compared_loss(row)?))),
        ]);
        vec![columns]
    }

    fn notes(&self, report: &BenchReport) -> Vec<String> {
        let name = |row: &Row| {
            configuration(row.text("network"), row.number("batch_size"), row.number("threads"))
        };
        let mut notes = loss_notes(report, name, self.precision.loss_tolerance());
        notes.extend(left_out_note(report));
        // A small difference of the clocks is allowed.
        let exceeds =
            |row: &&Row| row.median("cores_used") > Some(1.05 * row.number("threads") as f64);
        notes.extend(report.rows.iter().filter(exceeds).map(|row| {
            let who = &row.contender;
            format!("WARNING: {who} used more threads than it was given: {}", name(row))
        }));
        notes
    }

    fn bands(&self, report: &BenchReport) -> Vec<Band> {
        let threads = |row: &Row| {
            let threads = counted(row.number("threads"), "thread");
            format!("{threads}, {} per second", Network::of(row).unit)
        };
        let grouped = Grouped {
            settings: ["network", "threads", "batch_size"],
            figure: SPEED.figure,
            ratio: ("ratio_to_best_pytorch", " PyTorch"),
            beside: Some(("peak_rss_mb", "peak memory, MB")),
            title: &|setting, row| match setting {
                "network" => title(row),
                "threads" => threads(row),
                _ => format!("batch {}", row.number("batch_size")),
            },
            name: &label,
        };
        grouped.bands(&report.rows)
    }
}

fn configuration(network: &str, batch_size: usize, threads: usize) -> String {
    format!("{network}, batch {batch_size}, {}", counted(threads, "thread"))
}
