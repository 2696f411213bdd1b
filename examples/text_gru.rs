//! Gated recurrent units on texts with a class each: files of one text a line, or made-up opinions.
//!
//! ```text
//! cargo run --release --example text_gru
//! cargo run --release --example text_gru -- --class pos=rt-polarity.pos --class neg=rt-polarity.neg \
//!     --windows-1252 --workers 2
//! ```
//!
//! A tenth of the texts is for tests. Texts are cut at a quantile of their lengths, and the network reads each text up
//! to its last word.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use candelabrum::models::{TextGru, TextGruConfig};
use candelabrum::prelude::*;
use candelabrum::train::cli::{TrainArgs, parse, run};
use clap::Parser;

#[global_allocator]
static ALLOCATOR: CountedHeap<mimalloc::MiMalloc> = CountedHeap(mimalloc::MiMalloc);

/// Train gated recurrent units to classify texts
#[derive(Parser)]
#[command(mut_arg("optimizer", |name| name.default_value("adam")))]
#[command(mut_arg("lr", |lr| lr.default_value("0.003")))]
#[command(mut_arg("batch_size", |size| size.default_value("32")))]
struct Args {
    /// A class, and a file with one of its texts a line; repeat the option for several [default: made-up opinions]
    #[arg(long = "class", value_name = "NAME=FILE", value_parser = parse_class)]
    classes: Vec<(String, PathBuf)>,

    /// The files are in Windows-1252 and not in UTF-8
    #[arg(long)]
    windows_1252: bool,

    /// The share of the texts that are not cut
    #[arg(long, value_name = "SHARE", default_value_t = 0.95)]
    whole: f64,

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
    let folder = tempfile::tempdir()?;
    let is_made_up = args.classes.is_empty();
    let files = if is_made_up { opinions(folder.path())? } else { args.classes.clone() };
    let encoding = if args.windows_1252 { TextEncoding::Windows1252 } else { TextEncoding::Utf8 };
    let texts = LabelledTexts::lines(files, &TextOptions { encoding, ..TextOptions::default() })?;
    let (train, test) = texts.split(0.1, args.train.seed)?;
    let vocabulary = Vocabulary::words(train.texts(), 2, 20_000);
    let length = train.words_at(args.whole)?;
    let (train, test) = (train.padded(&vocabulary, length)?, test.padded(&vocabulary, length)?);

    let params = args.train.precision.params(args.train.seed, world.device());
    let (size, classes) = (vocabulary.len(), train.classes().len());
    let config = TextGruConfig::new(size, classes);
    let model = TextGru::new(&params.root(), config);
    let mut trainer = Trainer::new(model, args.train.make_optimizer(&params, world)?);
    let example = train.read(&[0], &Pass::evaluation())?.xs.to_device(params.device())?;
    let summary = trainer.compile_with(&example)?;
    let mut out = io::stdout();
    if world.is_root() {
        let (train, test) = (train.len(), test.len());
        writeln!(out, "{train} training and {test} test texts of {classes} classes")?;
        writeln!(out, "{size} kinds of words, {length} words of a text\n{summary}\n")?;
    }
    let name = if is_made_up { "made-up opinions" } else { "texts" };
    let fit = args.train.fit_on(world, name, train.len())?.output(&mut out);
    trainer.fit_with(fit, &train, Some(&test))?;
    Ok(())
}

/// A file of opinions for each class. Their adjectives tell the classes apart.
fn opinions(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let classes = [
        ("good", ["fine", "moving", "bright", "funny", "clever"]),
        ("bad", ["dull", "tedious", "flat", "noisy", "clumsy"]),
    ];
    let subjects = ["the film", "this story", "an old tale", "her last play", "the second act"];
    let verbs = ["is", "was really", "seemed to many of us rather", "turned out to be"];
    let file = |(class, adjectives): (&str, [&str; 5])| {
        let mut lines = String::new();
        for (subject, verb) in subjects.iter().flat_map(|s| verbs.iter().map(move |v| (s, v))) {
            adjectives.iter().for_each(|word| lines += &format!("{subject} {verb} {word} .\n"));
        }
        let path = folder.join(class);
        fs::write(&path, lines)?;
        Ok((class.to_owned(), path))
    };
    classes.into_iter().map(file).collect()
}
