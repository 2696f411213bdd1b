//! `cargo xtask bench-finetune`: training steps of a pretrained language model, ours and those of PyTorch with
//! transformers and PEFT.
//!
//! All contenders have the same weights, in f32 or, where ours keeps those of a GGUF file, in few bits. They train all
//! parameters or adapters on the same tokens, and their losses are compared.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use serde::Serialize;
use serde_json::Value;

use super::training::MEMORY;
use crate::bench::{
    Band, Bench, BenchReport, Block, Column, Defaults, Grouped, Metric, Player, Row, Sample, Setup,
    Wanted, compare, counted, once, split_commit, values,
};
use crate::setup::models;
use crate::shell::run;

#[derive(Clone, Debug, Serialize, clap::Args)]
pub(crate) struct Finetune {
    /// GGUF file or folder of Hugging Face with a language model [default: SmolLM2 of `cargo xtask setup --models`]
    #[arg(long, value_name = "MODEL")]
    #[serde(skip)]
    model: Option<PathBuf>,
    /// Rank of the adapters
    #[arg(long, default_value = "8")]
    rank: NonZeroUsize,
    /// Sequences in a batch
    #[arg(long, default_value = "4")]
    batch_size: NonZeroUsize,
    /// Tokens of a sequence
    #[arg(long, value_delimiter = ',', value_name = "N,N..", default_value = "64,128")]
    length: Vec<NonZeroUsize>,
    /// Compute threads of every contender
    #[arg(long, default_value = "2")]
    threads: NonZeroUsize,
    /// Contenders; ours-lora-quantized only if the model is a GGUF file [default: all]
    #[arg(long, value_delimiter = ',', value_parser = CONTENDERS.map(|(name, ..)| name))]
    contenders: Vec<String>,
}

/// Their names, their names in the picture, and the places of their colours.
const CONTENDERS: [(&str, &str, usize); 5] = [
    ("ours-full", "Candelabrum, all parameters", 4),
    ("ours-lora", "Candelabrum, LoRA", 0),
    ("ours-lora-quantized", "Candelabrum, LoRA, few bits", 1),
    ("peft-full", "PyTorch, all parameters", 3),
    ("peft-lora", "PyTorch, LoRA", 2),
];

const SPEED: Metric = Metric { figure: "tokens_per_second", more_is_better: true };

/// The steps before the first sample, whose losses are compared.
const WARM_UP: usize = 5;

/// The largest difference of the losses of a step.
const LOSS_TOLERANCE: f64 = 1e-3;

impl Finetune {
    fn model(&self) -> Result<PathBuf> {
        let model = self.model.clone().or_else(default_model).unwrap_or_default();
        let shown = model.display();
        ensure!(model.exists(), "--model: no `{shown}` here (cargo xtask setup --models)");
        Ok(model)
    }

    /// A contender, if it is possible here. The model's `folder` has f32, and its `file` has few bits.
    fn player(&self, name: &str, setup: &Setup, folder: &Path, file: &Path) -> Option<Player> {
        let ours = Player::new(&setup.programs.player).args(["finetune"]);
        let (player, model) = match (name, &setup.programs.python) {
            ("ours-lora-quantized", _) if !file.is_file() => return None,
            ("ours-lora-quantized", _) => (ours.args(["--quantized"]), file),
            ("ours-full" | "ours-lora", _) => (ours, folder),
            (_, python) => (Player::script(python.as_ref()?, "bench_finetune.py"), folder),
        };
        let (rank, lr) = if name.ends_with("full") { (0, 2e-5) } else { (self.rank.get(), 3e-4) };
        let player = player.args(["--model", &model.display().to_string()]);
        let player = player.option("--rank", rank).option("--lr", lr).option("--warm-up", WARM_UP);
        let player = player.option("--batch-size", self.batch_size);
        Some(player.option("--threads", self.threads).threads(self.threads.get()))
    }
}

