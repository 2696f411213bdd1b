//! A pretrained language model learns from a text of yours, or from conversations.
//!
//! ```text
//! cargo xtask setup --models
//! cargo run --release --features transformers --example finetune_llm -- --model FOLDER --text book.txt --save tuned
//! cargo run --release --features transformers --example finetune_llm -- --model FOLDER --text talks.jsonl --chat \
//!     --save tuned --workers 2 --checkpoint-dir runs/talks
//! ```
//!
//! The model is a folder of Hugging Face, a GGUF file, or a model of the hub. Adapters (LoRA) learn; `--rank 0` trains all
//! parameters. With `--save`, adapters or model become a folder that `generate` and Python's `peft` or `transformers` open.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, ensure};
use candelabrum::nn::{LoraConfig, LoraLayers};
use candelabrum::prelude::*;
use candelabrum::train::cli::{TrainArgs, interrupted, parse, run};
use candelabrum::transformers::*;
use clap::Parser;

#[global_allocator]
static ALLOCATOR: CountedHeap<mimalloc::MiMalloc> = CountedHeap(mimalloc::MiMalloc);

/// Fine-tune a pretrained language model
#[derive(Parser)]
#[command(mut_arg("optimizer", |name| name.default_value("adamw")))]
#[command(mut_arg("lr", |lr| lr.default_value("0.0003")))]
#[command(mut_arg("batch_size", |size| size.default_value("4")))]
#[command(mut_arg("epochs", |epochs| epochs.default_value("1")))]
struct Args {
    /// A folder with config.json and model.safetensors, a GGUF file, or a model of the hub as OWNER/NAME
    #[arg(long, value_name = "MODEL")]
    model: PathBuf,
    /// Keys or tensors of the model's files that are not known here and have no effect; repeat the option for several
    #[arg(long, value_name = "NAME")]
    accept: Vec<String>,
    /// A file of text in UTF-8, of which the last tenth is for the evaluation
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// The file has conversations, one a line: {"messages": [{"role": "user", "content": ".."}, ..]}
    #[arg(long)]
    chat: bool,
    /// A key of the conversations that is left out; repeat the option for several
    #[arg(long = "ignore", value_name = "KEY", requires = "chat")]
    ignored: Vec<String>,
    /// The tokens of a sample at most
    #[arg(long, value_name = "N", default_value_t = 128)]
    length: usize,
    /// The rank of the adapters, or 0 to train all parameters
    #[arg(long, value_name = "R", default_value_t = 8)]
    rank: usize,
    /// Keeps the matrices of a GGUF file in few bits
    #[arg(long)]
    quantized: bool,
    /// The folder for the adapters, or for the model with --rank 0
    #[arg(long, value_name = "FOLDER")]
    save: Option<PathBuf>,
    #[command(flatten)]
    train: TrainArgs,
}

fn main() -> ExitCode {
    let args = parse::<Args>();
    run(&args.train, |world| train(&args, world))
}

fn train(args: &Args, world: &World) -> Result<()> {
    let kept = if args.quantized { Quantization::Keep } else { Quantization::Dequantize };
    let pretrained = Pretrained::find(&args.model)?.quantization(kept).accept(&args.accept);
    let tokenizer = pretrained.tokenizer()?;
    let params = args.train.precision.params(args.train.seed, world.device());
    let model = pretrained.causal_lm(&params)?;
    check_vocabulary(&tokenizer, model.vocabulary())?;
    ensure!(!args.quantized || !params.constants().is_empty(), "--quantized needs a GGUF file");
    let alpha = 2.0 * args.rank as f64;
    let config = LoraConfig { rank: args.rank, alpha, ..LoraConfig::default() };
    let adapters = (args.rank > 0).then(|| LoraLayers::attach(&params, &config)).transpose()?;
    let opt = args.train.make_optimizer(&params, world)?;
    let mut trainer = Trainer::new(model, opt).with_score(Perplexity);
    let (train, test) = samples(args, &tokenizer)?;
    let mut out = io::stdout();
    if world.is_root() {
        let (trained, all) = (params.trainable_count(), params.element_count());
        let (ranks, count, tests) = (world.world_size(), train.len(), test.len());
        writeln!(
            out,
            "ranks {ranks}, {count} training and {tests} test samples of {} tokens",
            args.length
        )?;
        writeln!(out, "{trained} of {all} parameters are trained\n")?;
    }
    let fit = args.train.fit_on(world, "texts", train.len())?.output(&mut out);
    trainer.fit_with(fit, &train, Some(&test))?;
    if interrupted().is_some() {
        return Ok(()); // The same command goes on.
    }
    if let (Some(folder), true) = (&args.save, world.is_root()) {
        match &adapters {
            Some(adapters) => save_adapter(adapters, &params, &args.model, folder)?,
            None => trainer.model().save(folder, Some(&tokenizer))?,
        }
        writeln!(out, "\nsaved in {}", folder.display())?;
    }
    Ok(())
}

/// Blocks of a text, or conversations: those for training and those for the evaluation.
type Samples = Arc<dyn Dataset<Batch = Batch>>;

fn samples(args: &Args, tokenizer: &Tokenizer) -> Result<(Samples, Samples)> {
    if args.chat {
        let ignored = args.ignored.iter().cloned();
        let chats = Chats::open_ignoring(&args.text, tokenizer, args.length, ignored)?;
        let (train, test) = chats.split(0.1)?;
        return Ok((Arc::new(train), Arc::new(test)));
    }
    let (train, test) = TokenBlocks::open([&args.text], tokenizer, args.length)?.split(0.1)?;
    Ok((Arc::new(train), Arc::new(test)))
}
