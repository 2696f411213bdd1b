//! `bench-player finetune`: a pretrained language model learns drawn tokens, by adapters or as a whole.
//!
//! scripts/bench_finetune.py does the same with PyTorch, on the same tokens and from the same adapters.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use candelabrum::dist::World;
use candelabrum::nn::{LoraConfig, LoraLayers};
use candelabrum::prelude::*;
use candelabrum::train::cli::Precision;
use candelabrum::transformers::{CausalLm, Pretrained, Quantization};
use clap::Parser;
use procfs::process::{ClearRefs, Process};
use serde_json::Value;

use crate::contender::{StepCost, TrainableNetwork};
use crate::hash::{TOKENS, hash, uniform};
use crate::problem::{BATCHES, ProblemBatches};
use crate::serve::{RequestHandler, Seconds, serve};
use crate::train::profile;
use crate::training::{Training, TrainingRequest, peak_rss_mb};

#[derive(Clone, Debug, Parser)]
pub(crate) struct FinetuneArgs {
    /// A folder of Hugging Face with a language model, or a GGUF file
    #[arg(long)]
    model: PathBuf,
    /// The rank of adapters of all linear layers but the last one, or 0 to train all parameters
    #[arg(long, default_value_t = 8)]
    rank: usize,
    /// Keep the matrices of a GGUF file in few bits
    #[arg(long)]
    quantized: bool,
    /// Sequences in a batch
    #[arg(long)]
    batch_size: NonZeroUsize,
    /// Tokens of a sequence
    #[arg(long)]
    length: NonZeroUsize,
    /// Compute threads
    #[arg(long, default_value = "1")]
    pub(crate) threads: NonZeroUsize,
    /// Steps before the first sample
    #[arg(long, default_value_t = 5)]
    warm_up: usize,
    /// The precision of products
    #[arg(long, default_value = "f32")]
    precision: Precision,
    /// The rate of AdamW
    #[arg(long)]
    lr: f64,
    /// Instead of samples, the time of each operation in some seconds of training
    #[arg(long, value_parser = |text: &str| serde_json::from_str::<Seconds>(text))]
    profile: Option<Seconds>,
}

/// Serves requests; or prints the time of each operation in some seconds of training.
pub(crate) fn run(args: &FinetuneArgs, world: &World) -> anyhow::Result<()> {
    let mut player = Finetune::new(args, world)?;
    let Some(seconds) = args.profile else { return serve(&mut player, world) };
    println!("{}", profile(&mut player.training, seconds)?);
    Ok(())
}

/// Writes a model as a folder of Hugging Face in f32, where the last one of this path was.
pub(crate) fn widen(model: &Path, folder: &Path) -> anyhow::Result<()> {
    let parent = folder.parent().context("the folder has no place")?;
    let whole = tempfile::tempdir_in(parent)?;
    let place = whole.path().join("model");
    Pretrained::open(model)?.causal_lm(&Params::new(0))?.save(&place, None)?;
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    Ok(std::fs::rename(place, folder)?)
}

struct Finetune {
    training: Training,
    /// Before the first step.
    loading_mb: Option<f64>,
}

impl Finetune {
    fn new(args: &FinetuneArgs, world: &World) -> anyhow::Result<Self> {
        let model = FinetunedModel::new(args, world)?;
        let batches = drawn(args, model.model.vocabulary())?;
        let loading_mb = peak_rss_mb();
        // From now on the peak is that of the steps.
        Process::myself()?.clear_refs(ClearRefs::PeakRSS)?;
        let training = Training::from_contender(Box::new(model), batches, args.warm_up, world)?;
        Ok(Self { training, loading_mb })
    }
}

impl RequestHandler for Finetune {
    type Request = TrainingRequest;

    fn ready(&self) -> Value {
        let mut ready = self.training.ready();
        if let Some(peak) = self.loading_mb {
            ready["loading_peak_rss_mb"] = peak.into();
        }
        ready
    }

    fn sample(&mut self, request: TrainingRequest) -> anyhow::Result<Value> {
        self.training.sample(request)
    }
}

/// Batches of tokens, and at each position the token that follows.
fn drawn(args: &FinetuneArgs, vocabulary: usize) -> candle_core::Result<ProblemBatches> {
    let (size, length) = (args.batch_size.get(), args.length.get());
    let batch = |index: usize| {
        let token = |place| hash(TOKENS + index, place) % vocabulary as u32;
        let tokens: Vec<u32> = (0..size * (length + 1)).map(token).collect();
        let tokens = Tensor::from_vec(tokens, (size, length + 1), &Device::Cpu)?;
        Ok((tokens.narrow(1, 0, length)?.contiguous()?, tokens.narrow(1, 1, length)?.contiguous()?))
    };
    (0..BATCHES).map(batch).collect()
}

/// A model and its optimizer, as a user writes them.
struct FinetunedModel {
    model: CausalLm,
    opt: DistOpt,
    forward: Duration,
}