impl Bench for Finetune {
    const NAME: &'static str = "bench-finetune";
    const FILE: &'static str = "finetune";
    const METRIC: Metric = SPEED;
    const DEFAULTS: Defaults = Defaults { rounds: 5, seconds: 2.0, deadline: 600 };
    const TITLE: &'static str =
        "Fine-tuning of a language model (higher is better) and peak memory (lower is better)";
    const LEGEND: &'static [&'static str] = &[
        "× full: to ours with all parameters. × torch: to PyTorch's with the same work. Medians of the ratios within a \
         round, and the same of the memory.",
        "peak MB: the most that the process held from the first step on; loading MB: until then. sent MB: the gradients \
         that each of several ranks would send in a step.",
        "cores: processor time over time. loss N: of the Nth step, the same step for all. PyTorch: eager, weights in f32.",
    ];

    fn check(&self) -> Result<()> {
        self.model().map(drop)
    }

    fn wanted(&self) -> Wanted {
        let asked = &self.contenders;
        let python = asked.is_empty() || asked.iter().any(|name| name.starts_with("peft"));
        Wanted { python, ..Wanted::default() }
    }

    fn plan(&self, setup: &mut Setup) -> Result<Vec<Block>> {
        let model = self.model()?;
        let mut folder = model.clone();
        if model.is_file() {
            folder = setup.output.folder().join("f32");
            let paths = [&model, &folder].map(|path| path.display().to_string());
            let player = Player::new(&setup.programs.player).args(["widen"]).args(paths);
            player.commands()?.iter_mut().try_for_each(run)?;
        }
        let name = model.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let (batch_size, threads) = (self.batch_size.get(), self.threads.get());
        let block = |length: NonZeroUsize| {
            let mut place = values([("model", &name)]);
            place.extend(values([("batch_size", batch_size), ("length", length.get())]));
            let of = counted(threads, "thread");
            let mut block = Block::new(format!("{name}, {batch_size} × {length} tokens, {of}"));
            let is_asked = |name: &str| {
                self.contenders.is_empty() || self.contenders.iter().any(|asked| asked == name)
            };
            for (who, ..) in CONTENDERS.into_iter().filter(|(name, ..)| is_asked(name)) {
                let Some(player) = self.player(who, setup, &folder, &model) else { continue };
                let player = player.option("--length", length);
                let is_ours = who.starts_with("ours");
                block.add(who, &place, if is_ours { player } else { player.other() });
            }
            block
        };
        Ok(once(&self.length).into_iter().map(block).collect())
    }

    fn derive(&self, rows: &mut [Row]) {
        for row in &mut *rows {
            let length = row.number("length") as f64;
            for Sample { figures, .. } in &mut row.samples {
                let figure = |name: &str| figures.get(name).copied().unwrap_or(f64::NAN);
                let tokens = figure("examples_per_second") * length;
                let cores = figure("cpu_seconds") / figure("seconds");
                figures
                    .extend([(SPEED.figure.to_owned(), tokens), ("cores_used".to_owned(), cores)]);
            }
            row.summarise();
        }
        for (metric, [full, torch]) in [
            (SPEED, ["times_full", "times_torch"]),
            (MEMORY, ["memory_of_full", "memory_of_torch"]),
        ] {
            compare(rows, full, metric, |row, other| {
                other.contender == "ours-full" && row.contender.starts_with("ours-lora")
            });
            compare(rows, torch, metric, |row, other| {
                row.contender.starts_with("ours")
                    && other.contender == format!("peft-{}", work(row))
            });
        }
    }

    fn tables(&self, _: &[Row]) -> Vec<Vec<Column>> {
        let megabytes = |head: &str, fact: &'static str, scale: f64| {
            let value = move |row: &Row| Some(scale * row.facts.get(fact)?.as_f64()?);
            Column::new(head, 8, move |row| Some(format!("{:.1}", value(row)?)))
        };
        let loss = |step: usize| {
            let text = move |row: &Row| Some(format!("{:.5}", losses(row).nth(step - 1)?));
            Column::new(&format!("loss {step}"), 8, text)
        };
        vec![vec![
            Column::name(20, |row| row.contender.clone()),
            Column::spread("tokens/s [min-max]", SPEED.figure, 1.0, 0),
            Column::figure("ms/step", "step_seconds", 1e3, 0),
            Column::ratio("× full", "times_full"),
            Column::ratio("× torch", "times_torch"),
            Column::peak_memory(),
            Column::percent("of full", "memory_of_full"),
            Column::percent("of torch", "memory_of_torch"),
            megabytes("loading MB", "loading_peak_rss_mb", 1.0),
            megabytes("sent MB", "gradient_bytes", 1e-6),
            Column::figure("cores", "cores_used", 1.0, 2),
            loss(1),
            loss(WARM_UP),
        ]]
    }

    fn notes(&self, report: &BenchReport) -> Vec<String> {
        let differs = |row: &&Row| {
            let is_peer = |other: &&Row| other.point == row.point && work(other) == work(row);
            let first = report.rows.iter().find(is_peer).unwrap_or(row);
            losses(row).zip(losses(first)).any(|(a, b)| (a - b).abs() > LOSS_TOLERANCE)
        };
        let wrong = report.rows.iter().filter(differs).map(Row::describe);
        wrong
            .map(|name| format!("WARNING: the losses differ, it trains another way: {name}"))
            .collect()
    }

    fn bands(&self, report: &BenchReport) -> Vec<Band> {
        let grouped = Grouped {
            settings: ["model", "length", "batch_size"],
            figure: SPEED.figure,
            ratio: ("times_torch", " PyTorch"),
            beside: Some(("peak_rss_mb", "peak memory, MB")),
            title: &|setting, row| match setting {
                "model" => {
                    format!("{}, {}", row.text("model"), counted(self.threads.get(), "thread"))
                }
                "length" => format!("{} tokens: tokens per second", row.number("length")),
                _ => format!("batch {}", row.number("batch_size")),
            },
            name: &|contender| {
                let known = CONTENDERS.iter().find(|(name, ..)| *name == contender);
                known.map_or((contender.to_owned(), 0), |&(_, label, colour)| {
                    (label.to_owned(), colour)
                })
            },
        };
        grouped.bands(&report.rows)
    }
}

/// What a contender trains: `full` or `lora`.
fn work(row: &Row) -> &str {
    split_commit(&row.contender).0.split('-').nth(1).unwrap_or_default()
}

/// The losses of the steps before the first sample.
fn losses(row: &Row) -> impl Iterator<Item = f64> {
    let losses = row.facts.get("warm_up_losses").and_then(Value::as_array);
    losses.into_iter().flatten().filter_map(Value::as_f64)
}

/// The language model of `cargo xtask setup --models`.
fn default_model() -> Option<PathBuf> {
    Some(models::folder()?.join("smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
}
