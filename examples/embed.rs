//! Sentences that mean the same: embeddings by a pretrained encoder, or by one that `finetune_classifier` has tuned.
//!
//! ```text
//! cargo run --release --features transformers --example embed -- --model FOLDER --texts sentences.txt \
//!     --query "a film without a story"
//! ```
//!
//! For each query the lines of the file that are nearest to it are printed, with the cosine of the angle between both
//! embeddings. Without a query, the embeddings of all lines are printed as JSON, one line each.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use candelabrum::prelude::*;
use candelabrum::transformers::{Encoder, Pretrained, Tokenizer, check_vocabulary};
use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Find sentences by their meaning
#[derive(Parser)]
struct Args {
    /// A folder with config.json, model.safetensors and tokenizer.json, or a model of the hub as OWNER/NAME
    #[arg(long, value_name = "MODEL")]
    model: PathBuf,

    /// Keys or tensors of the model's files that are not known here and have no effect; repeat the option for several
    #[arg(long, value_name = "NAME")]
    accept: Vec<String>,

    /// A file of sentences in UTF-8, one a line
    #[arg(long, value_name = "FILE")]
    texts: PathBuf,

    /// What to look for; repeat the option for several
    #[arg(long = "query", value_name = "TEXT")]
    queries: Vec<String>,

    /// The number of lines to print for each query
    #[arg(long, value_name = "N", default_value_t = 3)]
    top: usize,

    /// The tokens of a sentence that count
    #[arg(long, value_name = "N", default_value_t = 256)]
    length: usize,

    /// The sentences that are embedded together
    #[arg(long, value_name = "N", default_value_t = 64)]
    batch_size: usize,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let text =
        std::fs::read_to_string(&args.texts).with_context(|| args.texts.display().to_string())?;
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    ensure!(!lines.is_empty(), "{}: no sentences", args.texts.display());
    ensure!(args.batch_size > 0, "--batch-size 0: it must be at least 1");

    let pretrained = Pretrained::find(&args.model)?.accept(&args.accept);
    let tokenizer = pretrained.tokenizer()?;
    let params = Params::new(0);
    let model = pretrained.encoder(&params)?;
    check_vocabulary(&tokenizer, model.vocabulary())?;
    let embed = |texts: &[&str]| embeddings(&model, &tokenizer, texts, &args);

    let mut out = io::stdout().lock();
    let all = embed(&lines)?;
    if args.queries.is_empty() {
        for row in all {
            let numbers: Vec<String> = row.iter().map(f32::to_string).collect();
            writeln!(out, "[{}]", numbers.join(","))?;
        }
        return Ok(());
    }
    let queries: Vec<&str> = args.queries.iter().map(String::as_str).collect();
    for (query, own) in queries.iter().zip(embed(&queries)?) {
        // Not every model gives embeddings of length 1.
        let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let cosine =
            |row: &Vec<f32>| product(row, &own) / (product(row, row) * product(&own, &own)).sqrt();
        let mut found: Vec<(f32, &str)> =
            all.iter().map(cosine).zip(lines.iter().copied()).collect();
        found.sort_by(|a, b| b.0.total_cmp(&a.0)); // stable: equal lines stay in their order
        writeln!(out, "{query}")?;
        for (cosine, line) in found.into_iter().take(args.top) {
            writeln!(out, "  {cosine:.3}  {line}")?;
        }
    }
    Ok(())
}

/// The embeddings of `texts`, some at a time, the short ones together.
fn embeddings(
    model: &Encoder,
    tokenizer: &Tokenizer,
    texts: &[&str],
    args: &Args,
) -> Result<Vec<Vec<f32>>> {
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_by_key(|&number| texts[number].len());
    let mut rows = vec![Vec::new(); texts.len()];
    for numbers in order.chunks(args.batch_size) {
        let batch: Vec<&str> = numbers.iter().map(|&number| texts[number]).collect();
        let embeddings = model.embed(tokenizer, &batch, args.length)?.to_vec2::<f32>()?;
        numbers.iter().zip(embeddings).for_each(|(&number, row)| rows[number] = row);
    }
    Ok(rows)
}
