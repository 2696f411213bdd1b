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
    ChatMessage, GenerationConfig, Pretrained, check_vocabulary, load_adapter,
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
    /// Divides the logits; at 0 the most probable token is always taken [default: that of the model, or else 0.7]
    #[arg(long, value_name = "T")]
    temperature: Option<f64>,
    /// Only the most probable tokens that have this probability together are drawn [default: that of the model, or else 0.95]
    #[arg(long, value_name = "P")]
    top_p: Option<f64>,
    /// Keys or tensors of the model's files that are not known here and have no effect; repeat the option for several
    #[arg(long, value_name = "NAME")]
    accept: Vec<String>,
    /// The seed of the draws
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let pretrained = Pretrained::find(&args.model)?.accept(&args.accept);
    let tokenizer = pretrained.tokenizer()?;
    let params = Params::new(0);
    let model = pretrained.causal_lm(&params)?;
    check_vocabulary(&tokenizer, model.vocabulary())?;
    if let Some(folder) = &args.adapters {
        load_adapter(&params, folder)?.merge()?; // into the weights, so they cost no time
    }
    let text = if args.chat {
        tokenizer.chat(&[ChatMessage::user(&args.prompt)], true)?
    } else {
        args.prompt.clone()
    };
    // The special tokens of a conversation are in its text.
    let prompt = tokenizer.encode(&text, !args.chat)?;
    let own = model.generation_config()?; // end tokens, and perhaps how the model wants to be sampled
    let is_sampled = own.temperature > 0.0;
    let config = GenerationConfig {
        max_new_tokens: args.tokens,
        temperature: args.temperature.unwrap_or(if is_sampled { own.temperature } else { 0.7 }),
        top_p: args.top_p.or(if is_sampled { own.top_p } else { Some(0.95) }),
        stop: own.stop.iter().copied().chain(tokenizer.end()).collect(),
        seed: args.seed,
        ..own
    };
    let written = tokenizer.decode(&model.generate(&prompt, &config, |_| {})?)?;
    let before = if args.chat { "" } else { &args.prompt };
    writeln!(io::stdout(), "{before}{written}")?;
    Ok(())
}
