//! A pretrained language model continues a text or answers a question, as it is or with the adapters of `finetune_llm`.
//!
//! ```text
//! cargo run --release --features transformers --example generate -- --model FILE.gguf --prompt "It was"
//! cargo run --release --features transformers --example generate -- --model FILE.gguf --adapters tuned --prompt "It was"
//! ```

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Result;
use candelabrum::prelude::*;
use candelabrum::transformers::{
    GenerationConfig, Message, Pretrained, check_vocabulary, load_adapter,
};
use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Let a pretrained language model write
#[derive(Parser)]
struct Args {
    /// A folder with config.json and model.safetensors, a GGUF file, or a model of the hub as OWNER/NAME
    #[arg(long, value_name = "MODEL")]
    model: PathBuf,
    /// A folder of adapters, of `finetune_llm` or of Python's peft
    #[arg(long, value_name = "FOLDER")]
    adapters: Option<PathBuf>,
    /// The text to continue, or with --chat the message to answer
    #[arg(long, value_name = "TEXT")]
    prompt: String,
    /// The model answers, by its chat template
    #[arg(long)]
    chat: bool,
    /// The most tokens to write
    #[arg(long, value_name = "N", default_value_t = 100)]
    tokens: usize,
    /// Divides the logits; at 0 the most probable token is always taken
    #[arg(long, value_name = "T", default_value_t = 0.7)]
    temperature: f64,
    /// Only the most probable tokens that have this probability together are drawn
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    top_p: f64,
    /// The seed of the draws
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let pretrained = Pretrained::find(&args.model)?;
    let tokenizer = pretrained.tokenizer()?;
    let params = Params::new(0);
    let model = pretrained.causal_lm(&params)?;
    check_vocabulary(&tokenizer, model.vocabulary())?;
    if let Some(folder) = &args.adapters {
        load_adapter(&params, folder)?.merge()?; // into the weights, so they cost no time
    }
    let text = if args.chat {
        tokenizer.chat(&[Message::user(&args.prompt)], true)?
    } else {
        args.prompt.clone()
    };
    // The special tokens of a conversation are in its text.
    let prompt = tokenizer.encode(&text, !args.chat)?;
    let config = GenerationConfig {
        max_new_tokens: args.tokens,
        temperature: args.temperature,
        top_p: Some(args.top_p),
        stop: tokenizer.end().into_iter().collect(),
        seed: args.seed,
        ..GenerationConfig::default()
    };
    let written = tokenizer.decode(&model.generate(&prompt, &config, |_| {})?)?;
    let before = if args.chat { "" } else { &args.prompt };
    writeln!(io::stdout(), "{before}{written}")?;
    Ok(())
}
