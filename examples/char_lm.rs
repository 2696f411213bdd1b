//! A language model of characters: a small transformer on a text of yours, or on an old rhyme.
//!
//! ```text
//! cargo run --release --example char_lm
//! cargo run --release --example char_lm -- --text book.txt --workers 2 --checkpoint-dir runs/book
//! cargo run --release --example char_lm -- --text book.txt --workers 2 --checkpoint-dir runs/book --epochs 40
//! ```
//!
//! At the end it writes some text of its own. The last command goes on with the run of the one before it.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use candelabrum::models::{Gpt, GptConfig};
use candelabrum::prelude::*;
use candelabrum::train::cli::{TrainArgs, parse, run};
use clap::Parser;
use rand::distr::{Distribution, weighted::WeightedIndex};
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

#[global_allocator]
static ALLOCATOR: CountedHeap<mimalloc::MiMalloc> = CountedHeap(mimalloc::MiMalloc);

/// Train a transformer on the characters of a text
#[derive(Parser)]
#[command(mut_arg("optimizer", |name| name.default_value("adamw")))]
#[command(mut_arg("lr", |lr| lr.default_value("0.003")))]
#[command(mut_arg("batch_size", |size| size.default_value("16")))]
struct Args {
    /// A file of text in UTF-8 [default: The House That Jack Built]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,

    /// The characters that the model sees at most
    #[arg(long, value_name = "N", default_value_t = 64)]
    window: usize,

    /// The transformer blocks of the model
    #[arg(long, value_name = "N", default_value_t = 2)]
    blocks: usize,

    /// The features of a character, a multiple of 64
    #[arg(long, value_name = "N", default_value_t = 64)]
    width: usize,

    /// The characters to write at the end
    #[arg(long, value_name = "N", default_value_t = 200)]
    write: usize,

    #[command(flatten)]
    train: TrainArgs,
}

/// Each verse of the rhyme is the next line and all before it.
fn rhyme() -> String {
    let lines = ["malt\nThat lay in", "rat\nThat ate", "cat\nThat killed", "dog\nThat worried"];
    let verse = |i: usize| {
        let before: String = lines[..i].iter().rev().map(|line| format!(" the {line}")).collect();
        format!("This is{before} the house that Jack built.\n\n")
    };
    (0..=lines.len()).map(verse).collect::<String>().repeat(20)
}

fn main() -> ExitCode {
    let args = parse::<Args>();
    run(&args.train, |world| train(&args, world))
}

fn train(args: &Args, world: &World) -> Result<()> {
    let text = match &args.text {
        Some(path) => fs::read_to_string(path).with_context(|| path.display().to_string())?,
        None => rhyme(),
    };
    let vocabulary = Vocabulary::characters(&text);
    let tokens = vocabulary.encode(&text)?;
    let (train, test) = tokens.split_at(tokens.len() * 9 / 10);
    let train = TextDataset::new(train, args.window, args.window.div_ceil(2))?;
    let test = TextDataset::new(test, args.window, args.window).context("the last tenth")?;
    let params = args.train.precision.params(args.train.seed, world.device());
    let (size, context) = (vocabulary.len(), args.window);
    let (layers, width, heads) = (args.blocks, args.width, (args.width / 64).max(4));
    let gpt = GptConfig { vocabulary: size, context, layers, width, heads, ..Default::default() };
    let opt = args.train.make_optimizer(&params, world)?;
    let mut trainer = Trainer::new(Gpt::new(&params.root(), gpt), opt).with_score(LossOnly);
    let example = Tensor::zeros((1, context), DType::U32, world.device())?;
    let summary = trainer.compile_with(&example)?;
    let mut out = io::stdout();
    if world.is_root() {
        writeln!(out, "{} characters of {size} kinds\n{summary}\n", tokens.len())?;
    }
    let name = args.text.as_ref().map_or("a rhyme".into(), |path| path.display().to_string());
    let fit = args.train.fit_on(world, &name, train.len())?.output(&mut out);
    trainer.fit_with(fit, &train, Some(&test))?;
    trainer.eval();
    if world.is_root() {
        let written = write(args, trainer.model(), &tokens[..1], params.device())?;
        writeln!(out, "\n{}", vocabulary.decode(&written)?)?;
    }
    Ok(())
}

/// Continues `start`, by one character at a time.
fn write(args: &Args, model: &Gpt, start: &[u32], device: &Device) -> Result<Vec<u32>> {
    let mut rng = ChaCha8Rng::seed_from_u64(args.train.seed);
    let mut written = start.to_vec();
    for _ in 0..args.write {
        let seen = &written[written.len().saturating_sub(args.window)..];
        let scores = model.forward(&Tensor::new(seen, device)?.unsqueeze(0)?)?; // (1, T, vocabulary)
        let last = scores.get(0)?.get(seen.len() - 1)?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
        let most = last.iter().copied().fold(f32::MIN, f32::max);
        let chances = WeightedIndex::new(last.iter().map(|score| (score - most).exp()))?;
        written.push(chances.sample(&mut rng) as u32);
    }
    Ok(written)
}