impl FinetunedModel {
    fn new(args: &FinetuneArgs, world: &World) -> anyhow::Result<Self> {
        let kept = if args.quantized { Quantization::Keep } else { Quantization::Dequantize };
        args.precision.check(world.device())?;
        let params = args.precision.params(0, world.device());
        let model = Pretrained::open(&args.model)?.quantization(kept).causal_lm(&params)?;
        if args.rank > 0 {
            let (rank, alpha) = (args.rank, 2.0 * args.rank as f64);
            let config = LoraConfig { rank, alpha, ..LoraConfig::default() };
            let adapters = LoraLayers::attach(&params, &config)?;
            let trained = adapters.trained().iter();
            for a in trained.filter(|param| param.name().ends_with("lora_A.weight")) {
                let (rows, inputs) = a.var().dims2()?;
                let value = |place| (2.0 * uniform(0, place) - 1.0) * (inputs as f32).powf(-0.5);
                let values: Vec<f32> = (0..rows * inputs).map(value).collect();
                a.set(&Tensor::from_vec(values, (rows, inputs), &Device::Cpu)?)?;
            }
        }
        let opt = DistOpt::new(AdamW::new(args.lr), &params, world)?;
        Ok(Self { model, opt, forward: Duration::ZERO })
    }
}

impl TrainableNetwork for FinetunedModel {
    fn step(&mut self, xs: &Tensor, ys: &Tensor) -> anyhow::Result<Tensor> {
        // The work of `Model::train_one_batch`, with a clock around the forward pass.
        let start = Instant::now();
        let (_, loss) = self.model.output_and_loss(xs, ys)?;
        self.forward += start.elapsed();
        self.opt.backward_and_update(&loss)?;
        Ok(loss.detach())
    }

    /// Of what is trained, and so sent.
    fn elements(&self) -> usize {
        self.opt.params().trainable_count()
    }

    fn cost(&self) -> Option<StepCost> {
        let figures = self.opt.figures(DistOption::Fp32);
        Some(StepCost { forward: Some(self.forward), figures, residual_norm: None })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// A folder with a language model of one layer.
    fn tiny() -> anyhow::Result<tempfile::TempDir> {
        let folder = tempfile::tempdir()?;
        let config = r#"{"model_type": "llama", "vocab_size": 20, "hidden_size": 8, "intermediate_size": 12,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 16, "tie_word_embeddings": true}"#;
        std::fs::write(folder.path().join("config.json"), config)?;
        let layer = "input_layernorm 8,post_attention_layernorm 8,self_attn.q_proj 8 8,self_attn.k_proj 4 8,\
            self_attn.v_proj 4 8,self_attn.o_proj 8 8,mlp.gate_proj 12 8,mlp.up_proj 12 8,mlp.down_proj 8 12";
        let layer = layer.split(',').map(|shape| format!("layers.0.{shape}"));
        let mut file = HashMap::new();
        for (stream, text) in layer.chain(["embed_tokens 20 8".into(), "norm 8".into()]).enumerate()
        {
            let (name, sizes) = text.split_once(' ').context("no shape")?;
            let shape = sizes.split(' ').map(str::parse).collect::<Result<Vec<usize>, _>>()?;
            let values = (0..shape.iter().product()).map(|place| uniform(stream, place) - 0.5);
            let tensor = Tensor::from_vec(values.collect(), shape, &Device::Cpu)?;
            file.insert(format!("model.{name}.weight"), tensor);
        }
        candle_core::safetensors::save(&file, folder.path().join("model.safetensors"))?;
        Ok(folder)
    }

    #[test]
    fn adapters_send_less_and_begin_with_the_loss_of_the_model() -> anyhow::Result<()> {
        let (folder, place) = (tiny()?, tempfile::tempdir()?);
        let wide = place.path().join("wide");
        for _ in 0..2 {
            widen(folder.path(), &wide)?;
        }
        let ready = |rank: &str| -> anyhow::Result<Value> {
            let model = ["", "--model", wide.to_str().context("no text")?];
            let sizes = ["--batch-size", "2", "--length", "4", "--lr", "0.01", "--rank", rank];
            let args = FinetuneArgs::parse_from([&model[..], &sizes].concat());
            Ok(Finetune::new(&args, &World::single())?.ready())
        };
        let (all, adapters) = (ready("0")?, ready("2")?);
        assert_eq!(all["gradient_bytes"], 4 * (160 + 24 + 192 + 288));
        assert_eq!(adapters["gradient_bytes"], 4 * 2 * (2 * 16 + 2 * 12 + 3 * 20));
        assert!(adapters["loading_peak_rss_mb"].as_f64() > Some(0.0), "{adapters}");
        let losses = |ready: &Value| [0, 4].map(|step| ready["warm_up_losses"][step].as_f64());
        let ([first, last], [same, other]) = (losses(&all), losses(&adapters));
        assert!(first.is_some() && first == same && last != other, "{all} {adapters}");
        Ok(())
    }
}
