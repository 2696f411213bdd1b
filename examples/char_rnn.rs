//! SINGA's language model of characters, an LSTM on one-hot characters, on a text of yours or on an old rhyme.
//!
//! ```text
//! cargo run --release --example char_rnn
//! cargo run --release --example char_rnn -- --text book.txt --workers 2 --hidden 256 --layers 2
//! cargo run --release --example char_rnn -- --cell gru --epochs 10 --start "This is the"
//! ```
//!
//! The last tenth of the text is for the evaluation, whose mean is printed in bits per character. At the end the
//! model goes on with the text after `--start`, whose state it carries from character to character.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use candelabrum::models::{CharCell, CharRnn, CharRnnConfig};
use candelabrum::prelude::*;
use candelabrum::train::cli::{TrainArgs, parse, run};
use clap::Parser;

#[global_allocator]
static ALLOCATOR: CountedHeap<mimalloc::MiMalloc> = CountedHeap(mimalloc::MiMalloc);

/// Train a recurrent network on the characters of a text
#[derive(Parser)]
#[command(mut_arg("optimizer", |name| name.default_value("adamw")))]
#[command(mut_arg("lr", |lr| lr.default_value("0.01")))]
#[command(mut_arg("batch_size", |size| size.default_value("16")))]
struct Args {
    /// A file of text in UTF-8 [default: Three Blind Mice]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,

    /// The recurrent layer: rnn, gru or lstm
    #[arg(long, default_value = "lstm")]
    cell: CharCell,

    /// Units of a layer
    #[arg(long, value_name = "N", default_value_t = 64)]
    hidden: usize,

    /// Recurrent layers
    #[arg(long, value_name = "N", default_value_t = 1)]
    layers: usize,

    /// The characters of a sequence in training
    #[arg(long, value_name = "N", default_value_t = 50)]
    window: usize,

    /// The beginning of the text that is written at the end
    #[arg(long, value_name = "TEXT", default_value = "T")]
    start: String,

    #[command(flatten)]
    train: TrainArgs,
}

const RHYME: &str = "Three blind mice. See how they run. They all ran after the farmer's wife, who cut off \
    their tails with a carving knife. Did you ever see such a sight in your life as three blind mice?\n";

/// The characters to write at the end.
const WRITTEN: usize = 200;

fn main() -> ExitCode {
    let args = parse::<Args>();
    run(&args.train, |world| train(&args, world))
}

fn train(args: &Args, world: &World) -> Result<()> {
    let text = match &args.text {
        Some(path) => fs::read_to_string(path).with_context(|| path.display().to_string())?,
        None => RHYME.repeat(30),
    };
    let vocabulary = Vocabulary::characters(&text);
    let start = vocabulary.encode(&args.start).context("--start")?;
    let tokens = vocabulary.encode(&text)?;
    let (train, test) = tokens.split_at(tokens.len() * 9 / 10);
    let train = TextDataset::new(train, args.window, args.window)?;
    let test = TextDataset::new(test, args.window, args.window).context("the last tenth")?;

    let params = args.train.precision.params(args.train.seed, world.device());
    let Args { hidden, layers, cell, .. } = *args;
    let config = CharRnnConfig { hidden, layers, cell, ..CharRnnConfig::new(vocabulary.len()) };
    let model = CharRnn::new(&params.root(), config);
    let opt = args.train.make_optimizer(&params, world)?;
    let mut trainer = Trainer::new(model, opt).with_score(LossOnly);
    trainer.compile_with(&Tensor::zeros((1, args.window), DType::U32, params.device())?)?;
    let mut out = io::stdout();
    let name = args.text.as_ref().map_or("a rhyme".into(), |path| path.display().to_string());
    let fit = args.train.fit_on(world, &name, train.len())?.output(&mut out);
    let epochs = trainer.fit_with(fit, &train, Some(&test))?;

    trainer.eval();
    if world.is_root() {
        if let Some(loss) = epochs.last().and_then(|epoch| epoch.eval_loss) {
            writeln!(out, "{:.4} bits per character", loss / std::f64::consts::LN_2)?;
        }
        let written = write(trainer.model(), start, params.device())?;
        writeln!(out, "\n{}", vocabulary.decode(&written)?)?;
    }
    Ok(())
}

/// Continues `text` by the likeliest character at each place.
fn write(model: &CharRnn, mut text: Vec<u32>, device: &Device) -> Result<Vec<u32>> {
    let (mut seen, mut state) = (0, None);
    while text.len() < WRITTEN {
        let next = Tensor::new(&text[seen..], device)?.unsqueeze(0)?;
        let (scores, after) = model.forward_from(&next, state.as_ref())?; // (1, T, vocabulary)
        (seen, state) = (text.len(), Some(after.detach()));
        text.push(scores.get(0)?.get(scores.dim(1)? - 1)?.argmax(0)?.to_scalar()?);
    }
    Ok(text)
}
