//! A pretrained encoder learns to classify texts: files of one text a line.
//!
//! ```text
//! cargo xtask setup --models
//! cargo run --release --features transformers --example finetune_classifier -- --model FOLDER \
//!     --class pos=rt-polarity.pos --class neg=rt-polarity.neg --windows-1252 --save tuned --workers 2
//! ```
//!
//! The model is a folder of Hugging Face with a BERT, RoBERTa, DistilBERT or MiniLM, or the name of such a model of the
//! hub. Without `--test`, a tenth of the texts is for tests. With `--save`, the tuned model becomes a folder that
//! Python's `transformers` opens, and `embed` reads its encoder. `scripts/finetune_classifier.py` is the same training
//! in PyTorch.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use candelabrum::prelude::*;
use candelabrum::train::cli::{TrainArgs, interrupted, parse, run};
use candelabrum::transformers::{ClassifiedTexts, Pretrained, check_vocabulary};
use clap::Parser;

#[global_allocator]
static ALLOCATOR: CountedHeap<mimalloc::MiMalloc> = CountedHeap(mimalloc::MiMalloc);

/// Fine-tune a pretrained encoder to classify texts
#[derive(Parser)]
#[command(mut_arg("optimizer", |name| name.default_value("adamw")))]
#[command(mut_arg("lr", |lr| lr.default_value("0.00005")))]
#[command(mut_arg("batch_size", |size| size.default_value("32")))]
#[command(mut_arg("epochs", |epochs| epochs.default_value("2")))]
struct Args {
    /// A folder with config.json, model.safetensors and tokenizer.json, or a model of the hub as OWNER/NAME
    #[arg(long, value_name = "MODEL")]
    model: PathBuf,

    /// Keys or tensors of the model's files that are not known here and have no effect; repeat the option for several
    #[arg(long, value_name = "NAME")]
    accept: Vec<String>,

    /// A class, and a file with one of its texts a line; repeat the option for several
    #[arg(long = "class", value_name = "NAME=FILE", value_parser = parse_class, required = true)]
    classes: Vec<(String, PathBuf)>,

    /// A class, and a file with its texts for tests; repeat the option for several [default: a tenth of the texts]
    #[arg(long = "test", value_name = "NAME=FILE", value_parser = parse_class)]
    tests: Vec<(String, PathBuf)>,

    /// The files are in Windows-1252 and not in UTF-8
    #[arg(long)]
    windows_1252: bool,

    /// The tokens of a text at most
    #[arg(long, value_name = "N", default_value_t = 128)]
    length: usize,

    /// The folder for the tuned model
    #[arg(long, value_name = "FOLDER")]
    save: Option<PathBuf>,

    #[command(flatten)]
    train: TrainArgs,
}

fn parse_class(text: &str) -> Result<(String, PathBuf), String> {
    let (name, file) = text.split_once('=').ok_or("expected NAME=FILE")?;
    Ok((name.to_owned(), file.into()))
}

fn main() -> ExitCode {
    let args = parse::<Args>();
    run(&args.train, |world| train(&args, world))
}

fn train(args: &Args, world: &World) -> Result<()> {
    let encoding = if args.windows_1252 { TextEncoding::Windows1252 } else { TextEncoding::Utf8 };
    let options = TextOptions { encoding, classes: None };
    let texts = LabelledTexts::lines(args.classes.clone(), &options)?;
    let (train, test) = if args.tests.is_empty() {
        texts.split(0.1, args.train.seed)?
    } else {
        let options = TextOptions { classes: Some(texts.classes().to_vec()), ..options };
        let test = LabelledTexts::lines(args.tests.clone(), &options)?;
        (texts, test)
    };
    let pretrained = Pretrained::find(&args.model)?.accept(&args.accept);
    let tokenizer = pretrained.tokenizer()?;
    let part = |texts| ClassifiedTexts::new(texts, &tokenizer, args.length);
    let (train, test) = (part(&train)?, part(&test)?);

    let params = args.train.precision.params(args.train.seed, world.device());
    let model = pretrained.classifier(&params, Some(train.classes().len()))?;
    if let Some(rows) = model.vocabulary() {
        check_vocabulary(&tokenizer, rows)?;
    }
    let mut out = io::stdout();
    if world.is_root() {
        let (ranks, count) = (world.world_size(), train.len());
        writeln!(out, "ranks {ranks}, {count} training and {} test texts", test.len())?;
        writeln!(out, "new: {}\n", model.report().missing.join(", "))?;
    }
    let mut trainer = Trainer::new(model, args.train.make_optimizer(&params, world)?);
    let fit = args.train.fit_on(world, "texts", train.len())?.output(&mut out);
    trainer.fit_with(fit, &train, Some(&test))?;
    if interrupted().is_some() {
        return Ok(()); // The same command goes on.
    }
    if let (Some(folder), true) = (&args.save, world.is_root()) {
        trainer.model().save(folder, train.classes(), Some(&tokenizer))?;
        writeln!(out, "\nsaved in {}", folder.display())?;
    }
    Ok(())
}
