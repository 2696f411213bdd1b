//! Hierarchical attention on documents with a class each: a folder of text files, or made-up reviews.
//!
//! ```text
//! cargo run --release --example han
//! cargo run --release --example han -- --data-dir reviews --workers 2
//! ```
//!
//! The folder has a folder for each class, with one document a file. A tenth of the documents is for tests. Documents
//! are cut at quantiles of their numbers of sentences, and sentences at a quantile of their numbers of words.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use candelabrum::models::{Han, HanConfig};
use candelabrum::prelude::*;
use candelabrum::train::cli::{TrainArgs, parse, run};
use clap::Parser;

#[global_allocator]
static ALLOCATOR: CountedHeap<mimalloc::MiMalloc> = CountedHeap(mimalloc::MiMalloc);

/// Train a hierarchical attention network to classify documents
#[derive(Parser)]
#[command(mut_arg("optimizer", |name| name.default_value("adam")))]
#[command(mut_arg("lr", |lr| lr.default_value("0.003")))]
#[command(mut_arg("batch_size", |size| size.default_value("32")))]
struct Args {
    /// The files are in Windows-1252 and not in UTF-8
    #[arg(long)]
    windows_1252: bool,

    /// The share of the documents, and of the sentences, that are not cut
    #[arg(long, value_name = "SHARE", default_value_t = 0.95)]
    whole: f64,

    #[command(flatten)]
    train: TrainArgs,
}

fn main() -> ExitCode {
    let args = parse::<Args>();
    run(&args.train, |world| train(&args, world))
}

fn train(args: &Args, world: &World) -> Result<()> {
    let made_up = tempfile::tempdir()?;
    let own = args.train.data_dir();
    if own.is_none() {
        reviews(made_up.path())?;
    }
    let folder = own.unwrap_or(made_up.path());
    let encoding = if args.windows_1252 { TextEncoding::Windows1252 } else { TextEncoding::Utf8 };
    let texts = LabelledTexts::folder(folder, &TextOptions { encoding, ..TextOptions::default() })?;
    let (train, test) = texts.split(0.1, args.train.seed)?;
    let vocabulary = Vocabulary::words(train.texts(), 2, 20_000);
    let lengths = train.sentences_at(args.whole)?;
    let train = train.documents(&vocabulary, lengths)?;
    let test = test.documents(&vocabulary, lengths)?;

    let params = args.train.precision.params(args.train.seed, world.device());
    let (vocabulary, classes) = (vocabulary.len(), train.classes().len());
    let config = HanConfig { vocabulary, embedding: 64, classes, ..HanConfig::default() };
    let model = Han::new(&params.root(), config);
    let mut trainer = Trainer::new(model, args.train.make_optimizer(&params, world)?);
    let example = train.read(&[0], &Pass::evaluation())?.xs.to_device(params.device())?;
    let summary = trainer.compile_with(&example)?;
    let mut out = io::stdout();
    if world.is_root() {
        let ([sentences, words], train, test) = (lengths, train.len(), test.len());
        writeln!(out, "{train} training and {test} test documents of {classes} classes")?;
        writeln!(out, "{vocabulary} kinds of words, {sentences} sentences of {words} words")?;
        writeln!(out, "{summary}\n")?;
    }
    let name = own.map_or("made-up reviews".into(), |dir| dir.display().to_string());
    let fit = args.train.fit_on(world, &name, train.len())?.output(&mut out);
    trainer.fit_with(fit, &train, Some(&test))?;
    Ok(())
}

/// Documents of two classes. One word of one of their sentences, in any place, tells the classes apart.
fn reviews(folder: &Path) -> Result<()> {
    let classes = [
        ("good", ["fine", "moving", "bright", "funny"]),
        ("bad", ["dull", "tedious", "flat", "noisy"]),
    ];
    let others = [
        "We went there by train. ",
        "It rained all day, as it often does. ",
        "The seats are red. ",
    ];
    for (class, adjectives) in classes {
        let dir = folder.join(class);
        fs::create_dir(&dir)?;
        for number in 0..96 {
            let opinion = format!("The film was {}. ", adjectives[number % 4]);
            let mut sentences = others[..1 + number / 4 % 3].to_vec();
            let place = number / 12 % (sentences.len() + 1);
            sentences.insert(place, &opinion);
            fs::write(dir.join(format!("{number}.txt")), sentences.concat())?;
        }
    }
    Ok(())
}
